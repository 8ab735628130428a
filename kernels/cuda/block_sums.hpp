#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/quads.hpp"
#include "kernels/cuda/warp.hpp"
#include "kernels/sums.hpp"

/// Sums over the threads of a block, and over chunks in the order of kernels/sums.hpp. For .cu files.
namespace gradtool::cuda {

/// The sum of `own` over the kThreads threads of a block, in a fixed tree; every thread gets it. All threads call it.
__device__ inline double block_sum(double own) {
  __shared__ double warps[kThreads / kWarpSize];
  for (unsigned half = kWarpSize / 2; half > 0; half /= 2) own += __shfl_down_sync(kAllLanes, own, half);
  __syncthreads();  // some thread may still read the result of an earlier call
  if (threadIdx.x % kWarpSize == 0) warps[threadIdx.x / kWarpSize] = own;
  __syncthreads();
  double sum = warps[0];
  for (unsigned w = 1; w < kThreads / kWarpSize; ++w) sum += warps[w];
  return sum;
}

struct Extremes {
  double low, high;
};
/// The extremes over the kThreads threads of a block; every thread gets them. All threads call it.
__device__ inline Extremes block_extremes(Extremes own) {
  __shared__ Extremes warps[kThreads / kWarpSize];
  for (unsigned half = kWarpSize / 2; half > 0; half /= 2) {
    own.low = fmin(own.low, __shfl_down_sync(kAllLanes, own.low, half));
    own.high = fmax(own.high, __shfl_down_sync(kAllLanes, own.high, half));
  }
  __syncthreads();  // some thread may still read the result of an earlier call
  if (threadIdx.x % kWarpSize == 0) warps[threadIdx.x / kWarpSize] = own;
  __syncthreads();
  Extremes all = warps[0];
  for (unsigned w = 1; w < kThreads / kWarpSize; ++w)
    all = {fmin(all.low, warps[w].low), fmax(all.high, warps[w].high)};
  return all;
}

/// Threads of a block whose warps add up chunks: few, so that even a small number of chunks keeps many multiprocessors
/// busy.
inline constexpr unsigned kChunkThreads = 128;
inline constexpr unsigned kChunkWarps = kChunkThreads / kWarpSize;

/// Groups that a block adds up at once, for each of K sums.
template <unsigned K>
inline constexpr unsigned kGroupsAtOnce = kThreads / K;

/// The shared memory of sums_of_chunks.
template <unsigned K>
struct ChunkSumsShared {
  double group[K][kGroupsAtOnce<K>];
  double total[K];
};

/// sums[k] := the sum of values[k * stride + first .. k * stride + last), in all threads of a block of kThreads. A
/// thread adds up a group; then one thread for each k adds the groups.
template <unsigned K>
__device__ void sums_of_chunks(const double* values, std::size_t stride, std::size_t first, std::size_t last,
                               ChunkSumsShared<K>& shared, double (&sums)[K]) {
  static_assert(kThreads % K == 0 && K <= kThreads / kWarpSize);
  const unsigned k = threadIdx.x / kGroupsAtOnce<K>;
  const unsigned own = threadIdx.x % kGroupsAtOnce<K>;
  // The k for which this thread adds the sums of groups, if it is the first lane of a warp.
  const unsigned adds = threadIdx.x / kWarpSize;
  double total = 0.0;
  for (std::size_t base = first; base < last; base += format::kSumGroup * kGroupsAtOnce<K>) {
    const std::size_t from = base + format::kSumGroup * own;
    const std::size_t left = from < last ? last - from : 0;
    const auto count = static_cast<unsigned>(left < format::kSumGroup ? left : format::kSumGroup);
    const double* const own_values = values + k * stride + from;
    double sum = 0.0;
    unsigned i = 0;
    // Loads of several values before the additions, which wait for each other, or each load would wait for one.
    constexpr unsigned kAtOnce = 16;
    for (; i + kAtOnce <= count; i += kAtOnce) {
      double ahead[kAtOnce];
#pragma unroll
      for (unsigned j = 0; j < kAtOnce; ++j) ahead[j] = own_values[i + j];
#pragma unroll
      for (unsigned j = 0; j < kAtOnce; ++j) sum += ahead[j];
    }
    for (; i < count; ++i) sum += own_values[i];
    shared.group[k][own] = sum;
    __syncthreads();
    if (adds < K && threadIdx.x % kWarpSize == 0) {
      const std::size_t groups = (last - base + format::kSumGroup - 1) / format::kSumGroup;
      const auto here = static_cast<unsigned>(groups < kGroupsAtOnce<K> ? groups : kGroupsAtOnce<K>);
#pragma unroll 16
      for (unsigned g = 0; g < here; ++g) total += shared.group[adds][g];
    }
    __syncthreads();
  }
  if (adds < K && threadIdx.x % kWarpSize == 0) shared.total[adds] = total;
  __syncthreads();
#pragma unroll
  for (unsigned i = 0; i < K; ++i) sums[i] = shared.total[i];
  __syncthreads();  // before the shared memory is used again
}

/// Folds the partial sums of lanes 0 to 15 as format::kSumLanes says, and those of lanes 16 to 31: the sums are in
/// lanes 0 and 16.
__device__ inline double folded(double lane_sum) {
#pragma unroll
  for (unsigned half = 8; half > 0; half /= 2) lane_sum += __shfl_down_sync(kAllLanes, lane_sum, half);
  return lane_sum;
}

/// The sum of x[0 .. count) in lane 0 of a warp, and the sum of its squares in lane 16: the lower half of the warp adds
/// elements, the upper half squares. `room` is shared memory of kTileRoom floats for this warp. also(value) is called
/// with every element by some lane of each half, and with zeros that fill the last tile.
template <class Also>
__device__ double chunk_moments(const float* x, int count, float* room, const Also& also) {
  const unsigned lane = lane_in_warp();
  double sum = 0.0;
  each_tile(x, count, room, [&](int /*first*/, const float* tile) {
#pragma unroll 8
    for (unsigned i = lane % format::kSumLanes; i < kTile; i += format::kSumLanes) {
      const float value = tile[i];
      const auto wide = static_cast<double>(value);
      sum += lane < format::kSumLanes ? wide : wide * wide;
      also(value);
    }
  });
  return folded(sum);
}

}  // namespace gradtool::cuda
