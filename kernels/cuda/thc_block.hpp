#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/device_warp.hpp"

/// How warps work on THC's blocks of 1024 elements, for its .cu files.
namespace gradtool::cuda {

inline constexpr unsigned kThcThreads = 128;  ///< of a block of the grid
inline constexpr unsigned kThcWarps = kThcThreads / schedule::kLanes;

/// Word k of a block's 32, which lie one in every lane.
__device__ inline std::uint32_t word_of_all(std::uint32_t word, int k) {
  return __shfl_sync(kAllLanes, word, k);
}

}  // namespace gradtool::cuda
