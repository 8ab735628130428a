#include "lib/analysis/intervals.hpp"

#include <algorithm>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>
#include <cstddef>
#include <limits>

namespace gradtool {
namespace {

constexpr double kUnbounded = std::numeric_limits<double>::infinity();
constexpr Interval kUnknown{std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::quiet_NaN()};

double student(double freedom) {
  return boost::math::quantile(boost::math::students_t{freedom}, 0.975);
}

}  // namespace

Interval interval_of_ratio(std::span<const double> y, std::span<const double> x) {
  const std::size_t count = y.size();
  if (count < 3) return kUnknown;
  const auto n = static_cast<double>(count);
  double my = 0.0, mx = 0.0;
  for (std::size_t i = 0; i < count; ++i) my += y[i] / n, mx += x[i] / n;
  double syy = 0.0, sxy = 0.0, sxx = 0.0;
  for (std::size_t i = 0; i < count; ++i) {
    syy += (y[i] - my) * (y[i] - my) / (n - 1);
    sxy += (y[i] - my) * (x[i] - mx) / (n - 1);
    sxx += (x[i] - mx) * (x[i] - mx) / (n - 1);
  }
  const double q = student(n - 1);
  const double g = q * q / n;
  // a t^2 - 2 b t + c <= 0
  const double a = mx * mx - g * sxx, b = mx * my - g * sxy, c = my * my - g * syy;
  const double root = std::sqrt(std::max(0.0, b * b - a * c));
  const bool bounded = a > 0.0 && mx > 0.0;
  // Ratios outside two roots remain where x may be 0 on the average; the root above 0 is then the low end.
  const double low = bounded || (a < 0.0 && c > 0.0) ? std::max(0.0, (b - root) / a) : 0.0;
  return {low, bounded ? (b + root) / a : kUnbounded};
}

Interval interval_of_mean(double sum, double squares, double count) {
  if (count < 2.0) return kUnknown;
  const double mean = sum / count;
  const double variance = std::max(0.0, squares - sum * mean) / (count - 1.0);
  const double half = student(count - 1.0) * std::sqrt(variance / count);
  return {mean - half, mean + half};
}

}  // namespace gradtool
