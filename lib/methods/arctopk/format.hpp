#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/float_bits.hpp"
#include "lib/methods/powersgd/low_rank.hpp"

namespace gradtool {

/// The rows that are kept of a matrix of the plan, and where they lie. Offsets count elements.
struct KeptRows {
  std::size_t count = 0;          ///< k, 1 to the matrix's rows
  std::size_t first = 0;          ///< of its positions among those of all matrices
  std::size_t message_first = 0;  ///< of its rows in the second message
  std::size_t score_first = 0;    ///< of its rows among those of all matrices
};

namespace format {

/// A key that orders rows by their scores, the sums of squares of a row of P, which lies column after column: greater
/// is kept first. Scores are added in float32 from the first column to the last, and a NaN is above infinity.
GT_HD inline std::uint32_t row_score(const LowRankMatrix& matrix, const float* p, std::size_t row) {
  float sum = 0.0F;
  for (std::size_t j = 0; j < matrix.rank; ++j) {
    const float value = p[matrix.p_first + j * matrix.rows + row];
    sum += value * value;
  }
  const std::uint32_t pattern = bits_of(sum) & 0x7fffffffu;
  return pattern > 0x7f800000u ? 0x7fc00000u : pattern;
}

}  // namespace format
}  // namespace gradtool
