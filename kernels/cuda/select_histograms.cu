#include <cuda_runtime.h>

#include "kernels/cuda/block_ops.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/select_digits.hpp"
#include "kernels/cuda/select_source.hpp"
#include "kernels/cuda/select_steps.hpp"

namespace gradtool::cuda {
namespace {

constexpr std::uint32_t kLastCounters = 512;  // of the last digit
constexpr unsigned kFours = 4;                // loads of 16 bytes that a thread has under way

/// Where the i-th four of the sample are: a warp's of each tile, in a place that changes from tile to tile.
__device__ std::size_t sampled_four(std::size_t i) {
  const std::size_t tile = i / schedule::kLanes;
  const std::uint32_t place = static_cast<std::uint32_t>(tile) * 2654435769u >> 28;
  static_assert(kSelectSampled == 4 * schedule::kLanes);
  return tile * (SelectTiles::kTile / 4) + place * schedule::kLanes + i % schedule::kLanes;
}

/// Where candidates begin: at the leading digit that `wanted` of the sample reach.
template <class Source>
__global__ void sample_kernel(Source from, std::size_t tiles, std::uint32_t wanted, SelectState* state) {
  __shared__ std::uint32_t counters[kCopies * SelectState::kCounters];
  clear_counters(counters, kCopies * SelectState::kCounters);
  std::uint32_t* own = counters + threadIdx.x % kCopies;
  const std::size_t fours = tiles * schedule::kLanes;
  for (std::size_t first = thread_in_grid(); first < fours; first += kFours * threads_in_grid()) {
    typename Source::Loaded loaded[kFours];
#pragma unroll
    for (unsigned j = 0; j < kFours; ++j) {
      const std::size_t i = first + j * threads_in_grid();
      loaded[j] = from.load(i < fours ? sampled_four(i) : from.n);  // behind the end
    }
#pragma unroll
    for (unsigned j = 0; j < kFours; ++j) count_top_digits<kCopies>(Source::patterns(loaded[j]), own);
  }
  add_counters<kCopies>(counters, SelectState::kCounters, state->sampled);
  if (!last_block(&state->sample_ticket)) return;
  find_digit<SelectState::kCounters>(state->sampled, wanted,
                                     [&](std::uint32_t digit, std::uint32_t) { state->low = digit << kTopShift; });
}

/// The leading digit of all numbers. Neighbouring lanes count in different copies. `OnlyAgain`: where a sample failed.
template <bool OnlyAgain, class Source>
__global__ void top_digit_kernel(Source from, std::uint32_t k, SelectState* state) {
  if (OnlyAgain && state->retry == 0) return;
  __shared__ std::uint32_t counters[kCopies * SelectState::kCounters];
  clear_counters(counters, kCopies * SelectState::kCounters);
  std::uint32_t* own = counters + threadIdx.x % kCopies;
  const std::size_t fours = (from.n + 3) / 4;
  for (std::size_t first = std::size_t{blockIdx.x} * (kFours * kThreads); first < fours;
       first += std::size_t{gridDim.x} * (kFours * kThreads)) {
    typename Source::Loaded loaded[kFours];
#pragma unroll
    for (unsigned j = 0; j < kFours; ++j) loaded[j] = from.load(first + j * kThreads + threadIdx.x);
#pragma unroll
    for (unsigned j = 0; j < kFours; ++j) count_top_digits<kCopies>(Source::patterns(loaded[j]), own);
  }
  add_counters<kCopies>(counters, SelectState::kCounters, state->counters[0]);
  if (!last_block(&state->tickets[0])) return;
  find_digit<SelectState::kCounters>(state->counters[0], k, [&](std::uint32_t digit, std::uint32_t left) {
    state->prefix = digit;
    state->left = left;
    state->low = digit << kTopShift;
  });
}

/// The second or the last digit, among candidates.
template <std::uint32_t Digit>
__global__ void digit_kernel(SelectTiles tiles, SelectState* state) {
  constexpr std::uint32_t kCount = Digit == 1 ? SelectState::kCounters : kLastCounters;
  constexpr std::uint32_t kShift = Digit == 1 ? kNextShift : 0;
  constexpr std::uint32_t kAbove = Digit == 1 ? kTopShift : kNextShift;
  __shared__ std::uint32_t counters[kCount];
  clear_counters(counters, kCount);
  const std::uint32_t prefix = state->prefix;
  for (std::size_t tile = warp_in_grid(); tile < tiles.size; tile += warps_in_grid()) {
    const std::uint32_t count = tiles.counts[tile];
    for (std::uint32_t i = threadIdx.x % schedule::kLanes; i < count; i += schedule::kLanes) {
      const std::uint32_t magnitude = tiles.patterns[tile * SelectTiles::kTile + i] & kMagnitude;
      const std::uint32_t digit = magnitude >> kShift & (kCount - 1);
      if (magnitude >> kAbove == prefix && digit != 0) atomicAdd(&counters[digit], 1u);
    }
  }
  add_counters<1>(counters, kCount, state->counters[Digit]);
  if (!last_block(&state->tickets[Digit])) return;
  find_digit<kCount>(state->counters[Digit], state->left, [&](std::uint32_t digit, std::uint32_t left) {
    const std::uint32_t longer = prefix << (kAbove - kShift) | digit;
    if constexpr (Digit == 1) {
      state->prefix = longer;
      state->left = left;
    } else {
      state->threshold = longer;
      state->ties = left;
    }
  });
}

}  // namespace

void select_sample(Queue<Space::cuda> queue, const SelectSource& from, std::uint32_t wanted, SelectState* state) {
  const std::size_t tiles = (from.size + SelectTiles::kTile - 1) / SelectTiles::kTile;
  with_source(from, [&]<class Source>(const Source& source) {
    launch(queue, "select sample", sample_kernel<Source>, blocks_for(tiles, kFours * kBlockWarpCount, kMostHistograms),
           source, tiles, wanted, state);
  });
}

void select_top_digit(Queue<Space::cuda> queue, const SelectSource& from, std::size_t k, bool only_again,
                      SelectState* state) {
  with_source(from, [&]<class Source>(const Source& source) {
    const auto kernel = only_again ? top_digit_kernel<true, Source> : top_digit_kernel<false, Source>;
    launch(queue, "select top digit", kernel, blocks_for(from.size, 4 * kFours * kThreads, kMostHistograms), source,
           static_cast<std::uint32_t>(k), state);
  });
}

void select_next_digit(Queue<Space::cuda> queue, const SelectTiles& tiles, SelectState* state) {
  launch(queue, "select next digit", digit_kernel<1>, blocks_for(tiles.size, kBlockWarpCount, kMostHistograms), tiles,
         state);
}

void select_last_digit(Queue<Space::cuda> queue, const SelectTiles& tiles, SelectState* state) {
  launch(queue, "select last digit", digit_kernel<2>, blocks_for(tiles.size, kBlockWarpCount, kMostHistograms), tiles,
         state);
}

}  // namespace gradtool::cuda
