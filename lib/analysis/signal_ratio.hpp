#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/law/signal_ratio.hpp"
#include "lib/analysis/ratio_histogram.hpp"

namespace gradtool {

/// The thresholds at which the share of elements that pass is reported.
inline constexpr std::array<double, 3> kAlphas{1.0, 1.5, 2.0};

/// How far an element's mean stands out of its noise: ratio = mean^2 / (estimated variance of that mean).
///
/// From micro-batches (G the worker's mean gradient, v = sum over K micro-batches of (their mean / K)^2, as stored):
/// ratio = (K - 1) G^2 / (K v - G^2), and an element passes alpha when G^2 > alpha v, the test of variance-based
/// gradient compression (Tsuzuku, Imachi, Akiba 2018). From workers (mean m of W gradients, s^2 their unbiased
/// variance): ratio = m^2 / (s^2 / W), and it passes when m^2 > alpha s^2 / W. At alpha = 1 the two tests are the same
/// function of the samples; elsewhere a threshold a on the ratio of K samples is alpha = a K / (K - 1 + a).
class SignalRatio {
 public:
  /// One worker's gradient and second moment of the same elements; K >= 2.
  void add_micro_batches(std::span<const float> gradient, std::span<const float> second_moment,
                         std::int64_t micro_batches);
  /// W >= 2 workers' gradients of the same n elements; worker w's start at values[w * n].
  void add_workers(std::span<const float> values, std::size_t workers);
  /// What was counted elsewhere: how many ratios fell into each bin (law::kRatioBins of them), and the rest.
  struct Counts {
    std::uint64_t samples = 0, undefined = 0, inconsistent = 0;
    std::array<std::uint64_t, kAlphas.size()> passed{};
  };
  void add(std::span<const std::uint64_t> bins, const Counts& counts);
  void merge(const SignalRatio& other);

  [[nodiscard]] const RatioHistogram& histogram() const { return histogram_; }
  [[nodiscard]] std::uint64_t samples() const { return samples_; }
  /// Samples with neither mean nor variance: the ratio is 0/0. They pass no threshold.
  [[nodiscard]] std::uint64_t undefined() const { return undefined_; }
  /// Samples whose stored second moment is not finite or below G^2 / K, which no micro-batches can give (half precision
  /// that underflowed). They have no ratio and count neither as passing nor as failing.
  [[nodiscard]] std::uint64_t inconsistent() const { return inconsistent_; }
  [[nodiscard]] std::uint64_t passed(std::size_t alpha) const { return passed_.at(alpha); }

 private:
  void add(const law::SignalSample& sample);

  RatioHistogram histogram_;
  std::uint64_t samples_ = 0, undefined_ = 0, inconsistent_ = 0;
  std::array<std::uint64_t, kAlphas.size()> passed_{};
};

/// The share of elements that would pass at alpha = 1 if their gradients were nothing but normal noise: the probability
/// that |t| > 1 for Student's t with samples - 1 degrees of freedom. samples >= 2.
[[nodiscard]] double noise_pass_share(std::int64_t samples);

}  // namespace gradtool
