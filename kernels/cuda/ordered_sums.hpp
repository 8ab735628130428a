#pragma once

#include <cstddef>

#include "kernels/cuda/device_warp.hpp"
#include "kernels/cuda/grid.hpp"
#include "kernels/cuda/quads.hpp"
#include "kernels/law/chunk_sums.hpp"

/// Sums over chunks in the order of law::GroupedSum, because their bits are part of a payload. For .cu files.
namespace gradtool::cuda {

/// Blocks whose warps add up chunks: small, so that few chunks lie on many multiprocessors.
inline constexpr unsigned kChunkThreads = 128;
inline constexpr unsigned kChunkWarps = kChunkThreads / schedule::kLanes;

/// Groups that a block adds up side by side.
template <unsigned K>
inline constexpr unsigned kGroupsAtOnce = kThreads / K;

/// Shared memory of sums_of_chunks.
template <unsigned K>
struct SumRoom {
  double group[K][kGroupsAtOnce<K>];
  double total[K];
};

/// sums[k] := the sum of values[k * stride + first .. k * stride + last), in all threads of a block of kThreads. A
/// thread adds up a group; then one for each k adds up the groups.
template <unsigned K>
__device__ void sums_of_chunks(const double* values, std::size_t stride, std::size_t first, std::size_t last,
                               SumRoom<K>& room, double (&sums)[K]) {
  static_assert(kThreads % K == 0 && K <= kThreads / schedule::kLanes);
  const unsigned k = threadIdx.x / kGroupsAtOnce<K>;
  const unsigned own = threadIdx.x % kGroupsAtOnce<K>;
  const unsigned adds = threadIdx.x / schedule::kLanes;  // for this k, if it is the first lane of a warp
  double total = 0.0;
  for (std::size_t base = first; base < last; base += law::kSumGroup * kGroupsAtOnce<K>) {
    const std::size_t from = base + law::kSumGroup * own;
    const std::size_t left = from < last ? last - from : 0;
    const auto count = static_cast<unsigned>(left < law::kSumGroup ? left : law::kSumGroup);
    double sum = 0.0;
#pragma unroll 8
    for (unsigned i = 0; i < count; ++i) sum += values[k * stride + from + i];
    room.group[k][own] = sum;
    __syncthreads();
    if (adds < K && threadIdx.x % schedule::kLanes == 0) {
      const std::size_t groups = (last - base + law::kSumGroup - 1) / law::kSumGroup;
      for (unsigned g = 0; g < kGroupsAtOnce<K> && g < groups; ++g) total += room.group[adds][g];
    }
    __syncthreads();
  }
  if (adds < K && threadIdx.x % schedule::kLanes == 0) room.total[adds] = total;
  __syncthreads();
#pragma unroll
  for (unsigned i = 0; i < K; ++i) sums[i] = room.total[i];
  __syncthreads();  // before the room is used again
}

/// The tree of law::kSumLanes over lanes 0 to 15, and over lanes 16 to 31, of a warp: the sums, in lanes 0 and 16.
__device__ inline double folded(double lane_sum) {
#pragma unroll
  for (unsigned half = 8; half > 0; half /= 2) lane_sum += __shfl_down_sync(kAllLanes, lane_sum, half);
  return lane_sum;
}

/// By a warp with kTileRoom floats of its own: the sum of x[0 .. count) in lane 0, of its squares in lane 16. The lower
/// half of the warp adds elements, the upper half squares; `also(x)` sees every element in some lane, and zeros.
template <class Also>
__device__ double chunk_moments(const float* x, int count, float* room, const Also& also) {
  const unsigned lane = lane_in_warp();
  double sum = 0.0;
  each_tile(x, count, room, [&](int /*first*/, const float* tile) {
#pragma unroll 8
    for (unsigned i = lane % law::kSumLanes; i < kTile; i += law::kSumLanes) {
      const float value = tile[i];
      const auto wide = static_cast<double>(value);
      sum += lane < law::kSumLanes ? wide : wide * wide;
      also(value);
    }
  });
  return folded(sum);
}

}  // namespace gradtool::cuda
