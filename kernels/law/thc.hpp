#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/law/bitpack.hpp"
#include "kernels/law/half.hpp"
#include "kernels/law/hd.hpp"

namespace gradtool::law {

/// What THC's codes stand for: code q is value[q] of a scale of `top` + 1 whole numbers, which covers -t to t of a
/// number that is about normal with variance 1. Values ascend from 0 to `top`, so sums over ranks stay whole numbers.
template <std::uint32_t Bits>
struct ThcTable {
  static constexpr std::uint32_t kLevels = 1u << Bits;
  float value[kLevels];
  float width[kLevels - 1];  ///< value[q + 1] - value[q]
  float top;
  float t;
};

/// A code and its value.
struct ThcCode {
  std::uint32_t code;
  float value;
};

/// Stochastic rounding of x in [0, top] to a value of the table, up where the draw u in [0, 1) is below the share of
/// the step that x has gone. A step that x lies above counts whatever u is, one that it lies below never: no search.
template <std::uint32_t Bits>
GT_HD inline ThcCode thc_encode(const ThcTable<Bits>& table, float x, float u) {
  std::uint32_t code = 0;
  float value = 0.0f;
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
  for (std::uint32_t q = 0; q + 1 < ThcTable<Bits>::kLevels; ++q) {
    const bool above = x > table.value[q] + u * table.width[q];
    code += above ? 1u : 0u;
    value = above ? table.value[q + 1] : value;
  }
  return {code, value};
}

/// The table's steps by the whole numbers that they cover, so that an x finds its own without a search.
template <std::uint32_t Bits>
struct ThcSteps {
  static constexpr std::size_t kMost = 64;
  float value[(1u << Bits) + 1];  ///< value[q + 1] of ThcTable's q; in front of it a value that every x lies above
  std::uint8_t step[kMost];  ///< the q of value[q] <= w < value[q + 1] for every whole w up to top; the last for top

  GT_HD void set(std::uint32_t i, const ThcTable<Bits>& table) {
    if (i <= ThcTable<Bits>::kLevels) value[i] = i == 0 ? -1.0f : table.value[i - 1];
    if (i >= kMost) return;
    std::uint32_t q = 0;
    while (q + 2 < ThcTable<Bits>::kLevels && table.value[q + 1] <= static_cast<float>(i)) ++q;
    step[i] = static_cast<std::uint8_t>(q);
  }
};

/// thc_encode for a table with top < ThcSteps::kMost. All steps below that in front of x's own count: rounding lifts
/// none above the value at which it ends.
template <std::uint32_t Bits>
GT_HD inline ThcCode thc_encode(const ThcSteps<Bits>& steps, float x, float u) {
  const std::uint32_t q = steps.step[static_cast<std::uint32_t>(x)];
  const float before = steps.value[q];
  const float low = steps.value[q + 1];
  const float high = steps.value[q + 2];
  const bool reached = x > before + u * (low - before);
  const bool passed = x > low + u * (high - low);
  return {q - 1 + (reached ? 1u : 0u) + (passed ? 1u : 0u), passed ? high : reached ? low : before};
}

/// [0, top] around the middle, NaN to the middle of nothing: 0.
GT_HD inline float thc_clamp(float x, float top) {
  x = x > 0.0f ? x : 0.0f;
  return x < top ? x : top;
}

/// Elements of a block that is rotated by itself.
inline constexpr std::size_t kThcBlock = 1024;

/// A unit in blocks, the last padded to a power of two, between `ranks` ranks.
struct ThcShape {
  std::size_t n = 0;
  std::size_t padded = 0;  ///< elements with those that pad the last block
  std::size_t ranks = 1;

  GT_HD std::size_t blocks() const { return (n + kThcBlock - 1) / kThcBlock; }
  /// Of kPackGroup elements; codes and sums lie in whole groups.
  GT_HD std::size_t groups() const { return (padded + kPackGroup - 1) / kPackGroup; }
  GT_HD std::size_t block_size(std::size_t block) const {
    const std::size_t left = padded - kThcBlock * block;
    return left < kThcBlock ? left : kThcBlock;
  }
};

/// The norm as all ranks use it, the largest of theirs; not a number where one of them is not finite, and 0 where it is
/// too small to divide by.
GT_HD inline float thc_agreed_norm(const float* norms, std::size_t ranks) {
  float norm = 0.0f;
  for (std::size_t r = 0; r < ranks; ++r) {
    if ((bits_of(norms[r]) & 0x7fffffffu) >= 0x7f800000u) return float_of(0x7fc00000u);
    norm = norms[r] > norm ? norms[r] : norm;
  }
  return norm < 0x1p-100f ? 0.0f : norm;
}

/// Steps of the table in a unit of a rotated element, which has variance norm^2 / padded; 0 for norm 0.
template <std::uint32_t Bits>
GT_HD inline double thc_steps_per_unit(const ThcShape& shape, const ThcTable<Bits>& table, float norm) {
  if (norm == 0.0f) return 0.0;
  return sqrt(static_cast<double>(shape.padded)) / static_cast<double>(norm) * static_cast<double>(table.top) /
         (2.0 * static_cast<double>(table.t));
}

/// What an element of a block is multiplied by before it is rounded, and to get from steps back.
struct ThcFactors {
  float encode, decode;
};
GT_HD inline ThcFactors thc_factors(double steps, std::size_t block_size) {
  const double root = sqrt(static_cast<double>(block_size));
  return {static_cast<float>(steps / root), steps == 0.0 ? 0.0f : static_cast<float>(1.0 / (steps * root))};
}

/// Sums over ranks minus `middle`, times `factor`, are the mean's rotated elements.
struct ThcMean {
  float middle, factor;
};
template <std::uint32_t Bits>
GT_HD inline ThcMean thc_mean(const ThcShape& shape, const ThcTable<Bits>& table, double steps,
                              std::size_t block_size) {
  const auto p = static_cast<double>(shape.ranks);
  const double unit = steps == 0.0 ? 0.0 : 1.0 / (steps * p);
  return {static_cast<float>(p * 0.5 * static_cast<double>(table.top)),
          static_cast<float>(unit / sqrt(static_cast<double>(block_size)))};
}

/// factor x, with its sign changed where the lowest bit of `flip` is set.
GT_HD inline float thc_turned(float x, float factor, std::uint32_t flip) {
  return float_of(bits_of(factor * x) ^ (flip & 1u) << 31);
}

}  // namespace gradtool::law
