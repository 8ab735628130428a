#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gradtool {

/// Counts non-negative ratios on a grid of 4096 steps per octave, so that quantiles over any number of values take 8
/// MiB and two histograms join exactly. A quantile is off by at most a share of 2^-13 of itself.
class RatioHistogram {
 public:
  RatioHistogram();
  /// `ratio` >= 0, +infinity included. Rounded to float first; below 1.2e-38 it counts as 0.
  void add(double ratio);
  void merge(const RatioHistogram& other);

  [[nodiscard]] std::uint64_t count() const { return count_; }
  /// The value at rank ceil(q count) in ascending order, 0 < q <= 1. Needs count() > 0.
  [[nodiscard]] double quantile(double q) const;

 private:
  std::vector<std::uint64_t> bins_;
  std::uint64_t count_ = 0;
};

}  // namespace gradtool
