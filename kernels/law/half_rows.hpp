#pragma once

#include <cstdint>

#include "kernels/law/half.hpp"

namespace gradtool::law {

/// What is left of a number that is held in binary16 after scaling by a power of two.
struct HalfScale {
  float there = 1.0F;
  float back = 1.0F;

  /// For numbers of which `largest` is the largest pattern without sign: it comes into [2^(top-1), 2^top). No rounding
  /// (there = 0) where all are zero or one is not finite.
  [[nodiscard]] GT_HD static HalfScale of(std::uint32_t largest, int top) {
    if (largest == 0 || largest >= 0x7f800000U) return {0.0F, 0.0F};
    // Of a subnormal: an exponent that is not larger than it should be.
    int shift = top - 1 - (static_cast<int>(largest >> 23) - 127);
    shift = shift < -120 ? -120 : shift > 120 ? 120 : shift;
    return {float_of(static_cast<std::uint32_t>(shift + 127) << 23),
            float_of(static_cast<std::uint32_t>(127 - shift) << 23)};
  }
  [[nodiscard]] GT_HD float round(float x) const {
    return there == 0.0F ? x : f32_from_f16(f16_from_f32(x * there)) * back;
  }
};

// precision=fp16 of the fft codec: largest magnitudes lie below 2^top. The input leaves 2^8 for the sum to grow, the
// sum just fits.
inline constexpr int kHalfTopIn = 8;
inline constexpr int kHalfTopOut = 15;

}  // namespace gradtool::law
