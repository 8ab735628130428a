#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/block_ops.hpp"
#include "kernels/cuda/select.hpp"

/// Digits of patterns, for .cu files that count them.
namespace gradtool::cuda {

inline constexpr std::uint32_t kMagnitude = 0x7fffffffu;
inline constexpr std::uint32_t kTopShift = 20;     ///< of the leading digit
inline constexpr std::uint32_t kNextShift = 9;     ///< of the second
inline constexpr std::uint32_t kCopies = 2;        ///< of the leading digit's counters, which many numbers share
inline constexpr unsigned kMostHistograms = 1024;  ///< blocks: each clears and flushes a histogram, so each reads a lot

/// Where the counters of the leading digit's values add up to `wanted` from the top; one thread of the (last) block
/// stores what it is. Counter 0 is not kept: zeros are many in some gradients, and what is not above is there.
template <std::uint32_t Counters, class Store>
__device__ void find_digit(const volatile std::uint32_t* counters, std::uint32_t wanted, const Store& store) {
  constexpr std::uint32_t kEach = Counters / kThreads;
  std::uint32_t digit = Counters - 1 - threadIdx.x * kEach;
  std::uint32_t own = 0;
  for (std::uint32_t i = 0; i < kEach; ++i) own += counters[digit - i];
  std::uint32_t total = 0;
  const std::uint32_t through = block_sum_through(own, total);
  const std::uint32_t above = through - own;
  if (above >= wanted || (through < wanted && threadIdx.x + 1 < kThreads)) return;
  std::uint32_t left = wanted - above;
  for (std::uint32_t i = 0; i + 1 < kEach; ++i, --digit) {
    const std::uint32_t here = counters[digit];
    if (here >= left) break;
    left -= here;
  }
  store(digit, left);
}

__device__ inline void clear_counters(std::uint32_t* counters, std::uint32_t count) {
  for (std::uint32_t i = threadIdx.x; i < count; i += blockDim.x) counters[i] = 0;
  __syncthreads();
}

/// `counters` of this block, `Copies` for each value side by side, are added to those of all.
template <std::uint32_t Copies>
__device__ void add_counters(const std::uint32_t* counters, std::uint32_t count, std::uint32_t* to) {
  __syncthreads();
  for (std::uint32_t i = threadIdx.x; i < count; i += blockDim.x) {
    std::uint32_t sum = 0;
    for (std::uint32_t copy = 0; copy < Copies; ++copy) sum += counters[i * Copies + copy];
    if (sum != 0) atomicAdd(&to[i], sum);
  }
}

/// Counts a pattern's leading digit in counters that start at the copy of this thread. Counter 0 is not kept.
template <std::uint32_t Copies>
__device__ void count_top_digit(std::uint32_t pattern, std::uint32_t* own) {
  const std::uint32_t digit = (pattern & kMagnitude) >> kTopShift;
  if (digit != 0) atomicAdd(&own[digit * Copies], 1u);
}

template <std::uint32_t Copies>
__device__ void count_top_digits(const uint4& patterns, std::uint32_t* own) {
  count_top_digit<Copies>(patterns.x, own);
  count_top_digit<Copies>(patterns.y, own);
  count_top_digit<Copies>(patterns.z, own);
  count_top_digit<Copies>(patterns.w, own);
}

}  // namespace gradtool::cuda
