#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/low_rank.hpp"
#include "kernels/rows.hpp"

namespace gradtool::format {

/// The key by which a row is chosen: the sum of squares of its row of P, which lies column after column. Squares are
/// added in float32 from the first column to the last.
GT_HD inline std::uint32_t projected_key(const LowRankMatrix& matrix, const float* p, std::size_t row) {
  float sum = 0.0F;
  for (std::size_t j = 0; j < matrix.rank; ++j) {
    const float value = p[matrix.p_first + j * matrix.rows + row];
    sum += value * value;
  }
  return row_key(sum);
}

}  // namespace gradtool::format
