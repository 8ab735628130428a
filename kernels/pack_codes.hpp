#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/bitpack.hpp"
#include "kernels/float_bits.hpp"

namespace gradtool::host {

// Packs codes of one byte each as kernels/bitpack.hpp says, and unpacks them, for widths up to 8 bits: eight codes fill
// `Bits` bytes. For little-endian processors, like all of gradtool.

/// Packs eight codes, one in each byte, into 8 Bits bits: neighbours are moved together in three steps.
template <std::uint32_t Bits>
[[nodiscard]] constexpr std::uint64_t squeezed(std::uint64_t codes) {
  constexpr std::uint64_t kBytes = 0x00ff00ff00ff00ff;
  constexpr std::uint64_t kPairs = 0x0000ffff0000ffff;
  const std::uint64_t pairs = (codes & kBytes) | (codes >> 8 & kBytes) << Bits;
  const std::uint64_t fours = (pairs & kPairs) | (pairs >> 16 & kPairs) << 2 * Bits;
  return Bits == 8 ? codes : (fours & 0xffffffff) | fours >> 32 << (4 * Bits % 64);
}
/// The inverse of squeezed.
template <std::uint32_t Bits>
[[nodiscard]] constexpr std::uint64_t spread(std::uint64_t packed) {
  if constexpr (Bits == 8) {
    return packed;
  } else {
    constexpr std::uint64_t kFour = (std::uint64_t{1} << 4 * Bits) - 1;
    constexpr std::uint64_t kTwo = (std::uint64_t{1} << 2 * Bits) - 1;
    constexpr std::uint64_t kOne = (std::uint64_t{1} << Bits) - 1;
    const std::uint64_t fours = (packed & kFour) | (packed >> 4 * Bits & kFour) << 32;
    const std::uint64_t pairs = (fours & (kTwo | kTwo << 32)) | (fours >> 2 * Bits & (kTwo | kTwo << 32)) << 16;
    constexpr std::uint64_t kOnes = kOne | kOne << 16 | kOne << 32 | kOne << 48;
    return (pairs & kOnes) | (pairs >> Bits & kOnes) << 8;
  }
}

/// The codes of a byte of the packed stream, where a byte holds whole codes.
template <std::uint32_t Bits>
struct CodesOfByte {
  static constexpr bool kWhole = Bits < 8 && 8 % Bits == 0;
  static constexpr std::size_t kCount = kWhole ? 8 / Bits : 1;
  using Word =
      std::conditional_t<Bits == 4, std::uint16_t, std::conditional_t<Bits == 2, std::uint32_t, std::uint64_t>>;
  static constexpr Word kMask = static_cast<Word>(0x0101010101010101 * ((1U << Bits) - 1U));
};

template <std::uint32_t Bits>
GT_SIMD_CLONES void pack_octets(const std::uint8_t* codes, std::size_t octets, std::byte* out) {
  using Codes = CodesOfByte<Bits>;
  if constexpr (Codes::kWhole) {  // a loop that becomes vector code, unlike the one below
    for (std::size_t i = 0; i < Bits * octets; ++i) {
      typename Codes::Word word;
      std::memcpy(&word, codes + sizeof word * i, sizeof word);
      auto byte = word;
      for (std::uint32_t k = 1; k < Codes::kCount; ++k) byte |= word >> (8 - Bits) * k;
      out[i] = static_cast<std::byte>(byte);
    }
    return;
  }
  for (std::size_t i = 0; i < octets; ++i) {
    std::uint64_t eight = 0;
    std::memcpy(&eight, codes + 8 * i, 8);
    eight = squeezed<Bits>(eight);
    std::memcpy(out + Bits * i, &eight, Bits);
  }
}
template <std::uint32_t Bits>
GT_SIMD_CLONES void unpack_octets(const std::byte* in, std::size_t octets, std::uint8_t* codes) {
  using Codes = CodesOfByte<Bits>;
  if constexpr (Codes::kWhole) {
    for (std::size_t i = 0; i < Bits * octets; ++i) {
      const auto byte = static_cast<typename Codes::Word>(in[i]);
      auto word = byte;
      for (std::uint32_t k = 1; k < Codes::kCount; ++k)
        word |= static_cast<typename Codes::Word>(byte << (8 - Bits) * k);
      word &= Codes::kMask;
      std::memcpy(codes + sizeof word * i, &word, sizeof word);
    }
    return;
  }
  constexpr std::size_t kReach =
      (8 + Bits - 1) / Bits;  // octets that eight bytes touch: read whole while there are so many
  std::size_t i = 0;
  for (; i + kReach <= octets; ++i) {
    std::uint64_t eight = 0;
    std::memcpy(&eight, in + Bits * i, 8);
    eight = spread<Bits>(eight);
    std::memcpy(codes + 8 * i, &eight, 8);
  }
  for (; i < octets; ++i) {
    std::uint64_t eight = 0;
    std::memcpy(&eight, in + Bits * i, Bits);
    eight = spread<Bits>(eight);
    std::memcpy(codes + 8 * i, &eight, 8);
  }
}

/// Whole groups of 32 codes.
template <std::uint32_t Bits>
void pack_codes(const std::uint8_t* codes, std::size_t groups, std::uint32_t* words) {
  pack_octets<Bits>(codes, 4 * groups, reinterpret_cast<std::byte*>(words));
}
template <std::uint32_t Bits>
void unpack_codes(const std::uint32_t* words, std::size_t groups, std::uint8_t* codes) {
  unpack_octets<Bits>(reinterpret_cast<const std::byte*>(words), 4 * groups, codes);
}

/// `count` codes as words at `words`, exactly format::packed_words(count, Bits) of them, the last padded with zeros.
/// Bits of a code above its width are zero.
template <std::uint32_t Bits>
void write_codes(const std::uint8_t* codes, std::size_t count, std::uint32_t* words) {
  const std::size_t whole = count / format::kPackGroup;
  pack_codes<Bits>(codes, whole, words);
  if (const std::size_t rest = count % format::kPackGroup; rest != 0) {
    std::array<std::uint8_t, format::kPackGroup> padded{};
    std::array<std::uint32_t, Bits> last{};
    std::memcpy(padded.data(), codes + whole * format::kPackGroup, rest);
    pack_codes<Bits>(padded.data(), 1, last.data());
    std::memcpy(words + whole * Bits, last.data(), 4 * format::packed_words(rest, Bits));
  }
}
/// Writes up to 31 codes more than there are: `codes` has room for whole groups of 32.
template <std::uint32_t Bits>
void read_codes(const std::uint32_t* words, std::size_t count, std::uint8_t* codes) {
  const std::size_t whole = count / format::kPackGroup;
  unpack_codes<Bits>(words, whole, codes);
  if (const std::size_t rest = count % format::kPackGroup; rest != 0) {
    std::array<std::uint32_t, Bits> last{};
    std::memcpy(last.data(), words + whole * Bits, 4 * format::packed_words(rest, Bits));
    unpack_codes<Bits>(last.data(), 1, codes + whole * format::kPackGroup);
  }
}

}  // namespace gradtool::host
