#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace gradtool {

/// Distributions that are fitted to the values of one gradient.
enum class Fit : std::uint8_t { normal, laplace, generalised_normal, student_t };
inline constexpr std::array kFitNames{"normal", "laplace", "generalised normal", "student t"};

/// A fitted distribution: location m, scale s > 0 and, for two of them, a shape.
///   normal:             exp(-(x-m)^2 / (2 s^2)); m the mean, s the standard deviation (divisor n)
///   laplace:            exp(-|x-m| / s); m the median, s the mean of |x-m|: both of maximum likelihood
///   generalised normal: exp(-(|x-m| / s)^shape); m the mean, shape from E|x-m|^2 / (E|x-m|)^2 =
///                       G(1/b) G(3/b) / G(2/b)^2 (Mallat 1989), kept within [0.1, 20]
///   student t:          shape nu degrees of freedom, m the median; nu and s from the mean and the variance of log|x-m|
///                       over the values that are not m: trigamma(nu/2) = 4 var - trigamma(1/2), and mean = log s +
///                       (digamma(1/2) - digamma(nu/2) + log nu) / 2. Unlike the kurtosis they exist for every nu.
///                       nu is infinite if the variance is that of a normal distribution or less.
struct Fitted {
  double location = 0, scale = 0, shape = 0;
  double distance = 0;  ///< Kolmogorov's, over at most 1024 evenly spaced ranks

  /// The share of the distribution at or below x. scale > 0.
  [[nodiscard]] double cumulative(Fit fit, double x) const;
};

/// The fit to values in ascending order, not all equal. O(n).
[[nodiscard]] Fitted fit_values(Fit fit, std::span<const float> sorted);

/// Hill's estimate of 1/alpha, where P(|x| > t) falls as t^-alpha, from the `count` largest of n > count magnitudes in
/// ascending order: the mean of log(|x| / t) over them, t the largest one below. The threshold must be above 0.
[[nodiscard]] double hill(std::span<const float> sorted_magnitudes, std::size_t count);

}  // namespace gradtool
