#pragma once

#include <cmath>

#include "kernels/low_rank.hpp"

namespace gradtool::format {

/// The length that the columns of a matrix's right factor get: 1, or sqrt(rows / columns), which the paper multiplies
/// the learning rate with, where `scaled`.
GT_HD inline double dion_length(const LowRankMatrix& matrix, bool scaled) {
  return scaled ? std::sqrt(static_cast<double>(matrix.rows) / static_cast<double>(matrix.columns)) : 1.0;
}

/// Columns of R that are so many times shorter than the longest are the rounding of float32 products. Made as long as
/// the others they would be a large part of the update.
inline constexpr double kDionShortest = 1e-5;

/// The length of column j of R, or 0 where it is too short to be taken; `lengths` are those of all columns. What is not
/// finite is taken, so that it stays visible.
GT_HD inline double dion_taken(const double* lengths, std::size_t rank, std::size_t j) {
  double longest = 0.0;
  for (std::size_t k = 0; k < rank; ++k) longest = lengths[k] > longest ? lengths[k] : longest;
  const bool is_short = lengths[j] <= kDionShortest * longest && longest <= 1.7976931348623157e308;
  return is_short ? 0.0 : lengths[j];
}

}  // namespace gradtool::format
