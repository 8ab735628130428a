#pragma once

#include <bit>
#include <cstdint>

#include "kernels/law/hd.hpp"

namespace gradtool::law {

/// Bits of a float, and back; usable in host and device code.
GT_HD inline std::uint32_t bits_of(float x) {
  return std::bit_cast<std::uint32_t>(x);
}
GT_HD inline float float_of(std::uint32_t bits) {
  return std::bit_cast<float>(bits);
}

/// binary32 -> binary16, round to nearest even; overflow to infinity, NaN stays NaN (payload dropped). Branch-free
/// selects, so that a loop over it vectorises.
GT_HD inline std::uint16_t f16_from_f32(float x) {
  const std::uint32_t bits = bits_of(x);
  const std::uint32_t sign = bits >> 16 & 0x8000u;
  const std::uint32_t mag = bits & 0x7fffffffu;
  // Normal result: rebias the exponent (127 - 15 = 112) and round 13 bits away; a carry moves into the exponent.
  const std::uint32_t normal = (mag - (112u << 23) + 0xfffu + (mag >> 13 & 1u)) >> 13;
  // Subnormal result: adding 0.5 puts the ulp at 2^-24, the spacing of binary16 subnormals, and the FPU rounds.
  const std::uint32_t subnormal = bits_of(float_of(mag) + 0.5f) - 0x3f000000u;
  std::uint32_t half = mag < (113u << 23) ? subnormal : normal;
  half = mag >= 0x477ff000u ? 0x7c00u : half;  // 65520 and above round to infinity
  half = mag > 0x7f800000u ? 0x7e00u : half;   // NaN
  return static_cast<std::uint16_t>(sign | half);
}

/// binary16 -> binary32, exact.
GT_HD inline float f32_from_f16(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  const std::uint32_t mag = half & 0x7fffu;
  const std::uint32_t normal = (mag << 13) + (112u << 23);
  const std::uint32_t subnormal = bits_of(static_cast<float>(mag) * 0x1p-24f);
  const std::uint32_t special = (mag << 13) | 0x7f800000u;
  const std::uint32_t value = mag >= 0x7c00u ? special : mag < 0x400u ? subnormal : normal;
  return float_of(sign | value);
}

/// binary32 -> bfloat16, round to nearest even; NaN stays NaN.
GT_HD inline std::uint16_t bf16_from_f32(float x) {
  const std::uint32_t bits = bits_of(x);
  const std::uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  const std::uint32_t nan = bits >> 16 | 0x40u;
  return static_cast<std::uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

/// bfloat16 -> binary32, exact.
GT_HD inline float f32_from_bf16(std::uint16_t x) {
  return float_of(static_cast<std::uint32_t>(x) << 16);
}

}  // namespace gradtool::law
