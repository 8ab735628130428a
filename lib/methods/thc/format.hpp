#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/bitpack.hpp"
#include "kernels/float_bits.hpp"

namespace gradtool::format {

/// The values of THC's codes. A rotated element, about normal with variance 1, is clamped to [-t, t], and that interval
/// is mapped to a scale from 0 to `top`. Code q is the whole number value[q] on this scale; values ascend from 0 to
/// `top`, and sums of them over ranks are whole numbers again.
template <std::uint32_t Bits>
struct ThcTable {
  static constexpr std::uint32_t kLevels = 1u << Bits;
  float value[kLevels];
  float width[kLevels - 1];  ///< value[q + 1] - value[q]
  float top;
  float t;
};

/// The table of `Bits`-bit codes. The optimal one has the values with the least expected error for a normal number (Li
/// et al., NSDI 2024), where t is the normal distribution's quantile 1 - p/2 for a clamped share p; the uniform one has
/// equal steps. `Bits` is 3 or 4.
template <std::uint32_t Bits>
[[nodiscard]] constexpr ThcTable<Bits> thc_table(bool optimal) {
  static_assert(Bits == 3 || Bits == 4);
  constexpr float kThreeBits[] = {0, 10, 15, 19, 23, 27, 32, 42};
  constexpr float kFourBits[] = {0, 3, 5, 7, 9, 11, 13, 14, 15, 17, 19, 21, 23, 25, 27, 30};
  constexpr double kThousandthClamped = 3.2971933456919635;    // p = 1/1024
  constexpr double kThirtysecondClamped = 2.1538746940614564;  // p = 1/32
  ThcTable<Bits> table{};
  for (std::uint32_t q = 0; q < ThcTable<Bits>::kLevels; ++q) {
    if (!optimal)
      table.value[q] = static_cast<float>(q);
    else
      table.value[q] = Bits == 3 ? kThreeBits[q % 8] : kFourBits[q];
  }
  for (std::uint32_t q = 0; q + 1 < ThcTable<Bits>::kLevels; ++q) table.width[q] = table.value[q + 1] - table.value[q];
  table.top = table.value[ThcTable<Bits>::kLevels - 1];
  table.t = static_cast<float>(optimal && Bits == 4 ? kThirtysecondClamped : kThousandthClamped);
  return table;
}

/// A code and its value.
struct ThcCode {
  std::uint32_t code;
  float value;
};

/// Stochastic rounding of x in [0, top] to a value of the table: between values v and w it goes up to w where the
/// uniform draw u in [0, 1) satisfies v + u (w - v) < x. The loop tests every step instead of searching for the right
/// one: the test always holds for steps below x and never for steps above it.
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

/// A lookup table from the whole part of x to the step of ThcTable that x lies in, for a processor on which a lookup is
/// cheaper than testing every step.
template <std::uint32_t Bits>
struct ThcStepLookup {
  static constexpr std::size_t kMost = 64;
  float value[(1u << Bits) + 1];  ///< -1, which every x exceeds, and then ThcTable's values
  std::uint8_t step[kMost];  ///< for whole w: the q of value[q] <= w < value[q + 1] in ThcTable; the last q for top

  /// Fills entry i of both arrays; for all i below max(kMost, kLevels + 1), in any order.
  GT_HD void set(std::uint32_t i, const ThcTable<Bits>& table) {
    if (i <= ThcTable<Bits>::kLevels) value[i] = i == 0 ? -1.0f : table.value[i - 1];
    if (i >= kMost) return;
    std::uint32_t q = 0;
    while (q + 2 < ThcTable<Bits>::kLevels && table.value[q + 1] <= static_cast<float>(i)) ++q;
    step[i] = static_cast<std::uint8_t>(q);
  }
};

/// thc_encode by lookup, with equal results; top < ThcStepLookup::kMost. The step that x lies in needs the
/// test, and so does the one below it: its threshold may be rounded to its upper end, which x may equal.
template <std::uint32_t Bits>
GT_HD inline ThcCode thc_encode(const ThcStepLookup<Bits>& steps, float x, float u) {
  const std::uint32_t q = steps.step[static_cast<std::uint32_t>(x)];
  const float before = steps.value[q];
  const float low = steps.value[q + 1];
  const float high = steps.value[q + 2];
  const bool reached = x > before + u * (low - before);
  const bool passed = x > low + u * (high - low);
  return {q - 1 + (reached ? 1u : 0u) + (passed ? 1u : 0u), passed ? high : reached ? low : before};
}

/// x clamped to [0, top]; NaN becomes 0.
GT_HD inline float thc_clamp(float x, float top) {
  x = x > 0.0f ? x : 0.0f;
  return x < top ? x : top;
}

/// Elements of a block. Each block is rotated by itself.
inline constexpr std::size_t kThcBlock = 1024;

/// A bucket of n elements in blocks, the last one padded with zeros to a power of two, on `ranks` ranks.
struct ThcShape {
  std::size_t n = 0;
  std::size_t padded = 0;  ///< elements including the padding
  std::size_t ranks = 1;

  ThcShape() = default;
  ThcShape(std::size_t elements, std::size_t rank_count)
      : n{elements},
        padded{elements / kThcBlock * kThcBlock +
               (elements % kThcBlock == 0 ? 0 : std::bit_ceil(elements % kThcBlock))},
        ranks{rank_count} {}

  GT_HD std::size_t blocks() const { return (n + kThcBlock - 1) / kThcBlock; }
  /// Groups of kPackGroup elements. Codes and sums are stored in whole groups.
  GT_HD std::size_t groups() const { return (padded + kPackGroup - 1) / kPackGroup; }
  GT_HD std::size_t block_size(std::size_t block) const {
    const std::size_t left = padded - kThcBlock * block;
    return left < kThcBlock ? left : kThcBlock;
  }
};

/// The norm that all ranks use: the largest of `norms`; NaN where one of them is not finite, 0 where it is below
/// 2^-100, too small to divide by.
GT_HD inline float thc_agreed_norm(const float* norms, std::size_t ranks) {
  float norm = 0.0f;
  for (std::size_t r = 0; r < ranks; ++r) {
    if ((bits_of(norms[r]) & 0x7fffffffu) >= 0x7f800000u) return float_of(0x7fc00000u);
    norm = norms[r] > norm ? norms[r] : norm;
  }
  return norm < 0x1p-100f ? 0.0f : norm;
}

/// How many steps of the scale from 0 to top a difference of 1 between rotated elements is. These have the variance
/// norm² / padded. 0 for norm 0.
template <std::uint32_t Bits>
GT_HD inline double thc_steps_per_unit(const ThcShape& shape, const ThcTable<Bits>& table, float norm) {
  if (norm == 0.0f) return 0.0;
  return sqrt(static_cast<double>(shape.padded)) / static_cast<double>(norm) * static_cast<double>(table.top) /
         (2.0 * static_cast<double>(table.t));
}

/// Factors from an element of a block whose transform is not normalised to steps of the scale, and back.
struct ThcFactors {
  float encode, decode;
};
GT_HD inline ThcFactors thc_factors(double steps, std::size_t block_size) {
  const double root = sqrt(static_cast<double>(block_size));
  return {static_cast<float>(steps / root), steps == 0.0 ? 0.0f : static_cast<float>(1.0 / (steps * root))};
}

/// (sum over ranks - middle) * factor is an element of the mean, to be rotated back by a transform that is not
/// normalised.
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

/// factor * x, with the sign changed where the lowest bit of `flip` is set.
GT_HD inline float thc_turned(float x, float factor, std::uint32_t flip) {
  return float_of(bits_of(factor * x) ^ (flip & 1u) << 31);
}

}  // namespace gradtool::format

namespace gradtool::host {

/// x := H x for the Hadamard matrix H of order `size`, a power of two, not normalised, in natural (Sylvester's) order.
/// Applied twice it gives size * x.
void hadamard(float* x, std::size_t size);

/// Transforms a block of 1024 (format::kThcBlock) with the result in transposed order: as a row-major 32 by 32 matrix,
/// X becomes H32 Xᵀ H32. Applied twice it gives 1024 x. In this order both halves of the work run along whole rows, and
/// one transposition is enough.
void hadamard_block(float* x);

}  // namespace gradtool::host
