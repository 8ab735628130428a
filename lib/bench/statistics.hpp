#pragma once

#include <cstddef>
#include <span>

namespace gradtool {

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
  std::size_t min_samples = 20;
  double max_noise = 0.005;      ///< on relative_error_of_mean
  double timeout_seconds = 0.0;  ///< for one row; at least one sample is taken. 0: see limit()

  /// The time limit, given how long the first sample took with everything around it. Without a limit of its own a row
  /// may take 20 such samples, but at least 0.25 s and at most 5 s: many for a small capture, a few for a large one.
  [[nodiscard]] double limit(double first_sample_seconds) const;
  [[nodiscard]] bool done(std::span<const double> samples, double elapsed_seconds, double limit_seconds) const;
};

}  // namespace gradtool
