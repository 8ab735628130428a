#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/float_bits.hpp"

#if !defined(__CUDACC__) && !defined(GT_EMULATED_CUDA)
#error "kernels/cuda/warp.hpp is for .cu files"
#endif

/// Operations that the 32 threads ("lanes") of a warp do together. Blocks are one-dimensional and hold whole warps, and
/// no lane has left the kernel, so every function whose name starts with `warp_` is called by all 32 lanes.
namespace gradtool::cuda {

inline constexpr std::uint32_t kWarpSize = 32;
/// The mask of a whole warp, for the intrinsics that end in _sync.
inline constexpr unsigned kAllLanes = 0xffffffffu;

__device__ inline unsigned lane_in_warp() {
  return threadIdx.x % kWarpSize;
}

// For grid-stride loops, over elements by thread and over buckets or tiles by warp.
__device__ inline std::size_t thread_in_grid() {
  return std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
}
__device__ inline std::size_t threads_in_grid() {
  return std::size_t{gridDim.x} * blockDim.x;
}
__device__ inline std::size_t warp_in_grid() {
  return thread_in_grid() / kWarpSize;
}
__device__ inline std::size_t warps_in_grid() {
  return threads_in_grid() / kWarpSize;
}

/// 16 bytes that one memory access moves.
template <class T>
struct alignas(16) Four {
  T value[4];
};
/// A complex number: 8 bytes that one memory access moves.
struct alignas(8) Pair {
  float re, im;
};

/// The lanes below `lane` as a mask of bits.
GT_HD constexpr std::uint32_t lanes_below(std::uint32_t lane) {
  return (1u << lane) - 1u;
}

__device__ inline std::uint32_t bits_set(std::uint32_t word) {
  return static_cast<std::uint32_t>(__popc(word));
}

/// The largest `value` in each group of `lanes` neighbouring lanes, a power of two: every lane gets its group's.
__device__ inline std::uint32_t warp_max_among(std::uint32_t lanes, std::uint32_t value) {
  if (lanes == kWarpSize) return __reduce_max_sync(kAllLanes, value);
  for (std::uint32_t distance = 1; distance < lanes; distance *= 2) {
    const std::uint32_t other = __shfl_xor_sync(kAllLanes, value, distance);
    value = other > value ? other : value;
  }
  return value;
}

/// The bitwise or of `value` over each group of `lanes` neighbouring lanes, a power of two.
__device__ inline std::uint32_t warp_or_among(std::uint32_t lanes, std::uint32_t value) {
  for (std::uint32_t distance = 1; distance < lanes; distance *= 2)
    value |= __shfl_xor_sync(kAllLanes, value, distance);
  return value;
}

/// The sum of `value` over the warp, in the order that is part of some payloads: lane j adds lane j + 16 for j < 16,
/// then j + 8, j + 4, j + 2, j + 1. Every lane gets lane 0's sum.
__device__ inline float warp_tree_sum(float value) {
  // Upper lanes add values that do not belong to the tree, but none of these reaches lane 0.
#pragma unroll
  for (unsigned half = kWarpSize / 2; half > 0; half /= 2) value += __shfl_down_sync(kAllLanes, value, half);
  return __shfl_sync(kAllLanes, value, 0);
}

}  // namespace gradtool::cuda
