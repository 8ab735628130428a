#pragma once

#include <cstdint>

#include "kernels/law/half.hpp"
#include "kernels/law/hd.hpp"

namespace gradtool::law {

/// Natural compression (Horvath et al., arXiv 1905.10988, definition 2): 2^a (1 + f) goes to 2^(a+1) with probability
/// f, else to 2^a. Adding a uniform 23-bit integer to the pattern and dropping the mantissa does that: f is the
/// mantissa, and a carry is the next power of two. Subnormal m 2^-149 goes to 2^-126 with probability m/2^23, else to
/// 0: also unbiased.
struct Natural {
  static constexpr std::uint32_t kNotFinite = 255;
  static constexpr std::uint32_t kLargest = 254;  ///< 2^127: larger values have no next power of two

  /// The biased exponent of the result. What is not finite keeps 255.
  GT_HD static std::uint32_t exponent(float x, std::uint32_t draw) {
    const std::uint32_t magnitude = bits_of(x) & 0x7fffffffu;
    const std::uint32_t up = (magnitude + (draw >> 9)) >> 23;
    const std::uint32_t finite = up < kLargest ? up : kLargest;
    return magnitude >= 0x7f800000u ? kNotFinite : finite;
  }
  GT_HD static float value(std::uint32_t exponent, std::uint32_t sign) { return float_of(exponent << 23 | sign << 31); }
};

}  // namespace gradtool::law
