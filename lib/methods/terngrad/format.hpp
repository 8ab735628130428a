#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/draws.hpp"
#include "kernels/float_bits.hpp"

namespace gradtool::format {

/// TernGrad (Wen et al., 2017, equation 4) with scale s: an element becomes sign(x) with probability min(|x|, s)/s,
/// else 0. The code 0 stands for 0, 1 for +s and 2 for -s.
struct Ternary {
  static constexpr std::uint32_t kPositive = 1;
  static constexpr std::uint32_t kNegative = 2;

  /// Not 0 where u s < |x|. u is below 1 and rounding cannot lift u s to s, so an element of magnitude s or more is
  /// never coded as 0.
  GT_HD static std::uint32_t code(float x, float scale, std::uint32_t draw) {
    const std::uint32_t sent = kPositive + (bits_of(x) >> 31);
    return uniform(draw) * scale < float_of(bits_of(x) & 0x7fffffffu) ? sent : 0u;
  }
  /// The scale of a tensor: min(max |x|, clip sigma), sigma being the standard deviation of its `count` elements. `sum`
  /// and `squares` are the sums of the elements and of their squares, `largest` is the pattern of the largest
  /// magnitude. NaN where an element is not finite. Nothing is clipped where sigma vanishes in the rounding of float64,
  /// or for clip = 0.
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

  /// With pack=base3 a byte holds five codes as the digits of a number in base 3, the first code being the lowest
  /// digit.
  static constexpr std::uint32_t kTrits = 5;
  static constexpr std::uint32_t kLargestByte = 242;
  /// Codes in a 32-bit word.
  GT_HD static constexpr std::size_t codes_in_word(bool base3) { return base3 ? 4 * kTrits : 16; }
  /// 32-bit words that `count` codes fill.
  GT_HD static constexpr std::size_t words(std::size_t count, bool base3) {
    return (count + codes_in_word(base3) - 1) / codes_in_word(base3);
  }
};

/// The five codes of every byte of pack=base3, one code in a byte, in order.
inline constexpr std::array<std::uint64_t, Ternary::kLargestByte + 1> kTritsOfByte = [] {
  std::array<std::uint64_t, Ternary::kLargestByte + 1> table{};
  for (std::uint32_t byte = 0; byte < table.size(); ++byte) {
    std::uint32_t rest = byte;
    for (std::uint32_t i = 0; i < Ternary::kTrits; ++i, rest /= 3) table[byte] |= std::uint64_t{rest % 3} << (8 * i);
  }
  return table;
}();

}  // namespace gradtool::format
