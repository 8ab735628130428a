#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/float_bits.hpp"
#include "lib/analysis/analysis.hpp"
#include "lib/core/words.hpp"

namespace gradtool::format {

/// Moments of a set of values in double precision: their number, mean and sums of powers of deviations, and some sums
/// that the same pass over the values gives. Without values all members are 0.
struct CentralMoments {
  double count = 0, mean = 0;
  double m2 = 0, m3 = 0, m4 = 0;  ///< sum of (x - mean)^p
  double min = 0, max = 0;
  double abs_sum = 0, square_sum = 0;
  std::uint64_t zeros = 0;  ///< values that are exactly 0
};

/// mine := the moments of both sets of values, by the update formulas of Chan and Pebay (P. Pebay, SAND2008-6212),
/// which do not subtract sums of squares from each other and so lose no precision.
GT_HD inline void join(CentralMoments& mine, const CentralMoments& other) {
  if (other.count == 0) return;
  if (mine.count == 0) {
    mine = other;
    return;
  }
  const double na = mine.count, nb = other.count, n = na + nb;
  const double delta = other.mean - mine.mean;
  const double d = delta / n;
  mine.m4 += other.m4 + delta * d * d * d * na * nb * (na * na - na * nb + nb * nb) +
             6 * d * d * (na * na * other.m2 + nb * nb * mine.m2) + 4 * d * (na * other.m3 - nb * mine.m3);
  mine.m3 += other.m3 + delta * d * d * na * nb * (na - nb) + 3 * d * (na * other.m2 - nb * mine.m2);
  mine.m2 += other.m2 + delta * d * na * nb;
  mine.mean += d * nb;
  mine.count = n;
  mine.min = other.min < mine.min ? other.min : mine.min;
  mine.max = other.max > mine.max ? other.max : mine.max;
  mine.abs_sum += other.abs_sum;
  mine.square_sum += other.square_sum;
  mine.zeros += other.zeros;
}

/// The squared mean of one element over some samples, and how uncertain that mean is.
struct SignalSample {
  double mean_square = 0;
  double variance = 0;     ///< estimated variance of the mean
  double threshold = 0;    ///< the element passes alpha when mean_square > alpha * threshold
  bool consistent = true;  ///< false when no samples can have these numbers
};

/// The sample of one worker's gradient g and second moment v over k >= 2 micro-batches (Tsuzuku, Imachi, Akiba 2018).
/// Rounding to bfloat16 changes g^2 and v by relative amounts below 2^-7; a larger contradiction between them is not
/// due to rounding. A smaller one leaves no variance: docs/analysis.md says how often that happens at k = 2.
GT_HD inline SignalSample sample_of_micro_batches(float gradient, float second_moment, double k) {
  constexpr double kRounding = 1.0 / 64;
  const double g = static_cast<double>(gradient), v = static_cast<double>(second_moment);
  const double g2 = g * g;
  const double spread = (k * v - g2) / (k - 1);
  const bool finite = v - v == 0;
  return {g2, spread > 0.0 ? spread : 0.0, v, finite && !(k * v < g2 * (1 - kRounding))};
}

/// The sample of w >= 2 workers' gradients, given their mean and the sum of squared deviations from it.
GT_HD inline SignalSample sample_of_workers(double mean, double squares, double w) {
  const double variance = squares / (w - 1) / w;
  return {mean * mean, variance, variance, true};
}

// The bit pattern of a non-negative float grows with its value. So the exponent and the leading mantissa bits of a
// ratio are the number of its bin in a histogram with 4096 bins per octave. Ratios below the normal numbers count as 0.
inline constexpr int kRatioDroppedBits = 23 - 12;
inline constexpr std::uint32_t kRatioInfinity = 0x7f800000U;
inline constexpr std::uint32_t kRatioBins = (kRatioInfinity >> kRatioDroppedBits) + 1;

/// The bin of a ratio >= 0, which may be +infinity. The ratio is rounded to float first.
GT_HD inline std::uint32_t ratio_bin(double ratio) {
  constexpr double kLargest = 3.4028234663852886e38;
  constexpr std::uint32_t kSmallestNormal = 0x00800000U;
  const std::uint32_t bits = ratio > kLargest ? kRatioInfinity : bits_of(static_cast<float>(ratio));
  return bits < kSmallestNormal ? 0 : bits >> kRatioDroppedBits;
}

/// The bin of mean_square / variance; the ratio is +infinity when the variance is 0.
GT_HD inline std::uint32_t ratio_bin(const SignalSample& sample) {
  return sample.variance > 0 ? ratio_bin(sample.mean_square / sample.variance) : kRatioInfinity >> kRatioDroppedBits;
}

}  // namespace gradtool::format

namespace gradtool {

/// Computes format::CentralMoments on the CPU. Each span is read in two passes, for the mean and for the deviations
/// from it; then its moments are joined with those of the spans before.
struct DistributionMoments : format::CentralMoments {
  void add(std::span<const float> values);
  void merge(const format::CentralMoments& other) { format::join(*this, other); }

  // The population forms of variance, skewness and kurtosis, which are the defaults of scipy.stats. The latter two need
  // spread().
  [[nodiscard]] double variance() const { return m2 / count; }
  [[nodiscard]] double skewness() const;
  [[nodiscard]] double excess_kurtosis() const;
  /// True when there are at least two different values.
  [[nodiscard]] bool spread() const { return count > 0 && min < max; }
};

/// A histogram of non-negative ratios with 4096 bins per octave. It takes 8 MiB for any number of values, and two
/// histograms can be added exactly. The relative error of a quantile is at most 2^-13.
class RatioHistogram {
 public:
  /// Adds a ratio >= 0, which may be +infinity. It is rounded to float first; below 1.2e-38 it counts as 0.
  void add(double ratio) { add_bin(format::ratio_bin(ratio)); }
  void add_bin(std::uint32_t bin);
  /// Adds counts[b] ratios to each bin b of the format::kRatioBins bins.
  void add_counts(std::span<const std::uint64_t> counts);
  void merge(const RatioHistogram& other);

  [[nodiscard]] std::uint64_t count() const { return count_; }
  /// The value at rank ceil(q count) in ascending order, 0 < q <= 1. Needs count() > 0.
  [[nodiscard]] double quantile(double q) const;

 private:
  void spread();  ///< from `few_` to `bins_`

  /// The bins of single ratios while there are few, since models have tens of thousands of small tensors; then empty.
  std::vector<std::uint32_t> few_;
  std::vector<std::uint64_t> bins_;  ///< empty until there are more
  std::uint64_t count_ = 0;
};

/// The thresholds alpha for which the share of elements that pass is reported.
inline constexpr std::array<double, 3> kAlphas{1.0, 1.5, 2.0};

/// How far the mean of an element stands out of its noise: ratio = mean^2 / (estimated variance of that mean).
///
/// From micro-batches (G the worker's mean gradient, v = sum over K micro-batches of (their mean / K)^2, as stored):
/// ratio = (K - 1) G^2 / (K v - G^2), and an element passes alpha when G^2 > alpha v, the test of variance-based
/// gradient compression (Tsuzuku, Imachi, Akiba 2018). From workers (mean m of W gradients, s^2 their unbiased
/// variance): ratio = m^2 / (s^2 / W), and it passes when m^2 > alpha s^2 / W. At alpha = 1 the two tests are the same
/// function of the samples; elsewhere a threshold a on the ratio of K samples is alpha = a K / (K - 1 + a).
class SignalRatio {
 public:
  /// Adds one worker's gradient and second moment of the same elements; K >= 2.
  void add_micro_batches(std::span<const float> gradient, std::span<const float> second_moment,
                         std::int64_t micro_batches);
  /// Adds the gradients of W >= 2 workers for the same n elements; that of worker w begins at values[w * n].
  void add_workers(std::span<const float> values, std::size_t workers);
  /// Counts that were made elsewhere. `bins` holds the number of ratios in each of the format::kRatioBins bins.
  struct Counts {
    std::uint64_t samples = 0, undefined = 0, inconsistent = 0;
    std::array<std::uint64_t, kAlphas.size()> passed{};
  };
  void add(std::span<const std::uint64_t> bins, const Counts& counts);
  void merge(const SignalRatio& other);

  [[nodiscard]] const RatioHistogram& histogram() const { return histogram_; }
  [[nodiscard]] std::uint64_t samples() const { return samples_; }
  /// The number of samples whose mean and variance are both 0, so that the ratio is 0/0. They pass no threshold.
  [[nodiscard]] std::uint64_t undefined() const { return undefined_; }
  /// The number of samples whose stored second moment is not finite or below G^2 / K, which no micro-batches can give
  /// but an underflow in half precision can. They have no ratio and count neither as passing nor as failing.
  [[nodiscard]] std::uint64_t inconsistent() const { return inconsistent_; }
  [[nodiscard]] std::uint64_t passed(std::size_t alpha) const { return passed_.at(alpha); }

 private:
  void add(const format::SignalSample& sample);

  RatioHistogram histogram_;
  std::uint64_t samples_ = 0, undefined_ = 0, inconsistent_ = 0;
  std::array<std::uint64_t, kAlphas.size()> passed_{};
};

/// The share of elements whose mean^2 / variance of that mean would be above `ratio` if their gradients were pure
/// normal noise: the probability that t^2 > ratio for Student's t with samples - 1 degrees of freedom. Needs samples
/// >= 2.
[[nodiscard]] double noise_pass_share(std::int64_t samples, double ratio = 1.0);
/// The ratio that a share of such elements stays below. `share` is between 0 and 1, both excluded.
[[nodiscard]] double noise_ratio_quantile(std::int64_t samples, double share);

/// The samples behind a mean and a variance: the micro-batches of the stored second moment, the workers, or none (one
/// worker and no second moment).
enum class VarianceSource : std::uint8_t { second_moment, workers, none };
[[nodiscard]] VarianceSource source_of(const Scope& scope, const TensorInfo& tensor);
constexpr auto spellings(VarianceSource) {
  return words("second_moment", "workers", "none");
}

/// The sums of the variance analysis, on the CPU or on a GPU.
class VarianceAccumulator : public Accumulator {
 public:
  void merge(const Accumulator& other) override;
  [[nodiscard]] VarianceSource source() const { return source_; }
  [[nodiscard]] const DistributionMoments& moments() const { return moments_; }
  [[nodiscard]] const SignalRatio& ratio() const { return ratio_; }

 protected:
  explicit VarianceAccumulator(VarianceSource source) : source_{source} {}
  VarianceSource source_;
  DistributionMoments moments_;
  SignalRatio ratio_;
};

}  // namespace gradtool
