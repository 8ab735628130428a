#pragma once

#include <cstdint>

#include "kernels/draws.hpp"

namespace gradtool::format {

/// draws.bits[which]. Masks instead of an index, or of conditions, which compilers turn into one, keep the four draws
/// in a GPU's registers.
GT_HD inline std::uint32_t draw_at(const Draws& draws, std::uint32_t which) {
  const std::uint32_t odd = 0u - (which & 1u), late = 0u - (which >> 1 & 1u);
  const std::uint32_t low = draws.bits[0] ^ ((draws.bits[0] ^ draws.bits[1]) & odd);
  const std::uint32_t high = draws.bits[2] ^ ((draws.bits[2] ^ draws.bits[3]) & odd);
  return low ^ ((low ^ high) & late);
}

/// The draw of one element.
GT_HD inline std::uint32_t draw_of(const DrawKey& key, std::uint64_t element) {
  return draw_at(draw4(key, element / 4), static_cast<std::uint32_t>(element % 4));
}

enum class Way : bool { forward, inverse };

/// A rotation of groups of Size elements by signs S, which all groups share, and a Hadamard matrix H in natural
/// (Sylvester's) order: forward is x := H S x / sqrt(Size), and inverse is x := S H x / sqrt(Size). The additions are
/// part of payload formats: pairs of elements whose places differ by 1 become their sum and their difference, then by
/// 2, 4 and so on. Elements are multiplied by 1 / sqrt(Size) after the additions, or before them where `NormFirst`,
/// so that only results that are too large overflow.
template <std::uint32_t Size, bool NormFirst>
struct Rotation {
  static_assert(Size == 16 || Size == 32 || Size == 128);
  static constexpr std::uint32_t kSize = Size;
  /// 1 / sqrt(Size) in float32.
  static constexpr float kNorm = Size == 16 ? 0.25f : Size == 32 ? 0x1.6a09e6p-3f : 0x1.6a09e6p-4f;

  Draws signs{};  ///< bit i mod 32 of draw i div 32 turns element i
  bool on = false;

  /// With the signs that all ranks draw from the seed.
  GT_HD static Rotation of(std::uint64_t seed) { return {draw4(shared_by_ranks({.seed = seed}), 0), true}; }

  /// Returns what an element is multiplied by before the additions, or after them. `turned` is its bit of the signs.
  template <Way Direction, bool Before>
  GT_HD static constexpr float factor(bool turned) {
    constexpr float kScale = Before == NormFirst ? kNorm : 1.0f;
    return turned && Before == (Direction == Way::forward) ? -kScale : kScale;
  }
};

}  // namespace gradtool::format
