#pragma once

#include <cstdint>

#include "kernels/float_bits.hpp"

namespace gradtool::format {

/// A floating-point type of 4, 6 or 8 bits: a sign, an exponent with `bias`, and `mantissa` bits, with subnormals as in
/// IEEE 754. Rounding saturates at `max_code`, so the codes above it, which some types use for NaN and infinity, are
/// never written. OCP Microscaling Formats v1.0, section 5.3; FP8: Micikevicius et al. 2022, arXiv 2209.05433.
struct SmallFloat {
  std::uint32_t mantissa;
  std::int32_t bias;
  std::uint32_t max_code;         ///< the code of the largest finite value
  std::uint32_t bits;             ///< of a code, its sign included
  std::int32_t largest_exponent;  ///< floor(log2 of the largest value): emax of OCP

  /// The exponent of the quantum, the spacing of subnormals.
  GT_HD constexpr std::int32_t quantum_exponent() const { return 1 - bias - static_cast<std::int32_t>(mantissa); }
  /// The pattern of 2^e, for exponents of normal floats.
  GT_HD static constexpr std::uint32_t power_bits(std::int32_t e) { return static_cast<std::uint32_t>(127 + e) << 23; }

  /// The code of x, rounded to nearest, ties to even. A NaN becomes some code, because callers mark its block instead.
  GT_HD std::uint32_t nearest(float x) const {
    const std::uint32_t all = bits_of(x);
    const std::uint32_t mag = all & 0x7fffffffu;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    if (bits == 8) {  // E4M3 and E5M2: the GPU's own conversion gives the same bits in fewer instructions
      std::uint16_t two = 0;
      if (mantissa == 3)
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(two) : "f"(0.0f), "f"(x));
      else
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(two) : "f"(0.0f), "f"(x));
      return mag > 0x7f800000u ? max_code | all >> 31 << 7 : two;
    }
#endif
    const std::uint32_t drop = 23 - mantissa;
    const std::uint32_t normal = ((mag + (1u << (drop - 1)) - 1u + (mag >> drop & 1u)) >> drop) -
                                 (static_cast<std::uint32_t>(127 - bias) << mantissa);
    // Adding 2^23 quanta leaves the nearest multiple of the quantum, ties to even, in the low bits of the mantissa.
    const std::uint32_t magic = power_bits(quantum_exponent() + 23);
    const std::uint32_t subnormal = bits_of(float_of(mag) + float_of(magic)) - magic;
    const std::uint32_t code = mag < power_bits(1 - bias) ? subnormal : normal;
    return (code < max_code ? code : max_code) | all >> 31 << (bits - 1);
  }

  /// The code of x, rounded up with a probability equal to the fraction that is cut off, which is unbiased below the
  /// largest value. `draw` is 32 random bits.
  GT_HD std::uint32_t stochastic(float x, std::uint32_t draw) const {
    const std::uint32_t all = bits_of(x);
    const std::uint32_t mag = all & 0x7fffffffu;
    const std::uint32_t drop = 23 - mantissa;
    const std::uint32_t normal =
        ((mag + (draw >> (32 - drop))) >> drop) - (static_cast<std::uint32_t>(127 - bias) << mantissa);
    // Below the smallest normal value x is less than 2^mantissa <= 8 quanta, so floor(x + u) is exact to 2^-21.
    const float quanta = float_of(mag) * float_of(power_bits(-quantum_exponent()));
    const bool small = mag < power_bits(1 - bias);
    const float up = (small ? quanta : 0.0f) + static_cast<float>(draw >> 8) * 0x1p-24f;
    const std::uint32_t code = small ? static_cast<std::uint32_t>(static_cast<std::int32_t>(up)) : normal;
    return (code < max_code ? code : max_code) | all >> 31 << (bits - 1);
  }

  /// The value of a code, exactly.
  GT_HD float value(std::uint32_t code) const {
    const std::uint32_t sign = code >> (bits - 1) << 31;
    const std::uint32_t mag = code & ((1u << (bits - 1)) - 1u);
    const std::uint32_t normal = (mag << (23 - mantissa)) + (static_cast<std::uint32_t>(127 - bias) << 23);
    const std::uint32_t subnormal = bits_of(static_cast<float>(mag) * float_of(power_bits(quantum_exponent())));
    return float_of(sign | (mag >> mantissa == 0 ? subnormal : normal));
  }
};

inline constexpr SmallFloat kE4M3{3, 7, 0x7e, 8, 8};    ///< largest value 448
inline constexpr SmallFloat kE5M2{2, 15, 0x7b, 8, 15};  ///< largest value 57344
inline constexpr SmallFloat kE3M2{2, 3, 0x1f, 6, 4};    ///< largest value 28
inline constexpr SmallFloat kE2M3{3, 1, 0x1f, 6, 2};    ///< largest value 7.5
inline constexpr SmallFloat kE2M1{1, 1, 0x7, 4, 2};     ///< largest value 6
inline constexpr SmallFloat kE3M0{0, 3, 0x7, 4, 4};     ///< 0 and powers of two from 1/4 to 16

/// MXINT8 of OCP Microscaling: two's complement with 6 fractional bits, from -127/64 to 127/64.
struct SmallFixed {
  std::uint32_t bits = 8;
  std::int32_t largest_exponent = 0;

  GT_HD static std::uint32_t clamped(std::int32_t q) {
    const std::int32_t low = q < -127 ? -127 : q;
    return static_cast<std::uint32_t>(low > 127 ? 127 : low) & 0xffu;
  }
  /// The code of x for |x| <= 2^15, rounded to nearest, ties to even. A NaN becomes some code.
  GT_HD std::uint32_t nearest(float x) const {
    const float magic = 0x1.8p17f;  // The spacing of floats of this size is 2^-6.
    return clamped(static_cast<std::int32_t>(bits_of(x + magic)) - static_cast<std::int32_t>(bits_of(magic)));
  }
  /// Has the contract of SmallFloat::stochastic.
  GT_HD std::uint32_t stochastic(float x, std::uint32_t draw) const {
    const float up = x * 64.0f + static_cast<float>(draw >> 8) * 0x1p-24f;
    const float safe = up > -1000.0f && up < 1000.0f ? up : 0.0f;
    const auto whole = static_cast<std::int32_t>(safe);
    return clamped(whole - (static_cast<float>(whole) > safe ? 1 : 0));
  }
  GT_HD float value(std::uint32_t code) const {
    return static_cast<float>(static_cast<std::int32_t>(code << 24) >> 24) * 0x1p-6f;
  }
};

/// A SmallFloat or SmallFixed as the element of a block format (kernels/block_format.hpp). A factor of 0 gives zero
/// with the sign of x, whatever x is.
template <auto Type>
struct SmallFloatElement {
  static constexpr std::uint32_t kBits = Type.bits;

  GT_HD static std::uint32_t encode(float factor, float x) { return Type.nearest(scaled(factor, x)); }
  GT_HD static std::uint32_t encode(float factor, float x, std::uint32_t draw) {
    return Type.stochastic(scaled(factor, x), draw);
  }
  GT_HD static float decode(std::uint32_t code) { return Type.value(code); }

 private:
  GT_HD static float scaled(float factor, float x) {
    return factor > 0.0f ? x * factor : float_of(bits_of(x) & 0x80000000u);
  }
};

}  // namespace gradtool::format
