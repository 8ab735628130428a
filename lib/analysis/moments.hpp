#pragma once

#include <span>

#include "kernels/law/moments.hpp"

namespace gradtool {

/// law::Moments of values on the CPU. A span is taken in two passes (mean, then deviations); spans are joined.
struct Moments : law::Moments {
  void add(std::span<const float> values);
  void merge(const law::Moments& other) { law::join(*this, other); }

  /// Population forms, as scipy.stats gives them by default; meaningful only where `spread()`.
  [[nodiscard]] double variance() const { return m2 / count; }
  [[nodiscard]] double skewness() const;
  [[nodiscard]] double excess_kurtosis() const;
  /// At least two different values.
  [[nodiscard]] bool spread() const { return count > 0 && min < max; }
};

}  // namespace gradtool
