#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/law/bitpack.hpp"
#include "kernels/law/hd.hpp"

namespace gradtool::host {

// The packed codes of law/bitpack.hpp from and to codes of one byte each, for widths below 8.

/// Whole groups of 32 codes; the last is padded with zeros by the caller.
template <std::uint32_t Bits>
GT_SIMD_CLONES void pack_codes(const std::uint8_t* codes, std::size_t groups, std::uint32_t* words) {
  for (std::size_t g = 0; g < groups; ++g, codes += law::kPackGroup, words += Bits) {
    std::array<std::uint32_t, law::kPackGroup> wide;
    for (std::size_t i = 0; i < law::kPackGroup; ++i) wide[i] = codes[i];
    for (std::uint32_t w = 0; w < Bits; ++w) words[w] = law::packed_word(wide.data(), law::kPackGroup, Bits, w);
  }
}
template <std::uint32_t Bits>
GT_SIMD_CLONES void unpack_codes(const std::uint32_t* words, std::size_t groups, std::uint8_t* codes) {
  for (std::size_t g = 0; g < groups; ++g, codes += law::kPackGroup, words += Bits) {
    for (std::size_t i = 0; i < law::kPackGroup; ++i)
      codes[i] = static_cast<std::uint8_t>(law::unpacked(words, Bits, Bits, i));
  }
}

/// `count` codes as words at `words`, exactly law::packed_words(count, Bits) of them; `codes` holds up to 31 more.
template <std::uint32_t Bits>
void write_codes(std::uint8_t* codes, std::size_t count, std::uint32_t* words) {
  const std::size_t whole = count / law::kPackGroup;
  pack_codes<Bits>(codes, whole, words);
  if (const std::size_t rest = count % law::kPackGroup; rest != 0) {
    std::array<std::uint32_t, Bits> last{};
    std::fill_n(codes + count, law::kPackGroup - rest, std::uint8_t{0});
    pack_codes<Bits>(codes + whole * law::kPackGroup, 1, last.data());
    std::copy_n(last.data(), law::packed_words(rest, Bits), words + whole * Bits);
  }
}
template <std::uint32_t Bits>
void read_codes(const std::uint32_t* words, std::size_t count, std::uint8_t* codes) {
  const std::size_t whole = count / law::kPackGroup;
  unpack_codes<Bits>(words, whole, codes);
  if (const std::size_t rest = count % law::kPackGroup; rest != 0) {
    std::array<std::uint32_t, Bits> last{};
    std::copy_n(words + whole * Bits, law::packed_words(rest, Bits), last.data());
    unpack_codes<Bits>(last.data(), 1, codes + whole * law::kPackGroup);
  }
}

}  // namespace gradtool::host
