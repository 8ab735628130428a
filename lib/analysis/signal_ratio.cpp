#include "lib/analysis/signal_ratio.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lib/core/error.hpp"

namespace gradtool {

void SignalRatio::add(double mean_square, double variance_of_mean) {
  if (mean_square == 0 && variance_of_mean == 0) {
    ++undefined_;
  } else {
    histogram_.add(variance_of_mean > 0 ? mean_square / variance_of_mean : std::numeric_limits<double>::infinity());
  }
}

void SignalRatio::add_micro_batches(std::span<const float> gradient, std::span<const float> second_moment,
                                    std::int64_t micro_batches) {
  expects(micro_batches >= 2, "a variance over micro-batches needs at least two of them");
  expects(gradient.size() == second_moment.size(), "a second moment has another size than its gradient");
  // Rounding to bfloat16 moves G^2 and v by less than 2^-7 of themselves; what is further out is not rounding.
  constexpr double kRounding = 1.0 / 64;
  const double k = static_cast<double>(micro_batches);
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const double g = static_cast<double>(gradient[i]), v = static_cast<double>(second_moment[i]);
    const double g2 = g * g;
    ++samples_;
    if (!std::isfinite(v) || k * v < g2 * (1 - kRounding)) {
      ++inconsistent_;
      continue;
    }
    add(g2, std::max(0.0, (k * v - g2) / (k - 1)));
    for (std::size_t a = 0; a < kAlphas.size(); ++a) passed_[a] += g2 > kAlphas[a] * v ? 1 : 0;
  }
}

void SignalRatio::add_workers(std::span<const float> values, std::size_t workers) {
  expects(workers >= 2 && values.size() % workers == 0, "a variance over workers needs at least two of them");
  const std::size_t n = values.size() / workers;
  const double w = static_cast<double>(workers);
  for (std::size_t i = 0; i < n; ++i) {
    double mean = 0, squares = 0;
    for (std::size_t r = 0; r < workers; ++r) mean += static_cast<double>(values[r * n + i]);
    mean /= w;
    for (std::size_t r = 0; r < workers; ++r) {
      const double d = static_cast<double>(values[r * n + i]) - mean;
      squares += d * d;
    }
    const double variance = squares / (w - 1) / w;
    ++samples_;
    add(mean * mean, variance);
    for (std::size_t a = 0; a < kAlphas.size(); ++a) passed_[a] += mean * mean > kAlphas[a] * variance ? 1 : 0;
  }
}

void SignalRatio::merge(const SignalRatio& other) {
  histogram_.merge(other.histogram_);
  samples_ += other.samples_;
  undefined_ += other.undefined_;
  inconsistent_ += other.inconsistent_;
  for (std::size_t a = 0; a < passed_.size(); ++a) passed_[a] += other.passed_[a];
}

double noise_pass_share(std::int64_t samples) {
  expects(samples >= 2, "a variance needs at least two samples");
  // Finite series for whole degrees of freedom (Abramowitz and Stegun 26.7.3 and 26.7.4), at t = 1.
  const std::int64_t freedom = std::min<std::int64_t>(samples - 1, 1000);
  const double theta = std::atan(1 / std::sqrt(static_cast<double>(freedom)));
  const double sine = std::sin(theta), cosine = std::cos(theta), square = cosine * cosine;
  const bool odd = freedom % 2 == 1;
  double term = odd ? cosine : 1.0, sum = odd && freedom == 1 ? 0.0 : term;
  for (std::int64_t i = odd ? 3 : 2; i < freedom; i += 2) {
    term *= square * static_cast<double>(i - 1) / static_cast<double>(i);
    sum += term;
  }
  const double inside = odd ? 2 / std::acos(-1.0) * (theta + sine * sum) : sine * sum;
  return 1 - inside;
}

}  // namespace gradtool
