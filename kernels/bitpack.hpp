#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/float_bits.hpp"

namespace gradtool::format {

/// Codes of `bits` bits each, packed little-endian: code i occupies bits [i*bits, (i+1)*bits) of the stream, bit b of
/// the stream is bit b%32 of word b/32. Groups of 32 codes fill exactly `bits` words, so groups are independent.
inline constexpr std::size_t kPackGroup = 32;

GT_HD constexpr std::size_t packed_words(std::size_t codes, std::uint32_t bits) {
  return (codes * bits + 31) / 32;
}

/// Word `w` of a group whose codes are codes[0 .. count); absent codes are 0.
GT_HD inline std::uint32_t packed_word(const std::uint32_t* codes, std::uint32_t count, std::uint32_t bits,
                                       std::uint32_t w) {
  std::uint32_t word = 0;
  const std::uint32_t first = 32 * w / bits;
  for (std::uint32_t i = first; i < count && i * bits < 32 * (w + 1); ++i) {
    const std::uint32_t at = i * bits;
    word |= at >= 32 * w ? codes[i] << (at - 32 * w) : codes[i] >> (32 * w - at);
  }
  return word;
}

/// Code `i` of the stream that starts at `words`. Only `available` words are read; the words behind them count as 0.
GT_HD inline std::uint32_t unpacked(const std::uint32_t* words, std::size_t available, std::uint32_t bits,
                                    std::size_t i) {
  const std::size_t at = i * bits;
  const std::size_t word = at / 32;
  const auto shift = static_cast<std::uint32_t>(at % 32);
  std::uint64_t two = word < available ? words[word] : 0u;
  if (shift + bits > 32 && word + 1 < available) two |= static_cast<std::uint64_t>(words[word + 1]) << 32;
  return static_cast<std::uint32_t>(two >> shift) & (bits == 32 ? 0xffffffffu : (1u << bits) - 1u);
}

}  // namespace gradtool::format
