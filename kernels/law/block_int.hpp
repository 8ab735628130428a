#pragma once

#include <cstdint>

#include "kernels/law/half.hpp"
#include "kernels/law/hd.hpp"
#include "kernels/law/philox.hpp"

namespace gradtool::law {

/// The scale that a block stores as float32 when its largest magnitude is `largest` (a maximum of patterns, NaN above
/// infinity) and `top` is the largest element value: largest/top, what one unit of an element is worth. 0: nothing is
/// sent, because the inverse might overflow. NaN: an element was not finite, and the block decodes to NaN.
struct BlockScale {
  static constexpr float kSmallest = 0x1p-100f;

  GT_HD static float stored(float largest, float top) {
    if (!(largest <= 0x1.fffffep127f)) return float_of(0x7fc00000u);
    return largest < kSmallest ? 0.0f : largest / top;
  }
  /// What elements are multiplied by before they are rounded; 0 for a block of zeros or NaN.
  GT_HD static float encode_factor(float stored) { return stored > 0.0f ? 1.0f / stored : 0.0f; }
};

/// Signed integers of `Bits` bits in two's complement, symmetric: -Top .. Top, the lowest code unused.
template <std::uint32_t Bits>
struct SymmetricInt {
  static constexpr std::uint32_t kBits = Bits;
  static constexpr std::uint32_t kTop = (1u << (Bits - 1)) - 1u;
  static constexpr float kMax = static_cast<float>(kTop);

  /// Nearest, ties to even: adding 1.5 2^23 leaves the integer in the low mantissa bits. A factor of 0 gives code 0,
  /// whatever x is.
  GT_HD static std::uint32_t encode(float factor, float x) {
    const float y = factor > 0.0f ? x * factor : 0.0f;
    const float above = y < kMax ? y : kMax;
    const float inside = above > -kMax ? above : -kMax;
    return bits_of(inside + 0x1.8p23f) & kMask;
  }
  /// Stochastic: floor(|y| + u) with x's sign.
  GT_HD static std::uint32_t encode(float factor, float x, std::uint32_t draw) {
    const float y = factor > 0.0f ? float_of(bits_of(x) & 0x7fffffffu) * factor : 0.0f;
    const float magnitude = y + uniform(draw);
    const float inside = magnitude < kMax ? magnitude : kMax;
    const auto whole = static_cast<std::uint32_t>(static_cast<std::int32_t>(inside));
    return (bits_of(x) >> 31 != 0 ? 0u - whole : whole) & kMask;
  }
  GT_HD static float decode(std::uint32_t code) {
    return static_cast<float>(static_cast<std::int32_t>(code << (32 - Bits)) >> (32 - Bits));
  }

 private:
  static constexpr std::uint32_t kMask = Bits == 32 ? 0xffffffffu : (1u << Bits) - 1u;
};

/// Integers of `Bits` bits in two's complement with all their codes, as ZeRO++ quantises: the largest magnitude is
/// 2^(Bits-1) units, which only a negative element can reach.
template <std::uint32_t Bits>
struct TwosComplement {
  static constexpr std::uint32_t kBits = Bits;
  static constexpr float kMax = static_cast<float>(1u << (Bits - 1));

  /// Nearest, ties to even, clamped. A factor of 0 gives code 0, whatever x is.
  GT_HD static std::uint32_t encode(float factor, float x) {
    const float y = factor > 0.0f ? x * factor : 0.0f;
    const float above = y < kMax - 1.0f ? y : kMax - 1.0f;
    const float inside = above > -kMax ? above : -kMax;
    return bits_of(inside + 0x1.8p23f) & ((1u << Bits) - 1u);
  }
  /// Not drawn.
  GT_HD static std::uint32_t encode(float factor, float x, std::uint32_t /*draw*/) { return encode(factor, x); }
  GT_HD static float decode(std::uint32_t code) { return SymmetricInt<Bits>::decode(code); }
};

}  // namespace gradtool::law
