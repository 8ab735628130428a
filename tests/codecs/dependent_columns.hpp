#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/float_bits.hpp"
#include "kernels/low_rank.hpp"
#include "tests/codecs/inputs.hpp"

namespace gradtool::test {

/// Columns of P, column after column, for an orthonormalisation that should drop some of them.
struct DependentColumns {
  static constexpr std::size_t kRank = 8;
  /// Columns 2 and 6 depend on those before them up to rounding, column 4 up to an eighth of the limit; column 5
  /// differs by eight times the limit, and the others are independent.
  static constexpr bool kDropped[kRank] = {false, false, true, false, true, false, true, false};

  /// Makes them like a product of a matrix of `rows` x `columns`. The elements are at most 4 units in the last place
  /// off; `draw` says in which way.
  DependentColumns(std::size_t rows, std::size_t columns, std::uint32_t draw) : p(kRank * rows) {
    const double limit = std::sqrt(format::dependent_share_squared(columns));
    std::vector<double> x[kRank];
    for (std::size_t j = 0; j < kRank; ++j) x[j] = normal(rows, static_cast<std::uint32_t>(31 * rows + j));
    for (std::size_t i = 0; i < rows; ++i) {
      x[2][i] = 0.3 * x[0][i] - 1.7 * x[1][i];
      x[4][i] = -3.0 * x[0][i] + 0.7 * x[3][i] + limit / 8.0 * x[4][i];
      x[5][i] = x[1][i] + 0.5 * x[3][i] + 8.0 * limit * x[5][i];
      x[6][i] = 2.0 * x[1][i];
    }
    for (std::size_t j = 0; j < kRank; ++j) {
      for (std::size_t i = 0; i < rows; ++i) {
        const auto exact = static_cast<float>(std::ldexp(x[j][i], static_cast<int>(5 * j)));
        const auto units = static_cast<int>(9.0F * uniform_at(draw, j * rows + i)) - 4;
        p[j * rows + i] = format::float_of(format::bits_of(exact) + static_cast<std::uint32_t>(units));
      }
    }
  }

  std::vector<float> p;
};

/// Whether all elements of a column are zero.
inline bool is_dropped(const std::vector<float>& p, std::size_t rows, std::size_t column) {
  for (std::size_t i = 0; i < rows; ++i) {
    if (p[column * rows + i] != 0.0F) return false;
  }
  return true;
}

}  // namespace gradtool::test
