#pragma once

#include <cstdint>

#include "kernels/float_bits.hpp"

namespace gradtool::format {

/// The arithmetic of variance-based gradient compression (Tsuzuku, Imachi, Akiba, 2018, arXiv 1802.06058), one element
/// at a time. The state of an element is r, the sum of its gradients since it was last sent, and v, the sum of the
/// squares of the parts that these gradients are made of: of the micro-batches' shares where the capture has their
/// second moments, else of the gradients themselves.
struct Vgc {
  float alpha = 1.0F;   ///< an element is sent when r^2 > alpha v
  float zeta = 0.999F;  ///< decay of v, each step, of an element that is held back
  float tau = 0.0F;     ///< threshold of the hybrid (Algorithm 2); 0 for plain VGC (Algorithm 1)

  static constexpr std::uint32_t kSign = 0x80000000u;
  static constexpr std::uint32_t kMagnitude = 0x7fffffffu;
  static constexpr std::uint32_t kInfinity = 0x7f800000u;
  /// The exponent byte of a group whose largest |r| was not finite. All of its words decode to NaN.
  static constexpr std::uint32_t kNotFinite = 255;
  /// Powers of two that the 3 bits of a word tell apart.
  static constexpr std::uint32_t kSteps = 8;
  /// The index bits of a word, plain and hybrid.
  static constexpr std::uint32_t kIndex = 0x0fffffffu, kHybridIndex = 0x7fffffffu;

  [[nodiscard]] GT_HD bool hybrid() const { return tau > 0.0F; }
  [[nodiscard]] GT_HD std::uint32_t index_mask() const { return hybrid() ? kHybridIndex : kIndex; }

  /// Algorithm 1. The comparisons are written so that a NaN in r or v, and an infinite r, are sent: then the other
  /// ranks see them, and the element starts again from 0.
  GT_HD bool sends(float r, float v) const {
    const bool uncertain = r * r <= alpha * v, finite = (bits_of(r) & kMagnitude) < kInfinity;
    return !(uncertain & finite);  // not &&, which compilers make a branch of
  }
  /// Algorithm 2: r must exceed tau as well.
  GT_HD bool sends_hybrid(float r, float v) const {
    const float size = float_of(bits_of(r) & kMagnitude);
    const bool uncertain = r * r <= alpha * v, above = size > tau, finite = size < float_of(kInfinity);
    return !((uncertain | !above) & finite);
  }
  /// The hybrid sends tau of |r|, and lowers v by as much as r^2 falls: |r|^2 - (|r| - tau)^2 = 2 |r| tau - tau^2.
  GT_HD float v_after_hybrid(float r, float v) const {
    const float left = v - 2.0F * float_of(bits_of(r) & kMagnitude) * tau + tau * tau;
    return left > 0.0F ? left : 0.0F;
  }

  struct State {
    float r = 0.0F, v = 0.0F;
  };
  /// The first pass: whether to send an element whose r and v already contain this step's gradient; they become what
  /// is stored. Plain VGC leaves the state of a sent element as it is, because the second pass makes its word from r.
  /// The hybrid takes tau off at once: its word needs nothing but the sign of r, which does not change, since |r| >
  /// tau. Written without branches and without a structure for the result, which keep compilers from vector code.
  template <bool Hybrid>
  GT_HD bool decide(float& r, float& v) const {
    const float held_back = v * zeta;
    if constexpr (Hybrid) {
      const bool sent = sends_hybrid(r, v);
      const float left = r - float_of(bits_of(tau) | (bits_of(r) & kSign)), less = v_after_hybrid(r, v);
      r = sent ? left : r;
      v = sent ? less : held_back;
      return sent;
    } else {
      const bool sent = sends(r, v);
      v = sent ? v : held_back;
      return sent;
    }
  }
  /// The second pass: the state of a chosen element after its word was written. `fits` is false for an element that was
  /// too small for a word; `keeps_dropped` is the parameter dropped=keep.
  template <bool Hybrid>
  GT_HD State after_sending(State state, bool fits, bool keeps_dropped) const {
    if (Hybrid && (bits_of(state.r) & kMagnitude) < kInfinity) return state;  // the first pass has taken tau off
    return keeps_dropped && !fits ? State{state.r, state.v * zeta} : State{};
  }

  /// The exponent byte of a group, E + 127, from the bit pattern of its largest |r|: 0 for a subnormal number,
  /// kNotFinite for infinity and NaN.
  GT_HD static std::uint32_t exponent(std::uint32_t largest) { return largest >> 23; }

  /// d = E - log2(the power of two nearest to |value|), ties up, at least 0. A result of kSteps or more means that the
  /// value is too small for a word.
  GT_HD static std::uint32_t steps_down(float value, std::uint32_t exponent) {
    const std::uint32_t magnitude = bits_of(value) & kMagnitude;
    if (magnitude < 0x00800000u) return kSteps;                     // subnormal
    const std::uint32_t nearest = (magnitude + 0x00400000u) >> 23;  // half a unit of the exponent rounds it
    return nearest >= exponent ? 0 : exponent - nearest;
  }
  /// A word: sign, d, index in the group.
  GT_HD static std::uint32_t word(float value, std::uint32_t steps, std::uint32_t index) {
    return (bits_of(one_nan(value)) & kSign) | steps << 28 | index;
  }
  GT_HD static std::uint32_t steps_of(std::uint32_t word) { return word >> 28 & 7u; }
  /// The value of a word of plain VGC, for steps_of(word) < exponent < kNotFinite.
  GT_HD static float value_of(std::uint32_t word, std::uint32_t exponent) {
    return float_of((word & kSign) | (exponent - steps_of(word)) << 23);
  }
};

}  // namespace gradtool::format
