#include "lib/model/statistics.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <random>
#include <vector>

namespace gradtool {
namespace {

struct MeanAndDeviation {
  double mean = 0.0;
  double deviation = 0.0;
};

MeanAndDeviation mean_and_deviation(std::span<const double> samples) {
  MeanAndDeviation m;
  for (const double s : samples) m.mean += s;
  m.mean /= static_cast<double>(samples.size());
  for (const double s : samples) m.deviation += (s - m.mean) * (s - m.mean);
  m.deviation = samples.size() < 2 ? 0.0 : std::sqrt(m.deviation / static_cast<double>(samples.size() - 1));
  return m;
}

}  // namespace

std::optional<Interval> median_interval(std::span<const double> samples, std::span<const std::size_t> rounds) {
  constexpr std::size_t kFewest = 5;
  constexpr std::size_t kResamples = 400;
  if (samples.size() < kFewest || rounds.empty()) return std::nullopt;
  std::vector<std::span<const double>> of_round;
  for (std::size_t first = 0; const std::size_t size : rounds) {
    if (size > 0) of_round.push_back(samples.subspan(first, size));
    first += size;
  }
  std::mt19937_64 random{1};
  const auto below = [&random](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  std::vector<double> medians, drawn;
  medians.reserve(kResamples);
  for (std::size_t resample = 0; resample < kResamples; ++resample) {
    drawn.clear();
    for (std::size_t r = 0; r < of_round.size(); ++r) {
      const auto round = of_round[below(of_round.size())];
      for (std::size_t i = 0; i < round.size(); ++i) drawn.push_back(round[below(round.size())]);
    }
    const auto middle = drawn.begin() + static_cast<std::ptrdiff_t>(drawn.size() / 2);
    std::nth_element(drawn.begin(), middle, drawn.end());
    medians.push_back(*middle);
  }
  std::sort(medians.begin(), medians.end());
  return Interval{.low = medians[kResamples / 40], .high = medians[kResamples - 1 - kResamples / 40]};
}

std::optional<MeanOverSeeds> mean_over_seeds(const std::vector<double>& values) {
  if (values.empty()) return std::nullopt;
  const auto n = static_cast<double>(values.size());
  MeanOverSeeds mean{.count = values.size()};
  for (const double value : values) mean.mean += value / n;
  if (values.size() < 2) return mean;
  double squares = 0.0;
  for (const double value : values) squares += (value - mean.mean) * (value - mean.mean);
  const double reach = t_quantile(static_cast<int>(values.size()) - 1) * std::sqrt(squares / (n - 1.0) / n);
  mean.interval = Interval{.low = mean.mean - reach, .high = mean.mean + reach};
  return mean;
}

Summary summarise(std::span<const double> samples) {
  if (samples.empty()) return {};
  std::vector<double> sorted{samples.begin(), samples.end()};
  std::sort(sorted.begin(), sorted.end());
  const std::size_t n = sorted.size();
  const auto rank95 = static_cast<std::size_t>(std::ceil(0.95 * static_cast<double>(n)));
  const MeanAndDeviation m = mean_and_deviation(samples);
  return {.samples = n,
          .median = n % 2 == 1 ? sorted[n / 2] : 0.5 * (sorted[n / 2 - 1] + sorted[n / 2]),
          .p95 = sorted[std::max<std::size_t>(rank95, 1) - 1],
          .min = sorted.front(),
          .noise = m.mean > 0.0 ? m.deviation / m.mean : 0.0};
}

double relative_error_of_mean(std::span<const double> samples) {
  const MeanAndDeviation m = mean_and_deviation(samples);
  return m.mean > 0.0 ? m.deviation / m.mean / std::sqrt(static_cast<double>(samples.size())) : 0.0;
}

double t_tails(double t, int freedom) {
  const double angle = std::atan(std::abs(t) / std::sqrt(static_cast<double>(freedom)));
  const double sine = std::sin(angle), cosine = std::cos(angle), square = cosine * cosine;
  double within = 0.0;
  if (freedom % 2 == 1) {
    double term = cosine, sum = freedom > 1 ? cosine : 0.0;
    for (int i = 3; i < freedom; i += 2) sum += term *= square * static_cast<double>(i - 1) / static_cast<double>(i);
    within = 2.0 / std::numbers::pi * (angle + sine * sum);
  } else {
    double term = 1.0, sum = 1.0;
    for (int i = 2; i < freedom; i += 2) sum += term *= square * static_cast<double>(i - 1) / static_cast<double>(i);
    within = sine * sum;
  }
  return std::max(0.0, 1.0 - within);
}

double t_quantile(int freedom) {
  double low = 1.0, high = 700.0;
  for (int step = 0; step < 60; ++step) {
    const double middle = 0.5 * (low + high);
    (t_tails(middle, freedom) > 0.05 ? low : high) = middle;
  }
  return high;
}

StopRule StopRule::share(std::size_t round, std::size_t rounds) const {
  StopRule one = *this;
  one.min_samples = min_samples * (round + 1) / rounds - min_samples * round / rounds;
  one.max_noise = max_noise * std::sqrt(static_cast<double>(rounds));  // the mean of all is that much better known
  one.part = part / static_cast<double>(rounds);
  return one;
}

double StopRule::limit(double first_sample_seconds) const {
  if (timeout_seconds > 0.0) return part * timeout_seconds;
  return part * std::clamp(20.0 * first_sample_seconds, least_seconds, most_seconds);
}

bool StopRule::done(std::span<const double> samples, double elapsed_seconds, double limit_seconds) const {
  if (elapsed_seconds >= limit_seconds || samples.size() >= std::max(min_samples, kMostSamples)) return true;
  return samples.size() >= min_samples && relative_error_of_mean(samples) <= max_noise;
}

}  // namespace gradtool
