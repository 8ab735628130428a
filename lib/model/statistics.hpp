#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace gradtool {

/// The bounds between which something lies with 95 % confidence.
struct Interval {
  double low = 0.0, high = 0.0;
};

/// Percentile bootstrap (Efron 1979) of the median of samples that were taken in rounds, some time apart: rounds are
/// drawn with replacement, then samples within each of them. What changes between rounds, such as another process that
/// comes and goes, so widens the interval as much as it should; samples taken at one go cannot know of it. `rounds` are
/// the numbers of samples of each, in the order of `samples`. Empty for fewer than five samples. The same for the same
/// input. O(400 samples).
[[nodiscard]] std::optional<Interval> median_interval(std::span<const double> samples,
                                                      std::span<const std::size_t> rounds);

/// The probability that a t-distributed variable with so many degrees of freedom (at least 1) is beyond +-t. Exact
/// (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4).
[[nodiscard]] double t_tails(double t, int freedom);

/// Half the width of a 95 % interval of a t-distributed variable, in standard deviations.
[[nodiscard]] double t_quantile(int freedom);

/// The mean of what was measured once for each seed, and where it lies with 95 % confidence (Student's t); no interval
/// for fewer than two.
struct MeanOverSeeds {
  std::size_t count = 0;
  double mean = 0.0;
  std::optional<Interval> interval = {};
};
[[nodiscard]] std::optional<MeanOverSeeds> mean_over_seeds(const std::vector<double>& values);

/// Samples of one quantity in one row, summarised. Computed from all samples; none is thrown away.
struct Summary {
  std::size_t samples = 0;
  double median = 0.0;
  double p95 = 0.0;  ///< nearest rank
  double min = 0.0;
  double noise = 0.0;  ///< standard deviation / mean; 0 for fewer than two samples
};
[[nodiscard]] Summary summarise(std::span<const double> samples);

/// Standard deviation of the mean / mean: what sampling goes on for until it is small enough.
[[nodiscard]] double relative_error_of_mean(std::span<const double> samples);

/// When to stop sampling. Names as in nvbench.
struct StopRule {
  /// More say nothing more about a median, and both looking at them and writing them down would take longer than they
  /// did. Of a share (a round) as of a whole.
  static constexpr std::size_t kMostSamples = 10'000;
  std::size_t min_samples = 20;  ///< even where they are more than kMostSamples
  double max_noise = 0.005;      ///< on relative_error_of_mean
  double timeout_seconds = 0.0;  ///< for one row; at least one sample is taken. 0: see limit()
  double least_seconds = 0.25;   ///< for one row where timeout_seconds is 0, if its noise asks for so much
  double most_seconds = 5.0;     ///< for the same; at least least_seconds
  double part = 1.0;             ///< of that time, see share()

  /// The part of this rule that one of `rounds` has to fulfil, so that all of them together fulfil the whole.
  [[nodiscard]] StopRule share(std::size_t round, std::size_t rounds) const;

  /// The time limit, given how long the first sample took with everything around it. Without a limit of its own a row
  /// may take 20 such samples, but at least least_seconds and at most most_seconds: many for a small capture, a few for
  /// a large one. A share has its part of that.
  [[nodiscard]] double limit(double first_sample_seconds) const;
  [[nodiscard]] bool done(std::span<const double> samples, double elapsed_seconds, double limit_seconds) const;
};

}  // namespace gradtool
