#pragma once

#include <cstdint>

namespace gradtool {

/// Distributions of magnitudes that a threshold can be read off (Abdelmoniem et al., SIDCo, MLSys 2021).
enum class SidcoFit : std::uint8_t { exponential, gamma, pareto };

/// What a pass over magnitudes x > 0 tells of them.
struct SidcoMoments {
  double count = 0.0;
  double sum = 0.0;
  double squares = 0.0;
  double log_sum = 0.0;  ///< of the natural logarithms; only the gamma fit looks at it
};

/// The x that a share `share` (0 < share <= 1) of the fitted distribution exceeds, counted from `origin`, which all
/// magnitudes exceed. Moments are those of x - origin.
///   exponential  origin - mean ln share
///   pareto       origin + b/a (share^-a - 1), a = (1 - mean^2/var)/2, b = mean (1 + mean^2/var)/2
///   gamma        the quantile of the gamma distribution whose mean and mean logarithm are those of x (Minka's closed
///                approximation of the shape), found by bisection
[[nodiscard]] double sidco_threshold(SidcoFit fit, const SidcoMoments& moments, double share, double origin);

/// Upper tail of the gamma distribution with scale 1: Q(shape, x), shape > 0, x >= 0.
[[nodiscard]] double gamma_tail(double shape, double x);

}  // namespace gradtool
