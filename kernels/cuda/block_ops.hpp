#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device_warp.hpp"
#include "kernels/cuda/grid.hpp"

/// What the threads of a block find out together, for .cu files. Blocks have kThreads threads; every thread of a block
/// calls these.
namespace gradtool::cuda {

inline constexpr unsigned kBlockWarpCount = kThreads / schedule::kLanes;

/// Sum over the lanes up to and with this one.
template <class T>
__device__ T warp_sum_through(T own) {
  const unsigned lane = threadIdx.x % schedule::kLanes;
#pragma unroll
  for (unsigned distance = 1; distance < schedule::kLanes; distance *= 2) {
    const T below = __shfl_up_sync(kAllLanes, own, distance);
    if (lane >= distance) own += below;
  }
  return own;
}

/// Sum over the threads up to and with this one; `total` is that over all.
template <class T>
__device__ T block_sum_through(T own, T& total) {
  __shared__ T sums[kBlockWarpCount];
  const unsigned warp = threadIdx.x / schedule::kLanes;
  T through = warp_sum_through(own);
  if (threadIdx.x % schedule::kLanes == schedule::kLanes - 1) sums[warp] = through;
  __syncthreads();
  total = T{};
  for (unsigned w = 0; w < kBlockWarpCount; ++w) {
    if (w < warp) through += sums[w];
    total += sums[w];
  }
  __syncthreads();
  return through;
}

/// values[first] + ... + values[last - 1], added in that order by thread 0, which alone gets it; the others fetch what
/// it adds. For sums whose order is part of a payload.
__device__ inline double block_sum_in_order(const double* values, std::size_t first, std::size_t last) {
  __shared__ double room[kThreads];
  double sum = 0.0;
  for (std::size_t at = first; at < last; at += kThreads) {
    room[threadIdx.x] = at + threadIdx.x < last ? values[at + threadIdx.x] : 0.0;
    __syncthreads();
    if (threadIdx.x == 0) {
      for (std::size_t i = 0; i < kThreads && at + i < last; ++i) sum += room[i];
    }
    __syncthreads();
  }
  return sum;
}

/// True in all threads of the block that is the last to come here, when what the others wrote before is visible to it.
/// Read that memory through volatile pointers. `ticket` is 0 before the kernel starts.
__device__ inline bool last_block(std::uint32_t* ticket) {
  __shared__ std::uint32_t place;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) place = atomicAdd(ticket, 1u);
  __syncthreads();
  const bool last = place == gridDim.x - 1;
  if (last) __threadfence();
  __syncthreads();
  return last;
}

/// The patterns of elements 4i to 4i+3 of n, zeros behind the end.
__device__ inline uint4 four_patterns(const float* x, std::size_t i, std::size_t n, bool aligned) {
  if (aligned && 4 * i + 4 <= n) return reinterpret_cast<const uint4*>(x)[i];
  const auto at = [&](std::size_t j) { return j < n ? __float_as_uint(x[j]) : 0u; };
  return {at(4 * i), at(4 * i + 1), at(4 * i + 2), at(4 * i + 3)};
}

}  // namespace gradtool::cuda
