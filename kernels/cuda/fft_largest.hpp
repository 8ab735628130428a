#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/device_warp.hpp"
#include "kernels/law/half.hpp"

/// The largest component of what an fft payload keeps, for .cu files.
namespace gradtool::cuda {

/// Pattern without sign.
__device__ inline std::uint32_t largest_of(const schedule::Pair& pair) {
  const std::uint32_t re = law::bits_of(pair.re) & 0x7fffffffu;
  const std::uint32_t im = law::bits_of(pair.im) & 0x7fffffffu;
  return re > im ? re : im;
}

/// *largest := the larger of itself and `own` of all threads of a block, all of which call this.
__device__ inline void block_largest(std::uint32_t own, std::uint32_t* largest) {
  __shared__ std::uint32_t most;
  if (threadIdx.x == 0) most = 0;
  __syncthreads();
  own = __reduce_max_sync(kAllLanes, own);
  if (threadIdx.x % schedule::kLanes == 0) atomicMax(&most, own);
  __syncthreads();
  if (threadIdx.x == 0) atomicMax(largest, most);
}

}  // namespace gradtool::cuda
