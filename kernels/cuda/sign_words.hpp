#pragma once

#include <cstdint>

#include "kernels/cuda/quads.hpp"

namespace gradtool::cuda {

/// The words of a tile of each_tile that starts with element `first` of `count`, whose words start at `words`: a bit is
/// set where an element is below zero. By a whole warp; every word that belongs to the tile is written once. Returns a
/// lane's word, 0 where it has none.
__device__ inline std::uint32_t write_negatives(const float* tile, int first, int count, std::uint32_t* words) {
  constexpr int kWords = kTile / 32;
  const int lane = static_cast<int>(lane_in_warp());
  std::uint32_t mine = 0;
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    const std::uint32_t word = __ballot_sync(kAllLanes, tile[32 * w + lane] < 0.0f ? 1 : 0);
    if (lane == w) mine = word;
  }
  if (lane < kWords && first + 32 * lane < count) words[first / 32 + lane] = mine;
  return mine;
}

}  // namespace gradtool::cuda
