#include "lib/analysis/moments.hpp"

#include <algorithm>
#include <cmath>

namespace gradtool {

void Moments::add(std::span<const float> values) {
  if (values.empty()) return;
  Moments part;
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

void Moments::merge(const Moments& other) {
  if (other.count == 0) return;
  if (count == 0) {
    *this = other;
    return;
  }
  const double na = count, nb = other.count, n = na + nb;
  const double delta = other.mean - mean;
  const double d = delta / n;
  m4 += other.m4 + delta * d * d * d * na * nb * (na * na - na * nb + nb * nb) +
        6 * d * d * (na * na * other.m2 + nb * nb * m2) + 4 * d * (na * other.m3 - nb * m3);
  m3 += other.m3 + delta * d * d * na * nb * (na - nb) + 3 * d * (na * other.m2 - nb * m2);
  m2 += other.m2 + delta * d * na * nb;
  mean += d * nb;
  count = n;
  min = std::min(min, other.min);
  max = std::max(max, other.max);
  abs_sum += other.abs_sum;
  square_sum += other.square_sum;
  zeros += other.zeros;
}

double Moments::skewness() const {
  return std::sqrt(count) * m3 / (m2 * std::sqrt(m2));
}

double Moments::excess_kurtosis() const {
  return count * m4 / (m2 * m2) - 3;
}

}  // namespace gradtool
