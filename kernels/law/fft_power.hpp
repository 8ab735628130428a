#pragma once

#include <cstdint>

#include "kernels/law/half.hpp"
#include "kernels/law/hd.hpp"

namespace gradtool::law {

/// The pattern of re^2 + im^2 that the fft codec selects bins by; NaN above infinity, all NaN alike.
GT_HD inline std::uint32_t power_pattern(float re, float im) {
  const std::uint32_t pattern = bits_of(re * re + im * im) & 0x7fffffffu;
  return pattern > 0x7f800000u ? 0x7fc00000u : pattern;
}

}  // namespace gradtool::law
