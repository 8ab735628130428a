#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/schedule/warp.hpp"

#if !defined(__CUDACC__) && !defined(GT_EMULATED_CUDA)
#error "device_warp.hpp is for .cu files"
#endif

namespace gradtool::cuda {

/// The mask of a whole warp.
inline constexpr unsigned kAllLanes = 0xffffffffu;

/// The Warp of kernels/schedule/warp.hpp on a GPU. Blocks are one-dimensional and whole warps, and no lane has left the
/// kernel, so every operation here runs with all 32 lanes.
class DeviceWarp {
 public:
  template <class T>
  class Own {
   public:
    __device__ T& operator[](std::uint32_t) { return value_; }
    const __device__ T& operator[](std::uint32_t) const { return value_; }

   private:
    T value_;
  };

  __device__ DeviceWarp() : lane_{threadIdx.x % schedule::kLanes} {}

  template <class F>
  __device__ void each(const F& f) const {
    f(lane_);
    __syncwarp();
  }
  __device__ std::uint32_t max(const Own<std::uint32_t>& own) const { return __reduce_max_sync(kAllLanes, own[lane_]); }
  __device__ Own<std::uint32_t> max_among(std::uint32_t lanes, const Own<std::uint32_t>& own) const {
    Own<std::uint32_t> joined = own;
    if (lanes == schedule::kLanes) {
      joined[lane_] = max(own);
      return joined;
    }
    for (std::uint32_t distance = 1; distance < lanes; distance *= 2) {
      const std::uint32_t other = __shfl_xor_sync(kAllLanes, joined[lane_], distance);
      joined[lane_] = other > joined[lane_] ? other : joined[lane_];
    }
    return joined;
  }
  __device__ Own<std::uint32_t> or_among(std::uint32_t lanes, const Own<std::uint32_t>& own) const {
    Own<std::uint32_t> joined = own;
    for (std::uint32_t distance = 1; distance < lanes; distance *= 2)
      joined[lane_] |= __shfl_xor_sync(kAllLanes, joined[lane_], distance);
    return joined;
  }
  template <class T>
  __device__ Own<T> from(const Own<T>& own, const Own<std::uint32_t>& source) const {
    Own<T> got;
    got[lane_] = __shfl_sync(kAllLanes, own[lane_], source[lane_]);
    return got;
  }
  __device__ std::uint32_t sum(const Own<std::uint32_t>& own) const { return __reduce_add_sync(kAllLanes, own[lane_]); }
  __device__ Own<std::uint32_t> sum_before(const Own<std::uint32_t>& own) const {
    std::uint32_t through = own[lane_];
#pragma unroll
    for (unsigned distance = 1; distance < schedule::kLanes; distance *= 2) {
      const std::uint32_t below = __shfl_up_sync(kAllLanes, through, distance);
      if (lane_ >= distance) through += below;
    }
    Own<std::uint32_t> before;
    before[lane_] = through - own[lane_];
    return before;
  }
  __device__ std::uint32_t ballot(const Own<std::uint32_t>& own) const {
    return __ballot_sync(kAllLanes, own[lane_] != 0 ? 1 : 0);
  }
  __device__ float tree_sum(const Own<float>& own) const {
    float sum = own[lane_];  // upper lanes add what does not belong to the tree; nothing of it reaches lane 0
#pragma unroll
    for (unsigned half = schedule::kLanes / 2; half > 0; half /= 2) sum += __shfl_down_sync(kAllLanes, sum, half);
    return __shfl_sync(kAllLanes, sum, 0);
  }

 private:
  std::uint32_t lane_;
};

__device__ inline unsigned lane_in_warp() {
  return threadIdx.x % schedule::kLanes;
}

// For grid-stride loops, over elements by thread and over buckets or tiles by warp.
__device__ inline std::size_t thread_in_grid() {
  return std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
}
__device__ inline std::size_t threads_in_grid() {
  return std::size_t{gridDim.x} * blockDim.x;
}
__device__ inline std::size_t warp_in_grid() {
  return thread_in_grid() / schedule::kLanes;
}
__device__ inline std::size_t warps_in_grid() {
  return threads_in_grid() / schedule::kLanes;
}

}  // namespace gradtool::cuda
