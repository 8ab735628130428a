#pragma once

#include <cuda_runtime.h>

#include "kernels/chunk_select.hpp"
#include "kernels/cuda/radix_select.hpp"

namespace gradtool::cuda {

/// The choice of host::largest_of_chunk by the kThreads threads of a block: radix select over digits of 8 bits, then
/// positions in ascending order. `numbers` and `positions` are in shared memory; the latter are there when it returns.
__device__ inline void largest_of_chunk(const float* numbers, std::uint32_t count, std::uint32_t k,
                                        std::uint16_t* positions) {
  constexpr std::uint32_t kDigit = 8;
  constexpr std::uint32_t kValues = 1u << kDigit;
  constexpr std::uint32_t kEach = host::kChunkMost / kThreads;  // numbers of a thread
  __shared__ std::uint32_t counters[kValues];
  __shared__ std::uint32_t prefix, left;             // as in host::RadixSearch
  __shared__ std::uint32_t chosen[kBlockWarpCount];  // above the threshold from bit 16 on, equal to it below
  // A warp has neighbouring numbers. Zeros fill the last ones up: no digit but 0 counts them.
  const std::uint32_t warp = threadIdx.x / kWarpSize;
  const std::uint32_t first = warp * kEach * kWarpSize + lane_in_warp();
  std::uint32_t keys[kEach];
#pragma unroll
  for (std::uint32_t j = 0; j < kEach; ++j) {
    const std::uint32_t i = first + j * kWarpSize;
    keys[j] = i < count ? __float_as_uint(numbers[i]) & kMagnitude : 0u;
  }
  if (threadIdx.x == 0) {
    prefix = 0;
    left = k;
  }
  for (int shift = 24; shift >= 0; shift -= static_cast<int>(kDigit)) {
    clear_counters(counters, kValues);
    const std::uint32_t upper = prefix;
    const std::uint32_t wanted = left;
#pragma unroll
    for (const std::uint32_t key : keys) {
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
  const auto equals = [&](std::uint32_t j) { return keys[j] == threshold && first + j * kWarpSize < count; };
  std::uint32_t own = 0;
#pragma unroll
  for (std::uint32_t j = 0; j < kEach; ++j) {
    own += bits_set(__ballot_sync(kAllLanes, keys[j] > threshold)) << 16;
    own += bits_set(__ballot_sync(kAllLanes, equals(j)));
  }
  if (lane_in_warp() == 0) chosen[warp] = own;
  __syncthreads();
  std::uint32_t before = 0;
  for (std::uint32_t w = 0; w < warp; ++w) before += chosen[w];
  const std::uint32_t below = lanes_below(lane_in_warp());
#pragma unroll
  for (std::uint32_t j = 0; j < kEach; ++j) {
    const bool above = keys[j] > threshold;
    const bool equal = equals(j);
    const std::uint32_t all_above = __ballot_sync(kAllLanes, above);
    const std::uint32_t all_equal = __ballot_sync(kAllLanes, equal);
    if ((all_above | all_equal) == 0) continue;
    const std::uint32_t tie = (before & 0xffffu) + bits_set(all_equal & below);
    if (above || (equal && tie < ties))
      positions[(before >> 16) + bits_set(all_above & below) + (tie < ties ? tie : ties)] =
          static_cast<std::uint16_t>(first + j * kWarpSize);
    before += bits_set(all_above) << 16 | bits_set(all_equal);
  }
  __syncthreads();
}

}  // namespace gradtool::cuda
