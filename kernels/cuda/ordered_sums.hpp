#pragma once

#include <cstddef>

#include "kernels/cuda/device_warp.hpp"

/// Sums of doubles that are added one after the other, because their bits are part of a payload. For .cu files.
namespace gradtool::cuda {

inline constexpr unsigned kSumTile = 512;

/// Shared memory of sums_in_order.
template <unsigned K>
struct SumRoom {
  double tile[2][K][kSumTile];
  double total[K];
};

/// sums[k] := 0 + values[k * stride + first] + ... + values[k * stride + last - 1], in this order, in all threads of a
/// block of at least 32 (K + 1) threads. One thread adds for each k, as the additions wait for each other; the warps
/// behind theirs fetch what comes next.
template <unsigned K>
__device__ void sums_in_order(const double* values, std::size_t stride, std::size_t first, std::size_t last,
                              SumRoom<K>& room, double (&sums)[K]) {
  const unsigned warp = threadIdx.x / schedule::kLanes;
  const auto fetch = [&](unsigned buffer, std::size_t at) {
    if (warp < K) return;
    for (unsigned k = 0; k < K; ++k) {
      for (unsigned i = threadIdx.x - K * schedule::kLanes; i < kSumTile; i += blockDim.x - K * schedule::kLanes) {
        if (at + i < last) room.tile[buffer][k][i] = values[k * stride + at + i];
      }
    }
  };
  double sum = 0.0;
  unsigned buffer = 0;
  fetch(buffer, first);
  __syncthreads();
  for (std::size_t at = first; at < last; at += kSumTile, buffer ^= 1) {
    fetch(buffer ^ 1, at + kSumTile);
    if (warp < K && threadIdx.x % schedule::kLanes == 0) {
      const auto here = static_cast<unsigned>(last - at < kSumTile ? last - at : kSumTile);
#pragma unroll 8
      for (unsigned i = 0; i < here; ++i) sum += room.tile[buffer][warp][i];
    }
    __syncthreads();
  }
  if (warp < K && threadIdx.x % schedule::kLanes == 0) room.total[warp] = sum;
  __syncthreads();
  for (unsigned k = 0; k < K; ++k) sums[k] = room.total[k];
  __syncthreads();  // before the room is used again
}

/// The tree of law::kSumLanes over lanes 0 to 15, and over lanes 16 to 31, of a warp: the sums, in lanes 0 and 16.
__device__ inline double folded(double lane_sum) {
#pragma unroll
  for (unsigned half = 8; half > 0; half /= 2) lane_sum += __shfl_down_sync(DeviceWarp::kAll, lane_sum, half);
  return lane_sum;
}

}  // namespace gradtool::cuda
