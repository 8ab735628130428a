#pragma once

#include <cstdint>

#include "kernels/block_format.hpp"
#include "kernels/small_float.hpp"

namespace gradtool::format {

/// True where a block's largest element may become a power of two above it. The standard has no type without mantissa:
/// if the scale followed its rule, half of the range of such an element would saturate.
template <auto Type>
GT_HD constexpr bool rounds_scale() {
  if constexpr (requires { Type.mantissa; })
    return Type.mantissa == 0;
  else
    return false;
}

/// OCP Microscaling Formats v1.0, section 6.3: blocks of 32 elements share a power of two, stored as its biased
/// exponent (E8M0). `Type` is a SmallFloat or SmallFixed.
template <auto Type>
struct MxFormat {
  using Scale = std::uint8_t;
  using Element = SmallFloatElement<Type>;
  static constexpr std::size_t kBlock = 32;
  static constexpr std::uint32_t kNan = 255;  ///< E8M0's NaN

  /// floor(log2 of the largest magnitude) minus the largest exponent of the element type; a block of zeros gets the
  /// smallest scale. For E3M0 it is the nearest power of two instead of the floor, and at most what keeps the largest
  /// code a finite float.
  GT_HD static Scaled<Scale> scaled(float largest) {
    if (!is_finite(largest)) return {static_cast<Scale>(kNan), 0.0f};
    // The exponent field of a subnormal is 0, which the clamp below turns into the smallest scale as well.
    const std::int32_t exponent =
        static_cast<std::int32_t>((bits_of(largest) + kRounding) >> 23) - Type.largest_exponent;
    const std::int32_t low = exponent < 0 ? 0 : exponent;
    const auto byte = static_cast<std::uint32_t>(low < kLargest ? low : kLargest);
    return {static_cast<Scale>(byte), power(254 - byte)};  // The inverse, because the bias of E8M0 is 127.
  }
  GT_HD static float decode_factor(Scale scale) { return scale == kNan ? quiet_nan() : power(scale); }

 private:
  static constexpr std::uint32_t kRounding = rounds_scale<Type>() ? 1u << 22 : 0u;
  static constexpr std::int32_t kLargest = rounds_scale<Type>() ? 254 - Type.largest_exponent : 254;
  /// 2^(byte - 127); 2^-127 is a subnormal float.
  GT_HD static float power(std::uint32_t byte) { return float_of(byte == 0 ? 0x00400000u : byte << 23); }
};

/// The format with one float32 scale, for blocks of any size.
template <auto Type>
struct MxWideFormat {
  using Scale = float;
  using Element = SmallFloatElement<Type>;
  static constexpr std::size_t kBlock = 0;

  GT_HD static Scaled<Scale> scaled(float largest) {
    const auto block = MxFormat<Type>::scaled(largest);
    return {MxFormat<Type>::decode_factor(block.stored), block.factor};
  }
  GT_HD static float decode_factor(Scale scale) { return scale; }
};

}  // namespace gradtool::format
