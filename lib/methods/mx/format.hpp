#pragma once

#include <cstdint>

#include "kernels/block_format.hpp"
#include "kernels/small_float.hpp"

namespace gradtool::format {

/// OCP Microscaling Formats v1.0, section 6.3: blocks of 32 elements share a power of two, stored as its biased
/// exponent (E8M0). `Type` is a SmallFloat or SmallFixed.
template <auto Type>
struct MxFormat {
  using Scale = std::uint8_t;
  using Element = SmallFloatElement<Type>;
  static constexpr std::size_t kBlock = 32;
  static constexpr std::uint32_t kNan = 255;  ///< E8M0's NaN

  /// floor(log2 of the largest magnitude) minus the largest exponent of the element type; a block of zeros gets the
  /// smallest scale.
  GT_HD static Scaled<Scale> scaled(float largest) {
    if (!is_finite(largest)) return {static_cast<Scale>(kNan), 0.0f};
    // The exponent field of a subnormal is 0, which the clamp below turns into the smallest scale as well.
    const std::int32_t exponent = static_cast<std::int32_t>(bits_of(largest) >> 23) - Type.largest_exponent;
    const std::int32_t low = exponent < 0 ? 0 : exponent;
    const auto byte = static_cast<std::uint32_t>(low < 254 ? low : 254);
    return {static_cast<Scale>(byte), power(254 - byte)};  // The inverse, because the bias of E8M0 is 127.
  }
  GT_HD static float decode_factor(Scale scale) { return scale == kNan ? quiet_nan() : power(scale); }

 private:
  /// 2^(byte - 127); 2^-127 is a subnormal float.
  GT_HD static float power(std::uint32_t byte) { return float_of(byte == 0 ? 0x00400000u : byte << 23); }
};

}  // namespace gradtool::format
