#pragma once

#include "kernels/block_format.hpp"
#include "kernels/small_float.hpp"

namespace gradtool::format {

/// FP8 with a float32 scale that maps the block's largest magnitude to the largest value of E4M3 or E5M2.
template <SmallFloat Type>
struct Fp8Format {
  using Scale = float;
  using Element = SmallFloatElement<Type>;
  static constexpr std::size_t kBlock = 0;

  /// The largest value of the type: 448 or 57344.
  GT_HD static float top() { return Type.value(Type.max_code); }
  GT_HD static Scaled<Scale> scaled(float largest) {
    if (!is_finite(largest)) return {quiet_nan(), 0.0f};
    if (largest < kSmallestOfBlock) return {};
    return {largest / top(), top() / largest};
  }
  GT_HD static float decode_factor(Scale scale) { return scale; }
};

/// Rows of `row` elements, a multiple of 4, one behind the other: each is a float32 and its codes, padded to 4 bytes.
/// So a part of whole rows is a range of bytes, which its owner adds up and rounds again alone.
struct Fp8Rows {
  std::size_t row;

  [[nodiscard]] GT_HD constexpr std::size_t count(std::size_t n) const { return (n + row - 1) / row; }
  [[nodiscard]] GT_HD constexpr std::size_t bytes(std::size_t n) const { return 4 * count(n) + (n + 3) / 4 * 4; }
  [[nodiscard]] GT_HD constexpr std::size_t offset(std::size_t r) const { return r * (4 + row); }
  /// Elements of row r of n.
  [[nodiscard]] GT_HD constexpr std::size_t elements(std::size_t r, std::size_t n) const {
    return n - r * row < row ? n - r * row : row;
  }
};

/// The factor of a row's elements before they are rounded, by which they are divided again: top / largest, or 1 if that
/// is infinite.
template <SmallFloat Type>
GT_HD float fp8_row_factor(float largest) {
  if (!is_finite(largest)) return quiet_nan();
  const float factor = Fp8Format<Type>::top() / largest;
  return is_finite(factor) ? factor : 1.0f;
}

}  // namespace gradtool::format
