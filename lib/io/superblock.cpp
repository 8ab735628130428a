#include "lib/io/superblock.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace gradtool::hdf5 {
namespace {

// Layout of the superblock (HDF5 file format specification 3.0, section II.A): signature, version (3), size of
// addresses (8), size of lengths (8), flags; then the addresses of the base, the extension, the end of the file and the
// root group; then the checksum.
constexpr std::array<unsigned char, 11> kStart{0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n', 3, 8, 8};
constexpr std::size_t kFlags = 11;
constexpr std::size_t kEndOfFile = 28;
constexpr std::size_t kChecksum = 44;

using State = std::array<std::uint32_t, 3>;

void mix(State& s) {
  auto& [a, b, c] = s;
  a -= c, a ^= std::rotl(c, 4), c += b;
  b -= a, b ^= std::rotl(a, 6), a += c;
  c -= b, c ^= std::rotl(b, 8), b += a;
  a -= c, a ^= std::rotl(c, 16), c += b;
  b -= a, b ^= std::rotl(a, 19), a += c;
  c -= b, c ^= std::rotl(b, 4), b += a;
}

void finish(State& s) {
  auto& [a, b, c] = s;
  c ^= b, c -= std::rotl(b, 14);
  a ^= c, a -= std::rotl(c, 11);
  b ^= a, b -= std::rotl(a, 25);
  c ^= b, c -= std::rotl(b, 16);
  a ^= c, a -= std::rotl(c, 4);
  b ^= a, b -= std::rotl(a, 14);
  c ^= b, c -= std::rotl(b, 24);
}

/// Adds up to 12 bytes to the state, as three little-endian words; missing bytes count as 0.
void absorb(State& s, std::span<const std::byte> bytes) {
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    s[i / 4] += static_cast<std::uint32_t>(bytes[i]) << 8 * (i % 4);
  }
}

}  // namespace

std::uint32_t metadata_checksum(std::span<const std::byte> bytes) {
  const std::uint32_t start = 0xdeadbeefU + static_cast<std::uint32_t>(bytes.size());
  State state{start, start, start};
  if (bytes.empty()) return state[2];
  for (; bytes.size() > 12; bytes = bytes.subspan(12)) {
    absorb(state, bytes.first(12));
    mix(state);
  }
  absorb(state, bytes);
  finish(state);
  return state[2];
}

bool Superblock::assign(std::span<const std::byte> bytes) {
  if (bytes.size() != kBytes || std::memcmp(bytes.data(), kStart.data(), kStart.size()) != 0) return false;
  std::copy(bytes.begin(), bytes.end(), bytes_.begin());
  return true;
}

std::uint64_t Superblock::end_of_file() const {
  std::uint64_t address = 0;
  for (std::size_t i = 0; i < 8; ++i) address |= static_cast<std::uint64_t>(bytes_[kEndOfFile + i]) << 8 * i;
  return address;
}

void Superblock::set_end_of_file(std::uint64_t address) {
  for (std::size_t i = 0; i < 8; ++i) bytes_[kEndOfFile + i] = static_cast<std::byte>(address >> 8 * i);
  renew_checksum();
}

void Superblock::clear_flags() {
  bytes_[kFlags] = std::byte{0};
  renew_checksum();
}

void Superblock::renew_checksum() {
  const std::uint32_t checksum = metadata_checksum(bytes().first(kChecksum));
  for (std::size_t i = 0; i < 4; ++i) bytes_[kChecksum + i] = static_cast<std::byte>(checksum >> 8 * i);
}

}  // namespace gradtool::hdf5
