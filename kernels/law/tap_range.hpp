#pragma once

#include <cstddef>

namespace gradtool::law {

/// Taps [first_tap, last_tap) of `filters` rows of `taps` in a gradient, and where they lie in a row that holds them
/// tap by tap: `filters` elements of one, then of the next. A stretch of a tensor that moves as it is has one tap.
struct TapRange {
  std::size_t first = 0;  ///< where the rows start in the gradient
  std::size_t filters = 0, taps = 1;
  std::size_t first_tap = 0, last_tap = 1;
  std::size_t at = 0;         ///< where its first tap starts in the other row
  std::size_t mean_taps = 0;  ///< after so many taps their means repeat; 0: every tap has its own

  [[nodiscard]] std::size_t count() const { return (last_tap - first_tap) * filters; }
};

}  // namespace gradtool::law
