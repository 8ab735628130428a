#include "lib/io/filters.hpp"

#include <zlib.h>

#include <algorithm>
#include <cstring>

namespace gradtool::hdf5 {
namespace {

constexpr std::size_t kChecksumBytes = 4;

/// HDF5's variant of Fletcher's checksum: over big-endian 16-bit words, an odd last byte being the upper half of one.
std::uint32_t fletcher32(std::span<const std::byte> bytes) {
  constexpr std::size_t kBlock = 360;  // words that can be added before a sum could overflow
  const auto fold = [](std::uint32_t sum) { return (sum & 0xffff) + (sum >> 16); };
  std::uint32_t low = 0, high = 0;
  const std::size_t words = bytes.size() / 2 + bytes.size() % 2;
  for (std::size_t i = 0; i < words;) {
    for (const std::size_t end = std::min(words, i + kBlock); i < end; ++i) {
      const bool whole = 2 * i + 1 < bytes.size();
      low += std::to_integer<std::uint32_t>(bytes[2 * i]) << 8 |
             (whole ? std::to_integer<std::uint32_t>(bytes[2 * i + 1]) : 0U);
      high += low;
    }
    low = fold(low);
    high = fold(high);
  }
  return fold(high) << 16 | fold(low);
}

/// Removes the checksum behind the bytes; returns false when it does not match them.
bool check_fletcher32(std::vector<std::byte>& bytes) {
  if (bytes.size() < kChecksumBytes) return false;
  const std::size_t size = bytes.size() - kChecksumBytes;
  std::uint32_t stored = 0;
  for (std::size_t i = kChecksumBytes; i-- > 0;) stored = stored << 8 | std::to_integer<std::uint32_t>(bytes[size + i]);
  bytes.resize(size);
  return fletcher32(bytes) == stored;
}

/// Shuffle stores the first bytes of all values, then the second bytes, and so on. What is less than a value stays at
/// the end.
std::vector<std::byte> unshuffled(const std::vector<std::byte>& bytes, std::size_t value_bytes) {
  const std::size_t values = bytes.size() / value_bytes;
  std::vector<std::byte> out(bytes.size());
  for (std::size_t b = 0; b < value_bytes; ++b) {
    for (std::size_t i = 0; i < values; ++i) out[i * value_bytes + b] = bytes[b * values + i];
  }
  std::copy(bytes.begin() + static_cast<std::ptrdiff_t>(values * value_bytes), bytes.end(),
            out.begin() + static_cast<std::ptrdiff_t>(values * value_bytes));
  return out;
}

/// Inflates to exactly `size` bytes; returns nothing when the stream has fewer or more, or is damaged.
std::vector<std::byte> inflated(const std::vector<std::byte>& bytes, std::size_t size) {
  std::vector<std::byte> out(size);
  uLongf got = size;
  const int status = uncompress(reinterpret_cast<Bytef*>(out.data()), &got,
                                reinterpret_cast<const Bytef*>(bytes.data()), bytes.size());
  if (status != Z_OK || got != size) out.clear();
  return out;
}

}  // namespace

Filters::Filters(std::vector<Kind> kinds, std::size_t value_bytes, std::size_t chunk_bytes)
    : kinds_{std::move(kinds)}, value_bytes_{value_bytes}, chunk_bytes_{chunk_bytes} {}

std::size_t Filters::most_stored_bytes() const {
  return compressBound(chunk_bytes_ + kChecksumBytes * kinds_.size()) + kChecksumBytes * kinds_.size();
}

std::vector<std::byte> Filters::undo(std::span<const std::byte> stored, std::uint32_t skipped) const {
  std::vector<std::byte> bytes{stored.begin(), stored.end()};
  const auto used = [skipped](std::size_t filter) { return (skipped >> filter & 1U) == 0; };
  for (std::size_t i = kinds_.size(); i-- > 0;) {
    if (!used(i)) continue;
    switch (kinds_[i]) {
      case Kind::fletcher32:
        if (!check_fletcher32(bytes)) return {};
        break;
      case Kind::shuffle:
        bytes = unshuffled(bytes, value_bytes_);
        break;
      case Kind::deflate: {
        std::size_t size = chunk_bytes_;
        for (std::size_t k = 0; k < i; ++k) size += used(k) && kinds_[k] == Kind::fletcher32 ? kChecksumBytes : 0;
        bytes = inflated(bytes, size);
        if (bytes.empty()) return {};
        break;
      }
    }
  }
  if (bytes.size() != chunk_bytes_) bytes.clear();
  return bytes;
}

}  // namespace gradtool::hdf5
