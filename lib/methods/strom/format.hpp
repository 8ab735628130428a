#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/float_bits.hpp"

namespace gradtool::format {

/// Strom's threshold (Interspeech 2015), one element at a time: tau with the sign of x is sent where |x| > tau.
struct Strom {
  float tau = 0.0F;

  /// The 2-bit codes of the dense form; 0 stands for an element that is not sent.
  static constexpr std::uint32_t kPositive = 1, kNegative = 2, kNotANumber = 3;
  static constexpr std::size_t kCodesPerWord = 16;

  /// True where |x| > tau, and for NaN.
  GT_HD bool sends(float x) const { return !(float_of(bits_of(x) & 0x7fffffffu) <= tau); }
  GT_HD static bool finite(float x) { return (bits_of(x) & 0x7fffffffu) < 0x7f800000u; }
  GT_HD std::uint32_t code(float x) const {
    const std::uint32_t sign = bits_of(x) >> 31;
    return !sends(x) ? 0u : finite(x) ? kPositive + sign : kNotANumber;
  }
  GT_HD static float value_of(std::uint32_t code, float tau) {
    return code == 0 ? 0.0F : code == kPositive ? tau : code == kNegative ? -tau : float_of(0x7fc00000u);
  }
  /// Bytes of the dense form's payload.
  GT_HD static std::size_t dense_bytes(std::size_t n) { return 4 * ((n + kCodesPerWord - 1) / kCodesPerWord); }
};

}  // namespace gradtool::format
