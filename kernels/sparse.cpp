#include "kernels/sparse.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/bit_stream.hpp"
#include "lib/core/task_pool.hpp"
#include "lib/core/throw_error.hpp"

namespace gradtool {
namespace {

constexpr std::size_t bitmap_bytes(std::size_t n) {
  return 4 * format::words_of_bits(n);
}

std::size_t elias_bits(HostView<const std::uint32_t> positions) {
  std::uint64_t bits = 0;
  std::uint32_t next = 0;  // position that a gap of 1 stands for
  for (const std::uint32_t position : positions.span()) {
    bits += host::elias_delta_bits(position - next + 1);
    next = position + 1;
  }
  return bits;
}

[[noreturn]] void bad(std::string_view codec, std::string_view what) {
  throw_error(Fault::data, "{} payload: {}", codec, what);
}

void expect_section(std::string_view codec, std::size_t bytes, std::size_t expected) {
  if (bytes != expected) bad(codec, fmt::format("{} bytes, but this many elements make {}", bytes, expected));
}

void write_bitmap(Queue<Space::host> queue, HostView<const std::uint32_t> positions, std::size_t n, std::byte* out) {
  auto* words = reinterpret_cast<std::uint32_t*>(out);
  parallel_for(queue, (n + 31) / 32, 1, 1 << 12, [&](std::size_t first, std::size_t last) {
    std::fill(words + first, words + last, 0U);
    const auto* at = std::lower_bound(positions.data(), positions.data() + positions.size(), 32 * first);
    for (; at != positions.data() + positions.size() && *at < 32 * last; ++at) words[*at / 32] |= 1U << *at % 32;
  });
}

}  // namespace

IndexCoding::IndexCoding(const std::string& word) : automatic_{word == "auto"} {
  if (word == "bitmap") fixed_ = IndexCode::bitmap;
  if (word == "elias") fixed_ = IndexCode::elias;
}

std::size_t IndexCoding::bound(std::size_t k, std::size_t n) const {
  if (automatic_) return std::min(4 * k, bitmap_bytes(n));  // elias only where it is smaller
  if (fixed_ == IndexCode::bitmap) return bitmap_bytes(n);
  if (fixed_ == IndexCode::u32) return 4 * k;
  // A gap is below 2^w, w the width of n, so each code has at most the bits of 2^w - 1. All gaps together are at most
  // n, and no code has more than two bits for each unit of its gap (4 bits for a gap of 2).
  const auto widest = static_cast<std::uint32_t>((std::uint64_t{1} << std::bit_width(n)) - 1);
  const std::size_t bits = std::min(k * host::elias_delta_bits(std::max(widest, 1U)), 2 * n);
  return (bits + 31) / 32 * 4;
}

IndexCoding::Choice IndexCoding::choose(HostView<const std::uint32_t> positions, std::size_t n) const {
  const std::size_t k = positions.size();
  if (automatic_) return format::smallest_index(k, n, elias_bits(positions));
  return {fixed_, format::index_bytes(fixed_, k, n, fixed_ == IndexCode::elias ? elias_bits(positions) : 0)};
}

void IndexCoding::write(Queue<Space::host> queue, const Choice& choice, HostView<const std::uint32_t> positions,
                        std::size_t n, std::byte* out) {
  switch (choice.code) {
    case IndexCode::u32:
      if (!positions.empty()) std::memcpy(out, positions.data(), positions.bytes());
      return;
    case IndexCode::bitmap:
      write_bitmap(queue, positions, n, out);
      return;
    case IndexCode::elias:
      break;
  }
  host::BitWriter bits{out};
  std::uint32_t next = 0;
  for (const std::uint32_t position : positions.span()) {
    host::put_elias_delta(bits, position - next + 1);
    next = position + 1;
  }
  const std::size_t written = bits.finish();
  std::memset(out + written, 0, choice.bytes - written);
}

void IndexCoding::read(std::string_view codec, IndexCode code, HostView<const std::byte> section, std::size_t n,
                       HostView<std::uint32_t> positions) {
  const std::size_t k = positions.size();
  if (code == IndexCode::u32) {
    expect_section(codec, section.size(), 4 * k);
    if (k > 0) std::memcpy(positions.data(), section.data(), 4 * k);
    bool ascending = k == 0 || positions[k - 1] < n;
    for (std::size_t i = 1; i < k; ++i) ascending = ascending && positions[i - 1] < positions[i];
    if (!ascending) bad(codec, "its positions do not ascend or go past the end");
    return;
  }
  if (code == IndexCode::bitmap) {
    expect_section(codec, section.size(), bitmap_bytes(n));
    const auto* words = reinterpret_cast<const std::uint32_t*>(section.data());
    std::size_t at = 0;
    for (std::size_t word = 0; word < (n + 31) / 32; ++word) {
      for (std::uint32_t rest = words[word]; rest != 0; rest &= rest - 1) {
        const std::size_t i = 32 * word + static_cast<std::size_t>(std::countr_zero(rest));
        if (i >= n || at == k) bad(codec, "its bitmap marks more elements than it has values, or past the end");
        positions[at++] = static_cast<std::uint32_t>(i);
      }
    }
    if (at != k) bad(codec, "its bitmap marks fewer elements than it has values");
    return;
  }
  host::BitReader bits{section.data(), section.size()};
  std::uint64_t next = 0;
  std::uint64_t used = 0;
  for (std::size_t i = 0; i < k; ++i) {
    const std::uint32_t gap = host::take_elias_delta(bits);
    if (gap == 0 || next + gap > n) bad(codec, "its gaps do not decode or go past the end");
    used += host::elias_delta_bits(gap);
    next += gap;
    positions[i] = static_cast<std::uint32_t>(next - 1);
  }
  if (bits.overrun() || (used + 31) / 32 * 4 != section.size()) bad(codec, "its gaps are not as long as it says");
}

SparseHeader read_sparse_header(std::string_view codec, HostView<const std::byte> payload, std::size_t n,
                                std::size_t bits_per_value) {
  SparseHeader header;
  if (payload.size() < sizeof header) bad(codec, "too short for its header");
  std::memcpy(&header, payload.data(), sizeof header);
  if (header.bytes != payload.size()) bad(codec, "its length is not the one it states");
  if (header.count > n || header.code > 2)
    bad(codec, "its header states more values than elements, or an unknown code");
  if (payload.size() - sizeof header < (header.count * bits_per_value + 31) / 32 * 4) bad(codec, "too short");
  return header;
}

std::size_t write_sparse(Queue<Space::host> queue, const IndexCoding& coding, HostView<const std::uint32_t> positions,
                         HostView<const float> values, std::size_t n, HostView<std::byte> out) {
  const IndexCoding::Choice choice = coding.choose(positions, n);
  const std::size_t k = positions.size();
  const SparseHeader header{sizeof(SparseHeader) + 4 * k + choice.bytes, static_cast<std::uint32_t>(k),
                            static_cast<std::uint32_t>(choice.code)};
  std::memcpy(out.data(), &header, sizeof header);
  auto* to = out.data() + sizeof header;
  if (k > 0 && static_cast<const void*>(to) != values.data()) std::memcpy(to, values.data(), 4 * k);
  IndexCoding::write(queue, choice, positions, n, to + 4 * k);
  return static_cast<std::size_t>(header.bytes);
}

void add_sparse(std::string_view codec, HostView<const std::byte> payload, float weight, HostView<float> out,
                HostView<std::uint32_t> positions) {
  const SparseHeader header = read_sparse_header(codec, payload, out.size(), 32);
  const std::size_t k = header.count;
  if (k > positions.size()) bad(codec, "it has more values than this codec sends");
  const auto* values = reinterpret_cast<const float*>(payload.data() + sizeof header);
  const std::size_t at = sizeof header + 4 * k;
  positions = positions.first(k);
  IndexCoding::read(codec, static_cast<IndexCode>(header.code), payload.part(at, payload.size() - at), out.size(),
                    positions);
  for (std::size_t i = 0; i < k; ++i) out[positions[i]] += weight * values[i];
}

}  // namespace gradtool
