#pragma once

#include <cstdint>

#include "kernels/law/half.hpp"
#include "kernels/law/hd.hpp"
#include "kernels/law/keep_nan.hpp"

namespace gradtool::law {

/// The decisions of variance-based gradient compression (Tsuzuku, Imachi, Akiba, 2018, arXiv 1802.06058), one element
/// at a time. r is the sum of mean gradients since the element was last sent, v the sum of squares of the parts that
/// they are means of.
struct Vgc {
  float alpha = 1.0F;
  float zeta = 0.999F;
  float tau = 0.0F;  ///< hybrid with Strom's threshold where positive (Algorithm 2)

  static constexpr std::uint32_t kMagnitude = 0x7fffffffu;
  static constexpr std::uint32_t kInfinity = 0x7f800000u;
  static constexpr std::uint32_t kNotFinite = 255;  ///< the exponent byte of a group that decodes to NaN
  static constexpr std::uint32_t kSteps = 8;        ///< powers of two that the 3 bits of a word reach

  /// Algorithm 1: the sign of r stands out from its noise. A NaN on either side, and an infinite r, are sent, so that
  /// they are seen and the element recovers.
  GT_HD bool sends(float r, float v) const { return !(r * r <= alpha * v) || (bits_of(r) & kMagnitude) >= kInfinity; }
  /// Algorithm 2.
  GT_HD bool sends_hybrid(float r, float v) const {
    const float size = float_of(bits_of(r) & kMagnitude);
    return (size > tau && !(r * r <= alpha * v)) || !(size < float_of(kInfinity));
  }
  /// v falls by what r^2 falls by: old^2 - (|old| - tau)^2.
  GT_HD float v_after_hybrid(float r, float v) const {
    const float left = v - 2.0F * float_of(bits_of(r) & kMagnitude) * tau + tau * tau;
    return left > 0.0F ? left : 0.0F;
  }

  /// An element's state, and whether it is sent.
  struct State {
    float r = 0.0F, v = 0.0F;
  };
  struct Taken {
    float r = 0.0F, v = 0.0F;
    std::uint32_t size = 0;  ///< pattern of |r| before anything is sent
    bool sent = false;
  };
  /// What comes of sums that have taken up a step. The state of a sent element is left to `settle`; the hybrid's is
  /// settled here where it is finite: the sign of what is left is the sign of what was there.
  template <bool Hybrid>
  GT_HD Taken take(float r, float v) const {
    const std::uint32_t size = bits_of(r) & kMagnitude;
    if constexpr (Hybrid) {
      const bool sent = sends_hybrid(r, v);
      const float left = r - float_of(bits_of(tau) | (bits_of(r) & 0x80000000u));
      return {sent ? left : r, sent ? v_after_hybrid(r, v) : v * zeta, size, sent};
    } else {
      const bool sent = sends(r, v);  // a sent r is still needed for its word
      return {r, sent ? v : v * zeta, size, sent};
    }
  }
  /// A sent element afterwards. `fits`: not too small for a word.
  template <bool Hybrid>
  GT_HD State settle(State now, bool fits, bool keeps_dropped) const {
    if (Hybrid && (bits_of(now.r) & kMagnitude) < kInfinity) return now;
    return keeps_dropped && !fits ? State{now.r, now.v * zeta} : State{};
  }

  /// E_k with the bias of binary32, from the pattern of M_k: 0 for subnormals, kNotFinite for what is not finite.
  GT_HD static std::uint32_t exponent(std::uint32_t largest) { return largest >> 23; }

  /// d = E - log2(nearest power of two), ties up, at least 0; kSteps or more means that it is dropped.
  GT_HD static std::uint32_t steps_down(float value, std::uint32_t exponent) {
    const std::uint32_t size = bits_of(value) & kMagnitude;
    if (size < 0x00800000u) return kSteps;
    const std::uint32_t nearest = (size + 0x00400000u) >> 23;
    return nearest >= exponent ? 0 : exponent - nearest;
  }
  GT_HD static std::uint32_t word(float value, std::uint32_t steps, std::uint32_t index) {
    return (bits_of(one_nan(value)) & 0x80000000u) | steps << 28 | index;
  }
  GT_HD static std::uint32_t index_of(std::uint32_t word) { return word & 0x0fffffffu; }
  GT_HD static std::uint32_t steps_of(std::uint32_t word) { return word >> 28 & 7u; }
  /// steps_of(word) < exponent < 255.
  GT_HD static float value_of(std::uint32_t word, std::uint32_t exponent) {
    return float_of((word & 0x80000000u) | (exponent - steps_of(word)) << 23);
  }
};

}  // namespace gradtool::law
