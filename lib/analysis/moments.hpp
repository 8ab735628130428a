#pragma once

#include <cstdint>
#include <span>

namespace gradtool {

/// Count, mean and central moments of values, in double precision.
///
/// A span is taken in two passes (mean, then deviations); spans are joined by Chan's and Pebay's update formulas
/// (P. Pebay, SAND2008-6212), so no sum of squares is ever subtracted from another.
struct Moments {
  double count = 0, mean = 0;
  double m2 = 0, m3 = 0, m4 = 0;  ///< sum of (x - mean)^p
  double min = 0, max = 0;        ///< of nothing: 0
  double abs_sum = 0, square_sum = 0;
  std::uint64_t zeros = 0;  ///< values that are exactly 0

  void add(std::span<const float> values);
  void merge(const Moments& other);

  /// Population forms, as scipy.stats gives them by default; meaningful only where `spread()`.
  [[nodiscard]] double variance() const { return m2 / count; }
  [[nodiscard]] double skewness() const;
  [[nodiscard]] double excess_kurtosis() const;
  /// At least two different values.
  [[nodiscard]] bool spread() const { return count > 0 && min < max; }
};

}  // namespace gradtool
