#include "kernels/select.hpp"

#include <cuda_runtime.h>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/select_steps.hpp"
#include "kernels/cuda/tile_scan.hpp"
#include "lib/core/view.hpp"

namespace gradtool::cuda {
namespace {

constexpr std::size_t kSampled = kTile / 16;  // numbers of a tile that are in the sample

/// Calls start with the source that `from` describes.
template <class Start>
void with_source(const SelectSource& from, const Start& start) {
  if (from.pairs) {
    start(PowerSource{from});
  } else {
    start(NumberSource{from});
  }
}

/// Blocks of a kernel that most often has nothing to do, at most: each costs time to start and to end.
constexpr unsigned kMostAgain = 512;

/// The index, in fours of numbers, of the i-th four of the sample. Of each tile a warp takes 128 neighbouring numbers,
/// at a place that changes from tile to tile so that regular patterns in the numbers do not mislead the sample.
__device__ std::size_t sampled_four(std::size_t i) {
  const std::size_t tile = i / kWarpSize;
  const std::uint32_t place = static_cast<std::uint32_t>(tile) * 2654435769u >> 28;
  static_assert(kSampled == 4 * kWarpSize);
  return tile * (kTile / 4) + place * kWarpSize + i % kWarpSize;
}

/// low of the state := the leading digit that `wanted` numbers of the sample reach; candidates begin there.
template <class Source>
__global__ void sample_kernel(Source from, std::size_t tiles, std::uint32_t wanted, SelectState* state) {
  __shared__ std::uint32_t counters[kCopies * SelectState::kCounters];
  clear_counters(counters, kCopies * SelectState::kCounters);
  std::uint32_t* own = counters + threadIdx.x % kCopies;
  const std::size_t fours = tiles * kWarpSize;
  for (std::size_t first = thread_in_grid(); first < fours; first += kFours * threads_in_grid()) {
    typename Source::Loaded loaded[kFours];
#pragma unroll
    for (unsigned j = 0; j < kFours; ++j) {
      const std::size_t i = first + j * threads_in_grid();
      loaded[j] = from.load(i < fours ? sampled_four(i) : from.n);  // from.n lies behind the end and loads zeros
    }
#pragma unroll
    for (unsigned j = 0; j < kFours; ++j) count_top_digits<kCopies>(Source::patterns(loaded[j]), own);
  }
  add_counters<kCopies>(counters, SelectState::kCounters, state->sampled);
  if (!last_block(&state->sample_ticket)) return;
  find_digit<SelectState::kCounters>(state->sampled, wanted,
                                     [&](std::uint32_t digit, std::uint32_t) { state->low = digit << kTopShift; });
}

/// `OnlyAgain`: does nothing unless a guess from a sample failed.
template <bool OnlyAgain, class Source>
__global__ void top_digit_kernel(Source from, std::uint32_t k, SelectState* state) {
  if (OnlyAgain && state->retry == 0) return;
  find_top_digit(from, k, state, whole_grid());
}

template <std::uint32_t Digit>
__global__ void digit_kernel(SelectTiles tiles, SelectState* state) {
  find_lower_digit<Digit>(tiles, state, whole_grid());
}

/// The work of a gather besides gathering candidates.
enum class Gather {
  chosen,  ///< stores that all candidates are chosen
  count,   ///< finds the leading digit, and whether there are at least k candidates
  again,   ///< gathers only where a guess from a sample failed
};

/// In a gather that counts leading digits: the last block finds out whether the sample left at least k candidates, and
/// if so the leading digit of the k-th largest.
__device__ void settle_sample(const std::uint32_t* counters, std::uint32_t low, std::uint32_t k, SelectState* state) {
  add_counters<1>(counters, SelectState::kCounters, state->candidates);
  if (!last_block(&state->candidate_ticket)) return;
  std::uint32_t own = 0;
  for (std::uint32_t i = threadIdx.x; i < SelectState::kCounters; i += kThreads)
    own += static_cast<const volatile std::uint32_t*>(state->candidates)[i];
  std::uint32_t total = 0;
  block_sum_through(own, total);
  const bool enough = total >= k || low == 0;
  if (threadIdx.x == 0) state->retry = enough ? 0u : 1u;
  if (!enough) return;
  find_digit<SelectState::kCounters>(state->candidates, k, [&](std::uint32_t digit, std::uint32_t left) {
    state->prefix = digit;
    state->left = left;
  });
}

/// Gathers the candidates of all tiles: what reaches *low_at, or `low` where that is null. A pass before this one ended
/// with the last tiles, which the cache may still have, so this one begins with them.
template <Gather What, class Source>
__global__ void gather_kernel(Source from, SelectTiles tiles, std::uint32_t low, const std::uint32_t* low_at,
                              std::uint32_t k, std::uint64_t* before, SelectState* state) {
  constexpr bool kCounts = What == Gather::count;
  __shared__ std::uint32_t counters[kCounts ? SelectState::kCounters : 1];
  if (What == Gather::again && state->retry == 0) return;
  if constexpr (kCounts) clear_counters(counters, SelectState::kCounters);
  if (low_at != nullptr) low = *low_at;
  if (What == Gather::chosen && low == 0) low = 1;
  for (std::size_t t = warp_in_grid(); t < tiles.size; t += warps_in_grid()) {
    const std::size_t tile = tiles.size - 1 - t;
    const std::uint32_t found = gather_tile(from, tiles, tile, low, [&](std::uint32_t pattern) {
      if constexpr (What == Gather::count) count_top_digit<1>(pattern, counters);
    });
    if (threadIdx.x % kWarpSize == 0) {
      tiles.counts[tile] = found;
      if (What == Gather::chosen) before[tile] = std::uint64_t{found} << 32;
    }
  }
  if constexpr (What == Gather::count) settle_sample(counters, low, k, state);
  if (What == Gather::chosen && thread_in_grid() == 0) {
    before[tiles.size] = 0;
    state->threshold = low - 1;
    state->ties = 0;
  }
}

template <class Source>
__global__ void refine_kernel(Source from, SelectTiles tiles, SelectState* state) {
  gather_and_refine(from, tiles, state, whole_grid());
}

/// The threshold becomes max(*low, 1) - 1 unless `low` is null, so that what reaches *low lies above it, except zeros.
__global__ void count_kernel(SelectTiles tiles, const std::uint32_t* low, SelectState* state, std::uint64_t* before) {
  const std::uint32_t threshold = low == nullptr ? state->threshold : (*low == 0 ? 1u : *low) - 1;
  count_candidates(tiles, threshold, before, whole_grid());
  if (low != nullptr && thread_in_grid() == 0) state->threshold = threshold;
}

__global__ void write_kernel(SelectChosen chosen, SelectState* state, std::uint32_t* positions, float* values) {
  write_chosen(chosen, state, positions, values, whole_grid());
}

/// prefix, left and low of the state := from the leading digits of all numbers, for the k largest. `only_again`: only
/// where a guess from a sample failed.
void find_leading_digit(Queue<Space::cuda> queue, const SelectSource& from, std::size_t k, bool only_again,
                        SelectState* state) {
  with_source(from, [&]<class Source>(const Source& source) {
    const auto kernel = only_again ? top_digit_kernel<true, Source> : top_digit_kernel<false, Source>;
    launch(queue, "select top digit", kernel,
           blocks_for(from.size, 4 * kFours * kThreads, only_again ? kMostAgain : kMostHistograms), source,
           static_cast<std::uint32_t>(k), state);
  });
}

/// Gathers the candidates, which reach *low, or `value` where low is null, and does what else `What` says.
template <Gather What>
void gather(Queue<Space::cuda> queue, const SelectSource& from, const SelectTiles& tiles, std::uint32_t value,
            const std::uint32_t* low, std::size_t k, std::uint64_t* before, SelectState* state) {
  constexpr unsigned kMost = What == Gather::again ? kMostAgain : What == Gather::count ? 2 * kMostHistograms : 8192;
  with_source(from, [&]<class Source>(const Source& source) {
    launch(queue, "select gather", gather_kernel<What, Source>, blocks_for(tiles.size, kBlockWarpCount, kMost), source,
           tiles, value, low, static_cast<std::uint32_t>(k), before, state);
  });
}

void find_last_digit(Queue<Space::cuda> queue, const SelectTiles& tiles, SelectState* state) {
  launch(queue, "select last digit", digit_kernel<2>, blocks_for(tiles.size, kBlockWarpCount, kMostHistograms), tiles,
         state);
}

/// Finds threshold and ties of the k largest of many numbers; the candidates are gathered.
void find_by_sample(Queue<Space::cuda> queue, const SelectSource& from, const SelectTiles& tiles, std::size_t k,
                    SelectState* state) {
  // The sample holds about the share of wanted numbers that the k largest have of all; an eighth and four standard
  // deviations are added.
  const double share = static_cast<double>(k) * kSampled / kTile;
  const auto wanted = static_cast<std::uint32_t>(1.125 * share + 4.0 * std::sqrt(share) + 8.0);
  with_source(from, [&]<class Source>(const Source& source) {
    launch(queue, "select sample", sample_kernel<Source>,
           blocks_for(tiles.size, kFours * kBlockWarpCount, kMostHistograms), source, tiles.size, wanted, state);
  });
  gather<Gather::count>(queue, from, tiles, 0, &state->low, k, nullptr, state);
  find_leading_digit(queue, from, k, true, state);
  gather<Gather::again>(queue, from, tiles, 0, &state->low, 0, nullptr, state);
  launch(queue, "select next digit", digit_kernel<1>, blocks_for(tiles.size, kBlockWarpCount, kMostHistograms), tiles,
         state);
  find_last_digit(queue, tiles, state);
}

void count_candidates(Queue<Space::cuda> queue, const SelectTiles& tiles, const std::uint32_t* low,
                      std::uint64_t* before, SelectState* state) {
  launch(queue, "select count", count_kernel, blocks_for(tiles.size, kBlockWarpCount), tiles, low, state, before);
}

}  // namespace

Select::Workspace::Workspace(std::size_t n, Scratch<Space::cuda> scratch) {
  tiles.size = (n + kTile - 1) / kTile;
  state = scratch.take<SelectState>(1).data();
  tiles.patterns = scratch.take<std::uint32_t>(kTile * tiles.size).data();
  tiles.places = scratch.take<std::uint16_t>(kTile * tiles.size).data();
  tiles.counts = scratch.take<std::uint32_t>(tiles.size).data();
  before = scratch.take<std::uint64_t>(tiles.size + 1).data();
  scan = scratch.take_bytes(scan_bytes<std::uint64_t>(tiles.size + 1));
}

std::size_t Select::scratch_bytes(std::size_t n) {
  expect_valid(n < std::size_t{1} << 32, "a selection of 2^32 numbers or more: positions have 32 bits");
  return n == 0 ? 0 : planned<Workspace>(n);
}

Select::Select(Queue<Space::cuda> queue, const SelectSource& from, View<std::byte, Space::cuda> scratch,
               std::size_t many)
    : queue_{queue}, from_{from}, many_{many}, workspace_{from.size, Scratch<Space::cuda>{scratch}} {
  expects(from.size > 0, "select: there are no numbers");
  expects(!from.pairs || reinterpret_cast<std::uintptr_t>(from.x) % 16 == 0, "select: pairs are not 16-byte aligned");
}

void Select::largest(std::size_t k) const {
  expects(k >= 1 && k <= from_.size, "select: more numbers wanted than there are");
  clear();
  if (from_.size >= many_) {
    find_by_sample(queue_, from_, workspace_.tiles, k, workspace_.state);
  } else {
    find_leading_digit(queue_, from_, k, false, workspace_.state);
    refine();
  }
  count_chosen();
}

void Select::at_least(std::uint32_t low) const {
  gather<Gather::chosen>(queue_, from_, workspace_.tiles, low, nullptr, 0, workspace_.before, workspace_.state);
}
void Select::at_least(const std::uint32_t* low) const {
  gather<Gather::chosen>(queue_, from_, workspace_.tiles, 0, low, 0, workspace_.before, workspace_.state);
}
void Select::narrow(const std::uint32_t* low) const {
  count_candidates(queue_, workspace_.tiles, low, workspace_.before, workspace_.state);
}

SelectChosen Select::chosen() const {
  scan_tiles(queue_, workspace_.before, workspace_.tiles.size + 1, workspace_.scan);
  return {workspace_.tiles, workspace_.before, workspace_.state};
}
void Select::write(std::uint32_t* positions, float* values) const {
  const SelectChosen written = chosen();
  launch(queue_, "select write", write_kernel, blocks_for(workspace_.tiles.size, kBlockWarpCount), written,
         workspace_.state, positions, values);
}

void Select::clear() const {
  fill(queue_, {reinterpret_cast<std::byte*>(workspace_.state), sizeof(SelectState)}, 0);
}
void Select::refine() const {
  with_source(from_, [&]<class Source>(const Source& source) {
    launch(queue_, "select gather", refine_kernel<Source>,
           blocks_for(workspace_.tiles.size, kBlockWarpCount, 2 * kMostHistograms), source, workspace_.tiles,
           workspace_.state);
  });
  find_last_digit(queue_, workspace_.tiles, workspace_.state);
}
void Select::count_chosen() const {
  count_candidates(queue_, workspace_.tiles, nullptr, workspace_.before, workspace_.state);
}

}  // namespace gradtool::cuda
