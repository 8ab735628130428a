#pragma once

#include <array>
#include <cmath>
#include <cstdint>

#include "kernels/law/half.hpp"
#include "kernels/law/hd.hpp"
#include "kernels/law/philox.hpp"

namespace gradtool::law {

/// TernGrad (Wen et al., 2017, equation 4) with scale s: sign(x) with probability min(|x|, s)/s, else 0.
struct Ternary {
  static constexpr std::uint32_t kPositive = 1;
  static constexpr std::uint32_t kNegative = 2;

  /// u s < |x|: u stays below 1 and rounding cannot lift u s to s, so an element of magnitude s or more is always sent.
  GT_HD static std::uint32_t code(float x, float scale, std::uint32_t draw) {
    const std::uint32_t signed_one = kPositive + (bits_of(x) >> 31);
    return uniform(draw) * scale < float_of(bits_of(x) & 0x7fffffffu) ? signed_one : 0u;
  }
  /// min(max |x|, clip sigma), sigma with the mean taken off, of `count` elements with these sums, `largest` the
  /// pattern of the largest magnitude. NaN where a value is not finite; no clipping where sigma vanishes in float64's
  /// rounding, and none for clip = 0.
  GT_HD static float scale(double sum, double squares, std::uint32_t largest, std::uint64_t count, double clip) {
    if (largest >= 0x7f800000u) return float_of(0x7fc00000u);
    if (clip == 0.0 || count == 0) return float_of(largest);
    const double mean = sum / static_cast<double>(count);
    const double square = squares / static_cast<double>(count);
    const double variance = square - mean * mean;
    if (!(variance > 1e-12 * square)) return float_of(largest);
    const auto clipped = static_cast<float>(clip * sqrt(variance));
    return clipped < float_of(largest) ? clipped : float_of(largest);
  }
  GT_HD static float value(std::uint32_t code) {
    return static_cast<float>(static_cast<std::int32_t>(code & 1u) - static_cast<std::int32_t>(code >> 1));
  }

  /// Five trits in a byte, the first the least: at most 242.
  static constexpr std::uint32_t kTrits = 5;
  static constexpr std::uint32_t kLargestByte = 242;
};

/// The trits of every byte, one a byte, in order.
inline constexpr std::array<std::uint64_t, Ternary::kLargestByte + 1> kTritsOfByte = [] {
  std::array<std::uint64_t, Ternary::kLargestByte + 1> table{};
  for (std::uint32_t byte = 0; byte < table.size(); ++byte) {
    std::uint32_t rest = byte;
    for (std::uint32_t i = 0; i < Ternary::kTrits; ++i, rest /= 3) table[byte] |= std::uint64_t{rest % 3} << (8 * i);
  }
  return table;
}();

}  // namespace gradtool::law
