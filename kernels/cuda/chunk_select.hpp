#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/radix_select.hpp"

namespace gradtool::cuda {

/// The choice of host::largest_of_chunk by the kThreads threads of a block: radix select over digits of 8 bits, then
/// positions in ascending order. `numbers` and `positions` are in shared memory; the latter are there when it returns.
__device__ inline void largest_of_chunk(const float* numbers, std::uint32_t count, std::uint32_t k,
                                        std::uint16_t* positions) {
  constexpr std::uint32_t kDigit = 8;
  constexpr std::uint32_t kValues = 1u << kDigit;
  __shared__ std::uint32_t counters[kValues];
  __shared__ std::uint32_t prefix, left;  // as in host::RadixSearch
  if (threadIdx.x == 0) {
    prefix = 0;
    left = k;
  }
  for (int shift = 24; shift >= 0; shift -= static_cast<int>(kDigit)) {
    clear_counters(counters, kValues);
    const std::uint32_t upper = prefix;
    const std::uint32_t wanted = left;
    for (std::uint32_t i = threadIdx.x; i < count; i += kThreads) {
      const std::uint32_t key = __float_as_uint(numbers[i]) & kMagnitude;
      if (key >> shift >> kDigit == upper) atomicAdd(&counters[key >> shift & (kValues - 1)], 1u);
    }
    __syncthreads();
    find_digit<kValues>(counters, wanted, [&](std::uint32_t digit, std::uint32_t rest) {
      prefix = upper << kDigit | digit;
      left = rest;
    });
    __syncthreads();
  }
  const std::uint32_t threshold = prefix;
  const std::uint32_t ties = left;
  std::uint32_t above_before = 0;
  std::uint32_t equal_before = 0;
  for (std::uint32_t base = 0; base < count; base += kThreads) {
    const std::uint32_t i = base + threadIdx.x;
    const std::uint32_t key = i < count ? __float_as_uint(numbers[i]) & kMagnitude : 0u;
    const bool above = i < count && key > threshold;
    const bool equal = i < count && key == threshold;
    const std::uint32_t own = (above ? 1u << 16 : 0u) | (equal ? 1u : 0u);
    std::uint32_t total = 0;
    const std::uint32_t before = block_sum_through(own, total) - own;
    const std::uint32_t tie = equal_before + (before & 0xffffu);
    if (above || (equal && tie < ties))
      positions[above_before + (before >> 16) + (tie < ties ? tie : ties)] = static_cast<std::uint16_t>(i);
    above_before += total >> 16;
    equal_before += total & 0xffffu;
  }
  __syncthreads();
}

}  // namespace gradtool::cuda
