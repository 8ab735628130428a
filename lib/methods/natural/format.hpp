#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/float_bits.hpp"

namespace gradtool::format {

/// Natural compression (Horvath et al., arXiv 1905.10988, definition 2): 2^a (1 + f) goes to 2^(a+1) with probability
/// f, else to 2^a. Adding a uniform 23-bit integer to the bit pattern and dropping the mantissa does that, because f is
/// the mantissa and a carry leads to the next power of two. A subnormal m 2^-149 goes to 2^-126 with probability
/// m/2^23, else to 0, which is unbiased too.
///
/// The payload of n elements holds all biased exponents, one in a byte, padded with zeros to 4 bytes, then all signs as
/// packed codes of one bit.
struct Natural {
  GT_HD static constexpr std::size_t signs_offset(std::size_t n) { return (n + 3) / 4 * 4; }
  GT_HD static constexpr std::size_t bytes(std::size_t n) { return signs_offset(n) + (n + 31) / 32 * 4; }

  /// The biased exponent of the result; 255 for NaN and infinities. `draw` is 32 random bits.
  GT_HD static std::uint32_t exponent(float x, std::uint32_t draw) {
    const std::uint32_t magnitude = bits_of(x) & 0x7fffffffu;
    const std::uint32_t drawn = magnitude + (draw >> 9);
    // From 2^127 on no finite number has a next power of two. What is not finite stays below its sum, and so as it is.
    constexpr std::uint32_t kLargestFinite = 0x7f7fffffu;
    const std::uint32_t most = magnitude > kLargestFinite ? magnitude : kLargestFinite;
    return (drawn < most ? drawn : most) >> 23;
  }
  GT_HD static float value(std::uint32_t exponent, std::uint32_t sign) { return float_of(exponent << 23 | sign << 31); }
};

}  // namespace gradtool::format
