#include "lib/analysis/moments.hpp"

#include <algorithm>
#include <cmath>

namespace gradtool {

void Moments::add(std::span<const float> values) {
  if (values.empty()) return;
  law::Moments part;
  part.count = static_cast<double>(values.size());
  part.min = part.max = static_cast<double>(values[0]);
  double sum = 0;
  for (const float value : values) {
    const double x = static_cast<double>(value);
    sum += x;
    part.abs_sum += std::fabs(x);
    part.square_sum += x * x;
    part.min = std::min(part.min, x);
    part.max = std::max(part.max, x);
    part.zeros += x == 0.0 ? 1 : 0;
  }
  part.mean = part.min < part.max ? sum / part.count : part.min;
  for (const float value : values) {
    const double d = static_cast<double>(value) - part.mean;
    const double d2 = d * d;
    part.m2 += d2;
    part.m3 += d2 * d;
    part.m4 += d2 * d2;
  }
  merge(part);
}

double Moments::skewness() const {
  return std::sqrt(count) * m3 / (m2 * std::sqrt(m2));
}

double Moments::excess_kurtosis() const {
  return count * m4 / (m2 * m2) - 3;
}

}  // namespace gradtool
