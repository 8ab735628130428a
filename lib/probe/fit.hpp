#pragma once

#include <optional>
#include <span>
#include <vector>

#include "lib/model/statistics.hpp"
#include "lib/probe/pattern.hpp"

namespace gradtool {

/// The times of one size of a pattern.
struct SizeTimes {
  double bytes = 0.0;
  std::vector<double> seconds;      ///< one a sample, in the order in which they were taken
  std::vector<std::size_t> rounds;  ///< how many of them each round took
};

/// The link that explains a pattern's times best.
struct LinkFit {
  Link link;
  std::optional<Interval> alpha, beta;  ///< where they lie with 95 % confidence; needs 5 samples of each size
  std::vector<double> off;              ///< of each size: modelled / lower quartile - 1
  double misfit = 0.0;                  ///< root mean square of those
  std::size_t worst = 0;                ///< the size that is furthest off
  [[nodiscard]] bool fits() const;      ///< no size is off by more than kMostOff
  static constexpr double kMostOff = 0.25;
};

/// Inverts bench's model of the pattern, by relative errors of modelled_seconds against the lower quartile of each
/// size's samples: whatever else the hosts do delays a message and speeds none up, so that the undisturbed quarter
/// tells more of the network than the median. Two weighted means of those errors are made 0: in the one, which decides
/// on alpha, a size counts by the square of the share that latency has in its time, in the other, which decides on
/// beta, by the square of its share of the largest size. So small messages give alpha, the largest beta, and what lies
/// between, where protocols change and buffers flatter, neither. alpha is 0 at least. Where times do not grow with the
/// size, beta is the rate of the largest.
///
/// Intervals are by a bootstrap that draws rounds, the same for all sizes, and then samples within them; they know of
/// noise and not of misfit. The same for the same input. Sizes ascend; there are two at least, each with a sample.
[[nodiscard]] LinkFit fit_link(Pattern pattern, std::span<const SizeTimes> sizes, int ranks);

}  // namespace gradtool
