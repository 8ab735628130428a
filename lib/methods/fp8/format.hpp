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

}  // namespace gradtool::format
