#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/grid.hpp"

namespace gradtool::cuda {

/// The sum of `own` over the kThreads threads of a block, in a fixed tree; every thread gets it. All threads call it.
__device__ inline double block_sum(double own) {
  constexpr unsigned kAll = 0xffffffffu, kWarp = 32;
  __shared__ double warps[kThreads / kWarp];
  for (unsigned half = kWarp / 2; half > 0; half /= 2) own += __shfl_down_sync(kAll, own, half);
  __syncthreads();  // the call before may still be read
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = own;
  __syncthreads();
  double sum = warps[0];
  for (unsigned w = 1; w < kThreads / kWarp; ++w) sum += warps[w];
  return sum;
}

struct Extremes {
  double low, high;
};
/// Of the kThreads threads of a block; every thread gets them. All threads call it.
__device__ inline Extremes block_extremes(Extremes own) {
  constexpr unsigned kAll = 0xffffffffu, kWarp = 32;
  __shared__ Extremes warps[kThreads / kWarp];
  for (unsigned half = kWarp / 2; half > 0; half /= 2) {
    own.low = fmin(own.low, __shfl_down_sync(kAll, own.low, half));
    own.high = fmax(own.high, __shfl_down_sync(kAll, own.high, half));
  }
  __syncthreads();  // the call before may still be read
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = own;
  __syncthreads();
  Extremes all = warps[0];
  for (unsigned w = 1; w < kThreads / kWarp; ++w) all = {fmin(all.low, warps[w].low), fmax(all.high, warps[w].high)};
  return all;
}

}  // namespace gradtool::cuda
