#include <cuda_runtime.h>

#include "kernels/cuda/block_ops.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/select_digits.hpp"
#include "kernels/cuda/select_source.hpp"
#include "kernels/cuda/select_steps.hpp"

namespace gradtool::cuda {
namespace {

constexpr std::size_t kTile = SelectTiles::kTile;
constexpr unsigned kFours = 4;  // loads of 16 bytes that a thread has under way
constexpr unsigned kRound = 4 * kFours * schedule::kLanes;
static_assert(kTile % kRound == 0);

/// What a gather of candidates does beside gathering them.
enum class Gather {
  chosen,  ///< they are what is chosen
  refine,  ///< counts the next digit of those that begin with the leading one
  count,   ///< counts their leading digits, and tells whether they are at least k
  again,   ///< nothing, and that only where a sample failed
};

/// A warp writes a tile's candidates to its start; visit(pattern) sees each. How many they are.
template <class Source, class Visit>
__device__ std::uint32_t gather_tile(const Source& from, const SelectTiles& tiles, std::size_t tile, std::uint32_t low,
                                     const Visit& visit) {
  const unsigned lane = threadIdx.x % schedule::kLanes;
  const std::uint32_t below = schedule::lanes_below(lane);
  std::uint32_t* patterns = tiles.patterns + tile * kTile;
  std::uint16_t* places = tiles.places + tile * kTile;
  std::uint32_t found = 0;
  for (std::uint32_t round = 0; round < kTile && tile * kTile + round < from.n; round += kRound) {
    const std::size_t first = (tile * kTile + round) / 4 + lane;
    typename Source::Loaded loaded[kFours];
#pragma unroll
    for (unsigned j = 0; j < kFours; ++j) loaded[j] = from.load(first + j * schedule::kLanes);
#pragma unroll
    for (unsigned j = 0; j < kFours; ++j) {
      const uint4 four = Source::patterns(loaded[j]);
      const std::uint32_t pattern[4] = {four.x, four.y, four.z, four.w};
      const std::size_t index = 4 * (first + j * schedule::kLanes);
      bool is[4];
      for (unsigned e = 0; e < 4; ++e) is[e] = (pattern[e] & kMagnitude) >= low && index + e < from.n;
      if (!__any_sync(kAllLanes, is[0] || is[1] || is[2] || is[3])) continue;
      std::uint32_t at = found;
      for (unsigned e = 0; e < 4; ++e) {
        const std::uint32_t all = __ballot_sync(kAllLanes, is[e]);
        at += static_cast<std::uint32_t>(__popc(all & below));
        found += static_cast<std::uint32_t>(__popc(all));
      }
      for (unsigned e = 0; e < 4; ++e) {
        if (!is[e]) continue;
        patterns[at] = pattern[e];
        places[at] = static_cast<std::uint16_t>(index + e - tile * kTile);
        ++at;
        visit(pattern[e]);
      }
    }
  }
  return found;
}

/// The last block of a gather that counted leading digits.
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

/// The last block of a gather that counted second digits.
__device__ void settle_refined(const std::uint32_t* counters, std::uint32_t prefix, SelectState* state) {
  add_counters<1>(counters, SelectState::kCounters, state->counters[1]);
  if (!last_block(&state->tickets[1])) return;
  find_digit<SelectState::kCounters>(state->counters[1], state->left, [&](std::uint32_t digit, std::uint32_t left) {
    state->prefix = prefix << (kTopShift - kNextShift) | digit;
    state->left = left;
  });
}

/// Candidates of all tiles: what reaches *low_at, or `low`. A pass before this one ended with the last tiles, which the
/// cache may still have, so they come first.
template <Gather What, class Source>
__global__ void gather_kernel(Source from, SelectTiles tiles, std::uint32_t low, const std::uint32_t* low_at,
                              std::uint32_t k, std::uint64_t* before, SelectState* state) {
  constexpr bool kCounts = What == Gather::refine || What == Gather::count;
  __shared__ std::uint32_t counters[kCounts ? SelectState::kCounters : 1];
  if (What == Gather::again && state->retry == 0) return;
  if constexpr (kCounts) clear_counters(counters, SelectState::kCounters);
  if (low_at != nullptr) low = *low_at;
  if (What == Gather::chosen && low == 0) low = 1;
  const std::uint32_t prefix = What == Gather::refine ? state->prefix : 0u;
  for (std::size_t t = warp_in_grid(); t < tiles.size; t += warps_in_grid()) {
    const std::size_t tile = tiles.size - 1 - t;
    const std::uint32_t found = gather_tile(from, tiles, tile, low, [&](std::uint32_t pattern) {
      if constexpr (What == Gather::count) count_top_digit<1>(pattern, counters);
      if constexpr (What == Gather::refine) {
        const std::uint32_t magnitude = pattern & kMagnitude;
        const std::uint32_t digit = magnitude >> kNextShift & (SelectState::kCounters - 1);
        if (magnitude >> kTopShift == prefix && digit != 0) atomicAdd(&counters[digit], 1u);
      }
    });
    if (threadIdx.x % schedule::kLanes == 0) {
      tiles.counts[tile] = found;
      if (What == Gather::chosen) before[tile] = std::uint64_t{found} << 32;
    }
  }
  if constexpr (What == Gather::count) settle_sample(counters, low, k, state);
  if constexpr (What == Gather::refine) settle_refined(counters, prefix, state);
  if (What == Gather::chosen && thread_in_grid() == 0) {
    before[tiles.size] = 0;
    state->threshold = low - 1;
    state->ties = 0;
  }
}

template <Gather What>
void gather(Queue<Space::cuda> queue, const SelectSource& from, const SelectTiles& tiles, std::uint32_t low,
            const std::uint32_t* low_at, std::size_t k, std::uint64_t* before, SelectState* state) {
  const bool counts = What == Gather::refine || What == Gather::count;
  with_source(from, [&]<class Source>(const Source& source) {
    launch(queue, "select gather", gather_kernel<What, Source>,
           blocks_for(tiles.size, kBlockWarpCount, counts ? 2 * kMostHistograms : 8192), source, tiles, low, low_at,
           static_cast<std::uint32_t>(k), before, state);
  });
}

}  // namespace

void select_gather_chosen(Queue<Space::cuda> queue, const SelectSource& from, const SelectTiles& tiles,
                          std::uint32_t value, const std::uint32_t* low, std::uint64_t* before, SelectState* state) {
  gather<Gather::chosen>(queue, from, tiles, value, low, 0, before, state);
}

void select_gather_refining(Queue<Space::cuda> queue, const SelectSource& from, const SelectTiles& tiles,
                            SelectState* state) {
  gather<Gather::refine>(queue, from, tiles, 0, &state->low, 0, nullptr, state);
}

void select_gather_sampled(Queue<Space::cuda> queue, const SelectSource& from, const SelectTiles& tiles, std::size_t k,
                           SelectState* state) {
  gather<Gather::count>(queue, from, tiles, 0, &state->low, k, nullptr, state);
}

void select_gather_again(Queue<Space::cuda> queue, const SelectSource& from, const SelectTiles& tiles,
                         SelectState* state) {
  gather<Gather::again>(queue, from, tiles, 0, &state->low, 0, nullptr, state);
}

}  // namespace gradtool::cuda
