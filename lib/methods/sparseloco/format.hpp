#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/bitpack.hpp"
#include "kernels/float_bits.hpp"

/// The payload of SparseLoCo (arXiv 2508.15706, and Covenant-72B, arXiv 2603.08163): for each chunk a codebook of four
/// values, the positions of what is sent, and 2-bit codes of the values there.
namespace gradtool::format {

inline constexpr std::uint32_t kLocoPositionBits = 12;
inline constexpr std::uint32_t kLocoCodeBits = 2;
inline constexpr std::uint32_t kLocoCodes = 1U << kLocoCodeBits;
/// The bins are those of magnitudes if a chunk has fewer numbers than this: bins over six deviations never separate two
/// numbers, for example.
inline constexpr std::uint32_t kLocoFewest = 16;

/// The record of a chunk of which `kept` values are sent, in 32-bit words: the codebook as bfloat16, packed positions,
/// packed codes.
struct LocoRecord {
  static constexpr std::size_t kPositions = 2;  ///< word at which positions begin

  [[nodiscard]] GT_HD static constexpr std::size_t codes(std::size_t kept) {
    return kPositions + packed_words(kept, kLocoPositionBits);
  }
  [[nodiscard]] GT_HD static constexpr std::size_t words(std::size_t kept) {
    return codes(kept) + packed_words(kept, kLocoCodeBits);
  }
  /// Entry `code` of the codebook.
  [[nodiscard]] GT_HD static float value(const std::uint32_t* record, std::uint32_t code) {
    return f32_from_bf16(static_cast<std::uint16_t>(record[code / 2] >> (16 * (code % 2))));
  }
};

/// Three borders cut the numbers that are sent of a chunk into four bins.
struct LocoBins {
  double border[3];

  [[nodiscard]] GT_HD std::uint32_t code(float x) const {
    const auto value = static_cast<double>(x);
    return (value > border[0] ? 1U : 0U) + (value > border[1] ? 1U : 0U) + (value > border[2] ? 1U : 0U);
  }

  /// `sigma` and not few: equal bins over six standard deviations around the mean, as templar cuts them, of which the
  /// outer two are open. Else: large and small numbers of either sign, where the large ones are above the mean
  /// magnitude. Sums are taken in the order of the numbers.
  [[nodiscard]] GT_HD static LocoBins of(const float* numbers, std::uint32_t count, bool sigma) {
    sigma = sigma && count >= kLocoFewest;
    double sum = 0.0;
    for (std::uint32_t i = 0; i < count; ++i)
      sum += sigma ? static_cast<double>(numbers[i]) : fabs(static_cast<double>(numbers[i]));
    const double mean = sum / count;
    if (!sigma) return {{-mean, 0.0, mean}};
    double squares = 0.0;
    for (std::uint32_t i = 0; i < count; ++i) {
      const double off = static_cast<double>(numbers[i]) - mean;
      squares += off * off;
    }
    const double width = 6.0 * sqrt(squares / (count - 1)) / kLocoCodes;
    return {{mean - 1.5 * width, mean - 0.5 * width, mean + 0.5 * width}};
  }
};

/// The means of what falls into each bin, summed in the order of the numbers.
struct LocoSums {
  double sum[kLocoCodes] = {};
  std::uint32_t members[kLocoCodes] = {};

  GT_HD void add(std::uint32_t code, float x) {
    for (std::uint32_t bin = 0; bin < kLocoCodes; ++bin) {  // constant indices: a GPU keeps the sums in registers
      sum[bin] += bin == code ? static_cast<double>(x) : 0.0;
      members[bin] += bin == code ? 1U : 0U;
    }
  }
  /// The codebook's entry; 0 for a bin without numbers. A mean that is finite stays so.
  [[nodiscard]] GT_HD std::uint16_t entry(std::uint32_t code) const {
    constexpr std::uint16_t kInfinity = 0x7f80;
    if (members[code] == 0) return 0;
    const float mean = one_nan(static_cast<float>(sum[code] / members[code]));
    const std::uint16_t entry = bf16_from_f32(mean);
    return (entry & 0x7fffu) == kInfinity && mean - mean == 0.0f ? static_cast<std::uint16_t>(entry - 1u) : entry;
  }
};

/// The vector from which error feedback sends: beta e + g.
GT_HD inline float loco_carry(float held, float gradient, float beta) {
  return one_nan(beta * held + gradient);
}

/// The square of what a chunk's record decodes to, from how many of its values have each code.
GT_HD inline double loco_energy(const std::uint32_t* record, const std::uint32_t* members) {
  double energy = 0.0;
  for (std::uint32_t code = 0; code < kLocoCodes; ++code) {
    const auto value = static_cast<double>(LocoRecord::value(record, code));
    if (members[code] > 0) energy += members[code] * (value * value);
  }
  return energy;
}

/// The lower median over ranks of the energies of tensor t, which lie `tensors` apart. NaN counts as larger than all.
[[nodiscard]] GT_HD inline double loco_median(const double* energies, std::size_t tensors, std::size_t t,
                                              std::size_t ranks) {
  for (std::size_t r = 0; r < ranks; ++r) {
    const double candidate = energies[r * tensors + t];
    std::size_t below = 0;
    std::size_t equal = 0;
    for (std::size_t other = 0; other < ranks; ++other) {
      below += energies[other * tensors + t] < candidate ? 1 : 0;
      equal += energies[other * tensors + t] == candidate ? 1 : 0;
    }
    if (below <= (ranks - 1) / 2 && (ranks - 1) / 2 < below + equal) return candidate;
  }
  return static_cast<double>(float_of(0x7f800000u));  // half of them are not numbers
}

/// By what a rank's part of a tensor is multiplied so that its norm is at most the limit. A norm that is not a number
/// is left as it is.
GT_HD inline float loco_shrink(double energy, double limit) {
  return energy > limit ? static_cast<float>(sqrt(limit / energy)) : 1.0F;
}

}  // namespace gradtool::format
