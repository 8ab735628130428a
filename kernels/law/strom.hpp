#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/law/half.hpp"
#include "kernels/law/hd.hpp"

namespace gradtool::law {

/// Strom's threshold (Interspeech 2015), one element at a time: what is larger than tau is sent as tau with its sign.
struct Strom {
  float tau = 0.0F;

  static constexpr std::uint32_t kPositive = 1, kNegative = 2, kNotANumber = 3;
  static constexpr std::uint32_t kCodesPerWord = 16;

  /// Strictly above the threshold, or not a number.
  GT_HD bool sends(float x) const { return !(float_of(bits_of(x) & 0x7fffffffu) <= tau); }
  GT_HD static bool finite(float x) { return (bits_of(x) & 0x7fffffffu) < 0x7f800000u; }
  /// The 2-bit code of the dense form; 0 for nothing.
  GT_HD std::uint32_t code(float x) const {
    const std::uint32_t sign = bits_of(x) >> 31;
    return !sends(x) ? 0u : finite(x) ? kPositive + sign : kNotANumber;
  }
  GT_HD static float value_of(std::uint32_t code, float tau) {
    return code == 0 ? 0.0F : code == kPositive ? tau : code == kNegative ? -tau : float_of(0x7fc00000u);
  }
};

}  // namespace gradtool::law
