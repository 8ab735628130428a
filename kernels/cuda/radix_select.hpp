#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/block_ops.hpp"
#include "kernels/select.hpp"

/// Building blocks of radix selection, for kernels of methods that take part in one (kernels/select.hpp): they count
/// the leading digits of numbers that they compute, find the digit at which k numbers begin, or write what was chosen.
namespace gradtool::cuda {

inline constexpr std::uint32_t kMagnitude = 0x7fffffffu;
inline constexpr std::uint32_t kTopShift = 20;  ///< lowest bit of the leading digit
inline constexpr std::uint32_t kNextShift = 9;  ///< lowest bit of the second digit
inline constexpr std::uint32_t kCopies = 2;     ///< counters for each leading digit, because many numbers share one
/// Blocks of a kernel that counts, at most: each clears and adds up a histogram, so each should read much.
inline constexpr unsigned kMostHistograms = 1024;

/// Finds the value of a digit at which `wanted` numbers are reached, counting from the largest value down. All threads
/// of one block call it, and one of them calls store(value, how many of the numbers with that value are wanted). The
/// counter of value 0 is not kept, because some gradients have very many zeros: what no other value accounts for is
/// there.
template <std::uint32_t Counters, class Store>
__device__ void find_digit(const volatile std::uint32_t* counters, std::uint32_t wanted, const Store& store) {
  constexpr std::uint32_t kEach = Counters / kThreads;
  std::uint32_t digit = Counters - 1 - threadIdx.x * kEach;
  std::uint32_t here[kEach];  // in registers: loads that wait for each other take about 0.2 us each
  std::uint32_t own = 0;
#pragma unroll
  for (std::uint32_t i = 0; i < kEach; ++i) own += here[i] = counters[digit - i];
  std::uint32_t total = 0;
  const std::uint32_t through = block_sum_through(own, total);
  const std::uint32_t above = through - own;
  if (above >= wanted || (through < wanted && threadIdx.x + 1 < kThreads)) return;
  std::uint32_t left = wanted - above;
#pragma unroll
  for (std::uint32_t i = 0; i + 1 < kEach; ++i, --digit) {
    if (here[i] >= left) break;
    left -= here[i];
  }
  store(digit, left);
}

__device__ inline void clear_counters(std::uint32_t* counters, std::uint32_t count) {
  for (std::uint32_t i = threadIdx.x; i < count; i += blockDim.x) counters[i] = 0;
  __syncthreads();
}

/// Adds the counters of this block, `Copies` for each value side by side, to those of the grid.
template <std::uint32_t Copies>
__device__ void add_counters(const std::uint32_t* counters, std::uint32_t count, std::uint32_t* to) {
  __syncthreads();
  for (std::uint32_t i = threadIdx.x; i < count; i += blockDim.x) {
    std::uint32_t sum = 0;
    for (std::uint32_t copy = 0; copy < Copies; ++copy) sum += counters[i * Copies + copy];
    if (sum != 0) atomicAdd(&to[i], sum);
  }
}

/// Counts a pattern's leading digit, unless it is 0. `own` points at the copy of the first counter that this thread
/// uses.
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

/// The elements that a selection chose, for .cu files that write them.
namespace gradtool::cuda {

/// Calls write(to, i, pattern) for each candidate i of a tile that is chosen, where `to` is its place among all chosen
/// numbers. A warp calls it together; the calls of `write` are made by some of its lanes.
template <class Write>
__device__ void each_chosen(const SelectChosen& chosen, std::size_t tile, std::uint32_t threshold, std::uint32_t ties,
                            const Write& write) {
  const unsigned lane = threadIdx.x % kWarpSize;
  const std::uint32_t below = lanes_below(lane);
  const std::uint32_t* patterns = chosen.tiles.patterns + tile * SelectTiles::kTile;
  const std::uint32_t count = chosen.tiles.counts[tile];
  auto above = static_cast<std::uint32_t>(chosen.before[tile] >> 32);
  auto equal = static_cast<std::uint32_t>(chosen.before[tile]);
  for (std::uint32_t first = 0; first < count; first += kWarpSize) {
    const std::uint32_t i = first + lane;
    const std::uint32_t pattern = i < count ? patterns[i] : 0u;
    const std::uint32_t magnitude = pattern & kMagnitude;
    const bool is_above = i < count && magnitude > threshold;
    const bool is_equal = i < count && magnitude == threshold;
    const std::uint32_t all_above = __ballot_sync(kAllLanes, is_above);
    const std::uint32_t all_equal = __ballot_sync(kAllLanes, is_equal);
    const std::uint32_t tie = equal + static_cast<std::uint32_t>(__popc(all_equal & below));
    if (is_above || (is_equal && tie < ties)) {
      const std::uint32_t stronger = above + static_cast<std::uint32_t>(__popc(all_above & below));
      write(std::size_t{stronger} + (tie < ties ? tie : ties), i, pattern);
    }
    above += static_cast<std::uint32_t>(__popc(all_above));
    equal += static_cast<std::uint32_t>(__popc(all_equal));
  }
}

}  // namespace gradtool::cuda
