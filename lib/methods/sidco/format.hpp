#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/float_bits.hpp"
#include "lib/codecs/params.hpp"

/// Thresholds from distributions that are fitted to magnitudes (Abdelmoniem et al., SIDCo, MLSys 2021). Elementary
/// functions are the libraries' own, whose last bits differ between CPU and GPU, as do those of the sums: sidco
/// promises equal bytes from run to run on one machine only.
namespace gradtool {

enum class SidcoFit : std::uint8_t { exponential, gamma, pareto };

/// Sums over magnitudes x > 0.
struct SidcoMoments {
  double count = 0.0;
  double sum = 0.0;
  double squares = 0.0;
  double log_sum = 0.0;  ///< of ln x; only the gamma fit needs it

  GT_HD void add(const SidcoMoments& other) {
    count += other.count;
    sum += other.sum;
    squares += other.squares;
    log_sum += other.log_sum;
  }
};

namespace format {

inline constexpr double kSidcoShare = 0.25;  ///< of the elements it looks at, what each stage but the last lets pass

/// Stages until kSidcoShare^stages is the ratio.
inline int sidco_stages(double ratio) {
  const double needed = std::log(ratio) / std::log(kSidcoShare);
  return needed <= 1.0 ? 1 : static_cast<int>(std::ceil(needed - 1e-9));
}

/// The magnitude that a share `share` of a generalised Pareto distribution with this mean and variance exceeds.
GT_HD inline double pareto_excess(double mean, double variance, double share) {
  if (!(variance > 0.0)) return mean;  // all magnitudes are the same
  const double ratio = mean * mean / variance;
  const double shape = 0.5 * (1.0 - ratio);
  const double scale = 0.5 * mean * (1.0 + ratio);
  if (shape > -1e-6 && shape < 1e-6) return -scale * std::log(share);
  return scale / shape * std::expm1(-shape * std::log(share));
}

/// The share of the gamma distribution with scale 1 that exceeds x: Q(shape, x), shape > 0, x >= 0.
GT_HD inline double gamma_tail(double shape, double x) {
  constexpr int kTerms = 300;  // of a series or a continued fraction
  const auto share = [](double y) { return y < 0.0 ? 0.0 : y > 1.0 ? 1.0 : y; };
  if (x <= 0.0) return 1.0;
  const double factor = std::exp(shape * std::log(x) - x - std::lgamma(shape));
  if (x < shape + 1.0) {  // series of the lower tail
    double term = 1.0 / shape;
    double sum = term;
    for (int i = 1; i < kTerms && term > 1e-17 * sum; ++i) {
      term *= x / (shape + i);
      sum += term;
    }
    return share(1.0 - factor * sum);
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
    const double off = c * d - 1.0;
    if (off < 1e-16 && off > -1e-16) break;
  }
  return share(factor * fraction);
}

/// The shape of the gamma distribution whose ln(mean) - mean(ln) is `gap` > 0, by Minka's closed approximation.
GT_HD inline double gamma_shape(double gap) {
  return (3.0 - gap + std::sqrt((gap - 3.0) * (gap - 3.0) + 24.0 * gap)) / (12.0 * gap);
}

/// The magnitude that a share `share` of the gamma distribution with this mean and mean logarithm exceeds, by
/// bisection.
GT_HD inline double gamma_quantile(double mean, double mean_log, double share) {
  constexpr int kBisections = 80;  // halve an interval below the precision of double
  const double gap = std::log(mean) - mean_log;
  if (!(gap > 1e-9)) return mean;  // all magnitudes are the same
  const double shape = gamma_shape(gap);
  double low = 0.0;
  double high = shape > 1.0 ? shape : 1.0;
  while (gamma_tail(shape, high) > share && high < 1e9) high *= 2.0;
  for (int i = 0; i < kBisections; ++i) {
    const double middle = 0.5 * (low + high);
    if (gamma_tail(shape, middle) > share)
      low = middle;
    else
      high = middle;
  }
  return high * mean / shape;
}

/// The x that a share `share` (0 < share <= 1) of the fitted distribution exceeds, counted from `origin`, which all
/// magnitudes exceed. Moments are those of x - origin.
///   exponential  origin - mean ln share
///   pareto       origin + b/a (share^-a - 1), a = (1 - mean^2/var)/2, b = mean (1 + mean^2/var)/2
///   gamma        the quantile of the gamma distribution whose mean and mean logarithm are those of x (Minka's closed
///                approximation of the shape), found by bisection
GT_HD inline double sidco_threshold(SidcoFit fit, const SidcoMoments& moments, double share, double origin) {
  const double mean = moments.sum / moments.count;
  if (share >= 1.0 || !(mean > 0.0)) return origin;
  if (fit == SidcoFit::gamma) return origin + gamma_quantile(mean, moments.log_sum / moments.count, share);
  if (fit == SidcoFit::pareto)
    return origin + pareto_excess(mean, moments.squares / moments.count - mean * mean, share);
  return origin - mean * std::log(share);
}

/// The threshold from stage to stage: each stage fits the magnitudes that reach the threshold so far, counted from it,
/// and raises it, until the share that is left is the ratio. The threshold is a binary32 pattern: at least 1, because
/// zeros are not sent, and at most that of the largest magnitude, so that something is.
struct SidcoStages {
  std::uint32_t threshold = 1;
  float origin = 0.0F;
  double left = 1.0;  ///< wanted share of the elements that reach the threshold so far; the ratio at the start
  bool done = false;

  /// One stage: the moments of the magnitudes that reach the threshold, less the origin, and their largest pattern.
  /// `elements`: of the gradient, for the first stage; the ratio is a share of them, zeros included.
  GT_HD void advance(SidcoFit fit, const SidcoMoments& moments, std::uint32_t largest, std::size_t elements, bool first,
                     bool last) {
    if (moments.count == 0.0) {
      done = true;
      return;
    }
    if (first) {
      left = left * static_cast<double>(elements) / moments.count;
      if (left > 1.0) left = 1.0;
    }
    const double share = last || left > kSidcoShare ? left : kSidcoShare;
    left /= share;
    const auto next = static_cast<float>(sidco_threshold(fit, moments, share, static_cast<double>(origin)));
    const std::uint32_t pattern = bits_of(next);
    threshold = pattern < threshold ? threshold : pattern > largest ? largest : pattern;
    origin = float_of(threshold);
    done = threshold == largest || left >= 1.0;
  }
};

}  // namespace format

/// The parameters of sidco and what follows from them on both processors.
struct SidcoOptions {
  explicit SidcoOptions(const Params& params)
      : ratio{params.real("ratio")},
        fit{params.is("fit", "gamma")    ? SidcoFit::gamma
            : params.is("fit", "pareto") ? SidcoFit::pareto
                                         : SidcoFit::exponential},
        stages{params.is("stages", "auto") ? format::sidco_stages(ratio) : static_cast<int>(params.integer("stages"))} {
  }

  /// Gamma is fitted once, and what exceeds its threshold as a Pareto tail.
  [[nodiscard]] SidcoFit fit_of(int stage) const {
    return stage > 0 && fit == SidcoFit::gamma ? SidcoFit::pareto : fit;
  }

  double ratio;
  SidcoFit fit;
  int stages;
};

}  // namespace gradtool
