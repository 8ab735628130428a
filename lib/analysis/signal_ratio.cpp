#include "lib/analysis/signal_ratio.hpp"

#include <algorithm>
#include <cmath>

#include "lib/core/error.hpp"

namespace gradtool {

void SignalRatio::add(const law::SignalSample& sample) {
  ++samples_;
  if (!sample.consistent) {
    ++inconsistent_;
    return;
  }
  if (sample.mean_square == 0 && sample.variance == 0) {
    ++undefined_;
  } else {
    histogram_.add_bin(law::ratio_bin(sample));
  }
  for (std::size_t a = 0; a < kAlphas.size(); ++a) {
    passed_[a] += sample.mean_square > kAlphas[a] * sample.threshold ? 1 : 0;
  }
}

void SignalRatio::add_micro_batches(std::span<const float> gradient, std::span<const float> second_moment,
                                    std::int64_t micro_batches) {
  expects(micro_batches >= 2, "a variance over micro-batches needs at least two of them");
  expects(gradient.size() == second_moment.size(), "a second moment has another size than its gradient");
  const double k = static_cast<double>(micro_batches);
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    add(law::sample_of_micro_batches(gradient[i], second_moment[i], k));
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
    add(law::sample_of_workers(mean, squares, w));
  }
}

void SignalRatio::add(std::span<const std::uint64_t> bins, const Counts& counts) {
  histogram_.add_counts(bins);
  samples_ += counts.samples;
  undefined_ += counts.undefined;
  inconsistent_ += counts.inconsistent;
  for (std::size_t a = 0; a < passed_.size(); ++a) passed_[a] += counts.passed[a];
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
