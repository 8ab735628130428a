#include "lib/codecs/sidco_fit.hpp"

#include <algorithm>
#include <cmath>

namespace gradtool {
namespace {

constexpr int kTerms = 300;      // of a series or a continued fraction
constexpr int kBisections = 80;  // halve an interval below the precision of double

double pareto_excess(double mean, double variance, double share) {
  if (!(variance > 0.0)) return mean;  // all magnitudes are the same
  const double ratio = mean * mean / variance;
  const double shape = 0.5 * (1.0 - ratio);
  const double scale = 0.5 * mean * (1.0 + ratio);
  if (std::abs(shape) < 1e-6) return -scale * std::log(share);
  return scale / shape * std::expm1(-shape * std::log(share));
}

/// ln(mean) - mean(ln): 0 where all are the same; the smaller the shape, the larger.
double gamma_shape(double gap) {
  return (3.0 - gap + std::sqrt((gap - 3.0) * (gap - 3.0) + 24.0 * gap)) / (12.0 * gap);
}

double gamma_quantile(double mean, double mean_log, double share) {
  const double gap = std::log(mean) - mean_log;
  if (!(gap > 1e-9)) return mean;  // all magnitudes are the same
  const double shape = gamma_shape(gap);
  double low = 0.0;
  double high = std::max(1.0, shape);
  while (gamma_tail(shape, high) > share && high < 1e9) high *= 2.0;
  for (int i = 0; i < kBisections; ++i) {
    const double middle = 0.5 * (low + high);
    (gamma_tail(shape, middle) > share ? low : high) = middle;
  }
  return high * mean / shape;
}

}  // namespace

double gamma_tail(double shape, double x) {
  if (x <= 0.0) return 1.0;
  const double factor = std::exp(shape * std::log(x) - x - std::lgamma(shape));
  if (x < shape + 1.0) {  // series of the lower tail
    double term = 1.0 / shape;
    double sum = term;
    for (int i = 1; i < kTerms && term > 1e-17 * sum; ++i) {
      term *= x / (shape + i);
      sum += term;
    }
    return std::clamp(1.0 - factor * sum, 0.0, 1.0);
  }
  // Legendre's continued fraction, by Lentz's method.
  double b = x + 1.0 - shape;
  double c = 1e300;
  double d = 1.0 / b;
  double fraction = d;
  for (int i = 1; i < kTerms; ++i) {
    const double a = -i * (i - shape);
    b += 2.0;
    d = 1.0 / (a * d + b);
    c = b + a / c;
    fraction *= c * d;
    if (std::abs(c * d - 1.0) < 1e-16) break;
  }
  return std::clamp(factor * fraction, 0.0, 1.0);
}

double sidco_threshold(SidcoFit fit, const SidcoMoments& moments, double share, double origin) {
  const double mean = moments.sum / moments.count;
  if (share >= 1.0 || !(mean > 0.0)) return origin;
  switch (fit) {
    case SidcoFit::exponential:
      break;
    case SidcoFit::gamma:
      return origin + gamma_quantile(mean, moments.log_sum / moments.count, share);
    case SidcoFit::pareto:
      return origin + pareto_excess(mean, moments.squares / moments.count - mean * mean, share);
  }
  return origin - mean * std::log(share);
}

}  // namespace gradtool
