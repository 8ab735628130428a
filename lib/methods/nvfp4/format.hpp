#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/block_format.hpp"
#include "kernels/small_float.hpp"

namespace gradtool::format {

/// NVFP4: blocks of 16 elements of E2M1 with a scale in E4M3, and a float32 scale for the whole unit, in the arithmetic
/// of TransformerEngine. `Eden` is MS-EDEN (Panferov et al. 2026, arXiv 2601.22813): 128 elements are rotated together
/// and rounded to nearest, their scales are multiplied by what makes the result as long as the gradient along it, and
/// then rounded stochastically.
template <bool Eden>
struct Nvfp4Format {
  using Scale = std::uint8_t;
  using Element = SmallFloatElement<kE2M1>;
  using BlockScale = SmallFloatElement<kE4M3>;
  static constexpr std::size_t kBlock = 16;
  static constexpr Scale kLargestScale = kE4M3.max_code;
  static constexpr bool kDrawsRotation = Eden;

  Rotation<Eden ? 128 : kBlock, false> rotation;
  float unit = 0.0f;    ///< what the unit's numbers are divided by, so that its largest block has the largest scale
  float encode = 0.0f;  ///< the inverse

  /// The format that the parameters ask for.
  template <class Params>
  static Nvfp4Format of(const Params& params) {
    Nvfp4Format made;
    made.rotation = made.rotation.of(static_cast<std::uint64_t>(params.integer("seed")));
    made.rotation.on = Eden || params.is("hadamard", "on");
    return made;
  }

  GT_HD void scale_unit(float largest) {
    const float wanted = kUnitReach / largest;
    encode = largest == 0.0f ? 1.0f : wanted < kMost ? wanted : kMost;
    unit = is_finite(largest) ? 1.0f / encode : quiet_nan();
  }
  GT_HD Scaled<Scale> scaled(float largest) const {
    return with_code(BlockScale::encode(1.0f, largest * (encode * kBlockReach)));
  }
  /// Has the contract of scaled() with a scale that is rounded up, so that no element exceeds 6.
  GT_HD Scaled<Scale> scaled_up(float largest) const {
    const float wanted = largest * (encode * (1.0f / 6.0f));
    const std::uint32_t code = BlockScale::encode(1.0f, wanted);
    return with_code(BlockScale::decode(code) < wanted ? code + 1 : code);
  }
  /// Codes above kLargestScale give some number.
  GT_HD float decode_factor(Scale code) const { return BlockScale::decode(code) * unit; }

 private:
  static constexpr float kMost = std::numeric_limits<float>::max();
  // The ends of the two ranges that numbers are scaled to: the unit's largest magnitude becomes kUnitReach before
  // blocks are scaled, and kBlockReach is the inverse of the largest element of a scaled block. MS-EDEN leaves room
  // above the scales, which it makes larger, and lets the largest elements saturate a little: the scales of c = 17/16 *
  // 0.93 in the authors' code, 255.99 * 6 / c and c / 6.
  static constexpr float kUnitReach = Eden ? 1554.3984f : 6.0f * 448.0f;
  static constexpr float kBlockReach = Eden ? 0.1646875f : 1.0f / 6.0f;

  GT_HD Scaled<Scale> with_code(std::uint32_t code) const {
    if (code == 0) return {};
    const auto stored = static_cast<Scale>(code);
    const float factor = 1.0f / decode_factor(stored);
    return {stored, factor < kMost ? factor : kMost};
  }
};

/// Sums of a block of MS-EDEN: of the squares of its scaled elements, and of their products with what they were rounded
/// to. In a block element i is added to element i + 8, then 4, 2 and 1 apart, and in a group block b to block b + 4,
/// then 2 and 1 apart; the order is part of the payload format.
struct EdenSums {
  float squares, products;

  GT_HD EdenSums operator+(const EdenSums& other) const { return {squares + other.squares, products + other.products}; }
  /// In units that all blocks share: a scaled element is in units of its block's scale.
  GT_HD EdenSums times(float factor) const { return {squares * factor, products * factor}; }
  /// The factor of the scales of the group, with which rounded elements have a projection on the gradient as long
  /// as the gradient (EDEN, Vargaftik et al. 2022, arXiv 2108.08842, section 3).
  GT_HD float correction() const { return products > 0.0f ? squares / products : 1.0f; }
};

/// The stored scale of a block whose scale before was `code`: rounded up with the probability of what is cut off.
GT_HD inline std::uint8_t corrected_scale(std::uint8_t code, float correction, std::uint32_t draw) {
  using BlockScale = Nvfp4Format<true>::BlockScale;
  return static_cast<std::uint8_t>(BlockScale::encode(1.0f, BlockScale::decode(code) * correction, draw));
}

}  // namespace gradtool::format
