#pragma once

#include <bit>
#include <cstdint>

// Marks functions for host and device code. The headers that use it include no CUDA header, so that a build without
// CUDA compiles exactly the arithmetic that the GPU runs.
#if defined(__CUDACC__)
#define GT_HD __host__ __device__
#else
#define GT_HD
#endif

// Compiles a CPU loop once for each instruction set and picks a version at run time. The bits of results do not depend
// on the choice, because contraction and reassociation are off. Sanitized builds get one version: the functions that
// pick would run before the sanitizer is ready.
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && !defined(GRADTOOL_SANITIZED) && \
    !defined(__CUDACC__)
#define GT_SIMD_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define GT_SIMD_CLONES
#endif

namespace gradtool::format {

/// The binary32 pattern of a float, and back.
GT_HD inline std::uint32_t bits_of(float x) {
  return std::bit_cast<std::uint32_t>(x);
}
GT_HD inline float float_of(std::uint32_t bits) {
  return std::bit_cast<float>(bits);
}

/// binary32 -> binary16, round to nearest even. What is too large becomes infinity; NaN stays NaN and loses its payload
/// bits. Without branches, so that a loop over it becomes vector code.
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

/// x * factor for a factor that is a number. A NaN keeps its sign and payload bits, as in a multiplication on x86; a
/// GPU would turn it into its canonical NaN, and the bytes would differ.
GT_HD inline float times(float x, float factor) {
  const std::uint32_t bits = bits_of(x);
  return (bits & 0x7fffffffu) > 0x7f800000u ? float_of(bits | 0x00400000u) : x * factor;
}

/// x, or 0x7fc00000 where x is a NaN of any kind. The bits of a NaN that arithmetic makes depend on the processor: x86
/// keeps those of an operand or makes a negative NaN, a GPU makes 0x7fffffff. So results of arithmetic go through this
/// function before their bits decide anything: what is sent, a sign, which of two is larger (docs/adr/0006).
GT_HD inline float one_nan(float x) {
  return x == x ? x : float_of(0x7fc00000u);
}

}  // namespace gradtool::format
