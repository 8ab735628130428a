#include "lib/bench/statistics.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace gradtool {
namespace {

struct Moments {
  double mean = 0.0;
  double deviation = 0.0;
};

Moments moments(std::span<const double> samples) {
  Moments m;
  for (const double s : samples) m.mean += s;
  m.mean /= static_cast<double>(samples.size());
  for (const double s : samples) m.deviation += (s - m.mean) * (s - m.mean);
  m.deviation = samples.size() < 2 ? 0.0 : std::sqrt(m.deviation / static_cast<double>(samples.size() - 1));
  return m;
}

}  // namespace

Summary summarise(std::span<const double> samples) {
  if (samples.empty()) return {};
  std::vector<double> sorted{samples.begin(), samples.end()};
  std::sort(sorted.begin(), sorted.end());
  const std::size_t n = sorted.size();
  const auto rank95 = static_cast<std::size_t>(std::ceil(0.95 * static_cast<double>(n)));
  const Moments m = moments(samples);
  return {.samples = n,
          .median = n % 2 == 1 ? sorted[n / 2] : 0.5 * (sorted[n / 2 - 1] + sorted[n / 2]),
          .p95 = sorted[std::max<std::size_t>(rank95, 1) - 1],
          .min = sorted.front(),
          .noise = m.mean > 0.0 ? m.deviation / m.mean : 0.0};
}

double relative_error_of_mean(std::span<const double> samples) {
  const Moments m = moments(samples);
  return m.mean > 0.0 ? m.deviation / m.mean / std::sqrt(static_cast<double>(samples.size())) : 0.0;
}

double StopRule::limit(double first_sample_seconds) const {
  return timeout_seconds > 0.0 ? timeout_seconds : std::clamp(20.0 * first_sample_seconds, 0.25, 5.0);
}

bool StopRule::done(std::span<const double> samples, double elapsed_seconds, double limit_seconds) const {
  if (elapsed_seconds >= limit_seconds) return true;
  return samples.size() >= min_samples && relative_error_of_mean(samples) <= max_noise;
}

}  // namespace gradtool
