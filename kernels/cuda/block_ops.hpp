#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/bit_stream.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/warp.hpp"

/// Operations that the threads of a warp or a block of kThreads do together, for .cu files. Every thread of the warp or
/// block calls these functions.
namespace gradtool::cuda {

inline constexpr unsigned kBlockWarpCount = kThreads / kWarpSize;

/// The sum over the lanes up to this one, which is included.
template <class T>
__device__ T warp_sum_through(T own) {
  const unsigned lane = threadIdx.x % kWarpSize;
#pragma unroll
  for (unsigned distance = 1; distance < kWarpSize; distance *= 2) {
    const T below = __shfl_up_sync(kAllLanes, own, distance);
    if (lane >= distance) own += below;
  }
  return own;
}

/// The sum over the threads up to this one, which is included; `total` becomes the sum over all.
template <class T>
__device__ T block_sum_through(T own, T& total) {
  __shared__ T sums[kBlockWarpCount];
  const unsigned warp = threadIdx.x / kWarpSize;
  T through = warp_sum_through(own);
  if (threadIdx.x % kWarpSize == kWarpSize - 1) sums[warp] = through;
  __syncthreads();
  total = T{};
  for (unsigned w = 0; w < kBlockWarpCount; ++w) {
    if (w < warp) through += sums[w];
    total += sums[w];
  }
  __syncthreads();
  return through;
}

/// True in all threads of that block which gets here last of `blocks`, by default those of the grid. It sees what the
/// others wrote before their calls, if it reads through volatile pointers. `ticket` is 0 before the kernel starts.
__device__ inline bool last_block(std::uint32_t* ticket, std::size_t blocks) {
  __shared__ std::uint32_t place;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) place = atomicAdd(ticket, 1u);
  __syncthreads();
  const bool last = place == blocks - 1;
  if (last) __threadfence();
  __syncthreads();
  return last;
}
__device__ inline bool last_block(std::uint32_t* ticket) {
  return last_block(ticket, gridDim.x);
}

/// The binary32 patterns of elements 4i to 4i + 3 of n; zeros behind the end. `aligned`: x is 16-byte aligned.
__device__ inline uint4 four_patterns(const float* x, std::size_t i, std::size_t n, bool aligned) {
  if (aligned && 4 * i + 4 <= n) return reinterpret_cast<const uint4*>(x)[i];
  const auto pattern = [&](std::size_t j) { return j < n ? __float_as_uint(x[j]) : 0u; };
  return {pattern(4 * i), pattern(4 * i + 1), pattern(4 * i + 2), pattern(4 * i + 3)};
}

/// Writes an Elias code from bit `bit` on into words that were zero. Other threads write other bits of these words.
__device__ inline void put_code(std::uint32_t* words, std::uint32_t bit, const format::EliasCode& code) {
  const std::uint32_t shift = bit % 32;
  const std::uint64_t low = code.bits << shift;
  const std::uint64_t high = shift == 0 ? 0 : code.bits >> (64 - shift);
  atomicOr(&words[bit / 32], static_cast<std::uint32_t>(low));
  if (low >> 32 != 0) atomicOr(&words[bit / 32 + 1], static_cast<std::uint32_t>(low >> 32));
  if (high != 0) atomicOr(&words[bit / 32 + 2], static_cast<std::uint32_t>(high));
}

}  // namespace gradtool::cuda
