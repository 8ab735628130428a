#pragma once

#include <span>

namespace gradtool {

/// A 95 % interval; an end that the data do not bound is infinite, and both are NaN where there are too few data.
struct Interval {
  double low, high;
};

/// Bounds sum y / sum x over pairs that are drawn alike, by Fieller (J. R. Statist. Soc. B 16, 1954): all t with
/// (my - t mx)^2 <= q^2 (syy - 2 t sxy + t^2 sxx) / n, with means m, sample covariances s, and q Student's quantile of
/// n - 1 degrees of freedom. The upper end is infinite where mx cannot be told from 0. `y` and `x` have the same size;
/// fewer than 3 pairs are too few. For y whose mean is not negative.
[[nodiscard]] Interval interval_of_ratio(std::span<const double> y, std::span<const double> x);

/// Bounds the mean of `count` values with these sums of values and of squares, by Student. Fewer than 2 are too few.
[[nodiscard]] Interval interval_of_mean(double sum, double squares, double count);

}  // namespace gradtool
