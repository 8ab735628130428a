#include "lib/bench/errors.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace gradtool {

void ErrorSums::observe(std::span<const double> x, std::span<const float> y) {
  if (x.empty()) return;
  if (elements == 0) x_min = x_max = x[0];
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double exact = x[i];
    const double got = static_cast<double>(y[i]);
    const double difference = exact - got;
    xx += exact * exact;
    yy += got * got;
    xy += exact * got;
    error += difference * difference;
    largest_error = std::max(largest_error, std::abs(difference));
    x_min = std::min(x_min, exact);
    x_max = std::max(x_max, exact);
    if (got != 0.0) {
      ++kept;
      if ((exact > 0.0 && got > 0.0) || (exact < 0.0 && got < 0.0)) ++sign_agreements;
    } else if (exact != 0.0) {
      ++zeroed;
    }
  }
  elements += x.size();
}

void ErrorSums::merge(const ErrorSums& other) {
  if (other.elements == 0) return;
  x_min = elements == 0 ? other.x_min : std::min(x_min, other.x_min);
  x_max = elements == 0 ? other.x_max : std::max(x_max, other.x_max);
  elements += other.elements;
  xx += other.xx;
  yy += other.yy;
  xy += other.xy;
  error += other.error;
  largest_error = std::max(largest_error, other.largest_error);
  sign_agreements += other.sign_agreements;
  kept += other.kept;
  zeroed += other.zeroed;
}

double ErrorSums::nmse() const {
  if (xx > 0.0) return error / xx;
  return error == 0.0 ? 0.0 : std::numeric_limits<double>::infinity();
}

double ErrorSums::snr_db() const {
  return -10.0 * std::log10(nmse());
}

std::optional<double> ErrorSums::cosine() const {
  if (xx == 0.0 || yy == 0.0) return std::nullopt;
  return xy / (std::sqrt(xx) * std::sqrt(yy));
}

std::optional<double> ErrorSums::relative_bias() const {
  if (xx == 0.0) return std::nullopt;
  return xy / xx - 1.0;
}

std::optional<double> ErrorSums::sign_agreement() const {
  if (kept == 0) return std::nullopt;
  return static_cast<double>(sign_agreements) / static_cast<double>(kept);
}

double ErrorSums::zeroed_fraction() const {
  return elements == 0 ? 0.0 : static_cast<double>(zeroed) / static_cast<double>(elements);
}

std::optional<double> ErrorSums::nrmse() const {
  if (elements == 0 || !(x_max > x_min)) return std::nullopt;
  return std::sqrt(error / static_cast<double>(elements)) / (x_max - x_min);
}

std::optional<double> ErrorSums::psnr_db() const {
  const auto ratio = nrmse();
  if (!ratio) return std::nullopt;
  return -20.0 * std::log10(*ratio);
}

}  // namespace gradtool
