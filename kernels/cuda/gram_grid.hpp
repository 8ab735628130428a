#pragma once

#include "kernels/cuda/launch.hpp"

namespace gradtool::cuda {

inline constexpr unsigned kMostGramParts = 64;  ///< into which the columns of a sum are cut

/// Blocks (part of the columns, row).
inline Grid gram_grid(std::size_t columns, std::size_t rows) {
  Grid grid{blocks_for(columns, 4 * kThreads, kMostGramParts)};
  grid.y = static_cast<unsigned>(rows);
  return grid;
}

}  // namespace gradtool::cuda
