#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/law/signal_ratio.hpp"

namespace gradtool {

/// Counts non-negative ratios on a grid of 4096 steps per octave, so that quantiles over any number of values take 8
/// MiB and two histograms join exactly. A quantile is off by at most a share of 2^-13 of itself.
class RatioHistogram {
 public:
  RatioHistogram();
  /// `ratio` >= 0, +infinity included. Rounded to float first; below 1.2e-38 it counts as 0.
  void add(double ratio) { add_bin(law::ratio_bin(ratio)); }
  void add_bin(std::uint32_t bin);
  /// As many ratios as `counts` says for each of the law::kRatioBins bins.
  void add_counts(std::span<const std::uint64_t> counts);
  void merge(const RatioHistogram& other);

  [[nodiscard]] std::uint64_t count() const { return count_; }
  /// The value at rank ceil(q count) in ascending order, 0 < q <= 1. Needs count() > 0.
  [[nodiscard]] double quantile(double q) const;

 private:
  std::vector<std::uint64_t> bins_;
  std::uint64_t count_ = 0;
};

}  // namespace gradtool
