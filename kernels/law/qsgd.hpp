#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/law/half.hpp"
#include "kernels/law/hd.hpp"
#include "kernels/law/philox.hpp"

namespace gradtool::law {

/// QSGD (Alistarh et al., 2017, section 3.1) on one bucket with norm N and s levels: |x| lies between levels l/s*N and
/// (l+1)/s*N and is rounded to one of them so that the expectation is |x|. A code is the level, with the sign above it.
struct Qsgd {
  std::uint32_t bits;    ///< per element, sign included: 2..8
  std::uint32_t levels;  ///< s = 2^(bits-1) - 1

  GT_HD static Qsgd with_bits(std::uint32_t bits) { return {bits, (1u << (bits - 1)) - 1u}; }

  /// Norms below 2^-100 would overflow s/N; such a bucket is sent as zero (documented in the payload format).
  static constexpr float kSmallestNorm = 0x1p-100f;

  /// What is stored for a bucket: 0 when nothing is sent, NaN when an element was not finite.
  GT_HD static float stored_norm(float norm) {
    if (!(norm <= 0x1.fffffep127f)) return float_of(0x7fc00000u);
    return norm < kSmallestNorm ? 0.0f : norm;
  }
  /// s/N, or 0 for a bucket that is sent as zero (or as NaN, where the codes do not matter).
  GT_HD float encode_factor(float stored) const {
    return stored >= kSmallestNorm ? static_cast<float>(levels) / stored : 0.0f;
  }
  /// N/s: what one level is worth.
  GT_HD float decode_factor(float stored) const { return stored / static_cast<float>(levels); }

  /// `u` uniform on [0,1): floor(a + u) is the upper level with probability a - floor(a).
  GT_HD std::uint32_t encode(float factor, float x, float u) const {
    const float magnitude = float_of(bits_of(x) & 0x7fffffffu);
    // The conversion truncates, which is floor for what is not negative; rounding of s/N may lift the sum past s.
    const float level = magnitude * factor + u;
    const auto whole = static_cast<std::uint32_t>(static_cast<std::int32_t>(level < 255.0f ? level : 0.0f));
    const std::uint32_t code = whole < levels ? whole : levels;
    return code | bits_of(x) >> 31 << (bits - 1);
  }

  GT_HD float decode(float factor, std::uint32_t code) const {
    const float magnitude = static_cast<float>(static_cast<std::int32_t>(code & levels)) * factor;
    return float_of(bits_of(magnitude) ^ (code >> (bits - 1) & 1u) << 31);
  }
};

/// A level as the element of a block format (kernels/law/block_format.hpp): the norm is the scale.
template <std::uint32_t Bits>
struct QsgdElement {
  static constexpr std::uint32_t kBits = Bits;
  static constexpr Qsgd kLaw{Bits, (1u << (Bits - 1)) - 1u};

  GT_HD static std::uint32_t encode(float factor, float x, std::uint32_t draw) {
    constexpr Qsgd law = kLaw;
    return law.encode(factor, x, uniform(draw));
  }
  GT_HD static std::uint32_t encode(float factor, float x) {
    constexpr Qsgd law = kLaw;
    return law.encode(factor, x, 0.5f);
  }
  GT_HD static float decode(std::uint32_t code) {
    constexpr Qsgd law = kLaw;
    return law.decode(1.0f, code);
  }
};

/// Lanes of the L2 norm: partial j adds the squares of elements j, j+32, ... in order, then halves are added:
/// 16, 8, 4, 2, 1. The tree is part of the payload format, so CPU and GPU get the same norm.
inline constexpr std::uint32_t kNormLanes = 32;

}  // namespace gradtool::law
