#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/device_warp.hpp"
#include "kernels/cuda/grid.hpp"

namespace gradtool::cuda {

/// The sum of `own` over the kThreads threads of a block, in a fixed tree; every thread gets it. All threads call it.
__device__ inline double block_sum(double own) {
  __shared__ double warps[kThreads / schedule::kLanes];
  for (unsigned half = schedule::kLanes / 2; half > 0; half /= 2) own += __shfl_down_sync(kAllLanes, own, half);
  __syncthreads();  // the call before may still be read
  if (threadIdx.x % schedule::kLanes == 0) warps[threadIdx.x / schedule::kLanes] = own;
  __syncthreads();
  double sum = warps[0];
  for (unsigned w = 1; w < kThreads / schedule::kLanes; ++w) sum += warps[w];
  return sum;
}

struct Extremes {
  double low, high;
};
/// Of the kThreads threads of a block; every thread gets them. All threads call it.
__device__ inline Extremes block_extremes(Extremes own) {
  __shared__ Extremes warps[kThreads / schedule::kLanes];
  for (unsigned half = schedule::kLanes / 2; half > 0; half /= 2) {
    own.low = fmin(own.low, __shfl_down_sync(kAllLanes, own.low, half));
    own.high = fmax(own.high, __shfl_down_sync(kAllLanes, own.high, half));
  }
  __syncthreads();  // the call before may still be read
  if (threadIdx.x % schedule::kLanes == 0) warps[threadIdx.x / schedule::kLanes] = own;
  __syncthreads();
  Extremes all = warps[0];
  for (unsigned w = 1; w < kThreads / schedule::kLanes; ++w)
    all = {fmin(all.low, warps[w].low), fmax(all.high, warps[w].high)};
  return all;
}

}  // namespace gradtool::cuda
