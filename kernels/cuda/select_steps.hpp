#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/block_ops.hpp"
#include "kernels/cuda/radix_select.hpp"
#include "kernels/cuda/unit_launch.hpp"
#include "kernels/float_bits.hpp"
#include "kernels/select.hpp"

/// The steps of a selection (kernels/select.hpp), for .cu files: by the thread blocks of a grid, or by those of one
/// tensor of many in a launch.
namespace gradtool::cuda {

inline constexpr std::size_t kTile = SelectTiles::kTile;
inline constexpr unsigned kFours = 4;  // loads of 16 bytes that a thread has under way

// The numbers that a kernel selects from. load(i) starts the load of numbers 4i to 4i + 3, with zeros behind the end;
// load_whole(i) does so without a test, where whole(4i + 4). patterns(loaded), called when other loads are under way
// too, makes their patterns.

struct NumberSource {
  using Loaded = uint4;
  const float* x;
  std::size_t n;
  bool aligned;

  explicit NumberSource(const SelectSource& from) : x{from.x}, n{from.size}, aligned{aligned_to(from.x, 16)} {}
  __device__ NumberSource(const float* numbers, std::size_t count)
      : x{numbers}, n{count}, aligned{reinterpret_cast<std::uintptr_t>(numbers) % 16 == 0} {}
  __device__ Loaded load(std::size_t i) const { return four_patterns(x, i, n, aligned); }
  __device__ bool whole(std::size_t end) const { return aligned && end <= n; }
  __device__ Loaded load_whole(std::size_t i) const { return reinterpret_cast<const uint4*>(x)[i]; }
  static __device__ uint4 patterns(const Loaded& loaded) { return loaded; }
};

struct PowerSource {
  struct Loaded {
    Four<float> half[2];
  };
  const float* pairs;
  std::size_t n;

  explicit PowerSource(const SelectSource& from) : pairs{from.x}, n{from.size} {}
  __device__ bool whole(std::size_t end) const { return end <= n; }
  __device__ Loaded load_whole(std::size_t i) const {
    const auto* halves = reinterpret_cast<const Four<float>*>(pairs) + 2 * i;
    return {{halves[0], halves[1]}};
  }
  __device__ Loaded load(std::size_t i) const {
    if (whole(4 * i + 4)) return load_whole(i);
    Loaded loaded{};
#pragma unroll
    for (unsigned k = 0; k < 4; ++k) {
      if (4 * i + k >= n) continue;
      loaded.half[k / 2].value[k % 2 * 2] = pairs[2 * (4 * i + k)];
      loaded.half[k / 2].value[k % 2 * 2 + 1] = pairs[2 * (4 * i + k) + 1];
    }
    return loaded;
  }
  static __device__ uint4 patterns(const Loaded& loaded) {
    const float* low = loaded.half[0].value;
    const float* high = loaded.half[1].value;
    return {format::power_pattern(low[0], low[1]), format::power_pattern(low[2], low[3]),
            format::power_pattern(high[0], high[1]), format::power_pattern(high[2], high[3])};
  }
};

/// Finds the leading digit of the k-th largest of all numbers. Neighbouring lanes count in different copies of the
/// counters.
template <class Source>
__device__ void find_top_digit(const Source& from, std::uint32_t k, SelectState* state, const Place& place) {
  __shared__ std::uint32_t counters[kCopies * SelectState::kCounters];
  clear_counters(counters, kCopies * SelectState::kCounters);
  std::uint32_t* own = counters + threadIdx.x % kCopies;
  const std::size_t fours = (from.n + 3) / 4;
  for (std::size_t first = place.block * (kFours * kThreads); first < fours;
       first += place.blocks * (kFours * kThreads)) {
    typename Source::Loaded loaded[kFours];
#pragma unroll
    for (unsigned j = 0; j < kFours; ++j) loaded[j] = from.load(first + j * kThreads + threadIdx.x);
#pragma unroll
    for (unsigned j = 0; j < kFours; ++j) count_top_digits<kCopies>(Source::patterns(loaded[j]), own);
  }
  add_counters<kCopies>(counters, SelectState::kCounters, state->counters[0]);
  if (!last_block(&state->tickets[0], place.blocks)) return;
  find_digit<SelectState::kCounters>(state->counters[0], k, [&](std::uint32_t digit, std::uint32_t left) {
    state->prefix = digit;
    state->left = left;
    state->low = digit << kTopShift;
  });
}

inline constexpr std::uint32_t kLastCounters = 512;  // values of the last digit

/// Finds the second or the last digit, among the candidates.
template <std::uint32_t Digit>
__device__ void find_lower_digit(const SelectTiles& tiles, SelectState* state, const Place& place) {
  constexpr std::uint32_t kCount = Digit == 1 ? SelectState::kCounters : kLastCounters;
  constexpr std::uint32_t kShift = Digit == 1 ? kNextShift : 0;
  constexpr std::uint32_t kAbove = Digit == 1 ? kTopShift : kNextShift;
  __shared__ std::uint32_t counters[kCount];
  clear_counters(counters, kCount);
  const std::uint32_t prefix = state->prefix;
  for (std::size_t tile = place.warp(); tile < tiles.size; tile += place.warps()) {
    const std::uint32_t count = tiles.counts[tile];
    for (std::uint32_t i = threadIdx.x % kWarpSize; i < count; i += kWarpSize) {
      const std::uint32_t magnitude = tiles.patterns[tile * kTile + i] & kMagnitude;
      const std::uint32_t digit = magnitude >> kShift & (kCount - 1);
      if (magnitude >> kAbove == prefix && digit != 0) atomicAdd(&counters[digit], 1u);
    }
  }
  add_counters<1>(counters, kCount, state->counters[Digit]);
  if (!last_block(&state->tickets[Digit], place.blocks)) return;
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

inline constexpr unsigned kRound = 4 * kFours * kWarpSize;
static_assert(kTile % kRound == 0);

/// A warp writes the candidates of a tile from the tile's start on and calls visit(pattern) for each. Returns how many
/// there are.
template <class Source, class Visit>
__device__ std::uint32_t gather_tile(const Source& from, const SelectTiles& tiles, std::size_t tile, std::uint32_t low,
                                     const Visit& visit) {
  const unsigned lane = threadIdx.x % kWarpSize;
  const std::uint32_t below = lanes_below(lane);
  const std::size_t begin = tile * kTile;
  const auto size = static_cast<std::uint32_t>(from.n - begin < kTile ? from.n - begin : kTile);
  std::uint32_t* patterns = tiles.patterns + begin;
  std::uint16_t* places = tiles.places + begin;
  std::uint32_t found = 0;
  for (std::uint32_t round = 0; round < size; round += kRound) {
    const std::size_t first = (begin + round) / 4 + lane;
    typename Source::Loaded loaded[kFours];
    if (from.whole(begin + round + kRound)) {
#pragma unroll
      for (unsigned j = 0; j < kFours; ++j) loaded[j] = from.load_whole(first + j * kWarpSize);
    } else {
#pragma unroll
      for (unsigned j = 0; j < kFours; ++j) loaded[j] = from.load(first + j * kWarpSize);
    }
#pragma unroll
    for (unsigned j = 0; j < kFours; ++j) {
      const uint4 four = Source::patterns(loaded[j]);
      const std::uint32_t pattern[4] = {four.x, four.y, four.z, four.w};
      const std::uint32_t place = round + 4 * (j * kWarpSize + lane);
      bool taken[4];
      for (unsigned e = 0; e < 4; ++e) taken[e] = (pattern[e] & kMagnitude) >= low && place + e < size;
      if (!__any_sync(kAllLanes, taken[0] || taken[1] || taken[2] || taken[3])) continue;
      std::uint32_t to = found;
      for (unsigned e = 0; e < 4; ++e) {
        const std::uint32_t all = __ballot_sync(kAllLanes, taken[e]);
        to += static_cast<std::uint32_t>(__popc(all & below));
        found += static_cast<std::uint32_t>(__popc(all));
      }
      for (unsigned e = 0; e < 4; ++e) {
        if (!taken[e]) continue;
        patterns[to] = pattern[e];
        places[to] = static_cast<std::uint16_t>(place + e);
        ++to;
        visit(pattern[e]);
      }
    }
  }
  return found;
}

/// Gathers the candidates of all tiles, which reach state->low, and finds the second digit among those that have the
/// leading one. A pass before this one ended with the last tiles, which the cache may still have, so this one begins
/// with them.
template <class Source>
__device__ void gather_and_refine(const Source& from, const SelectTiles& tiles, SelectState* state,
                                  const Place& place) {
  __shared__ std::uint32_t counters[SelectState::kCounters];
  clear_counters(counters, SelectState::kCounters);
  const std::uint32_t low = state->low;
  const std::uint32_t prefix = state->prefix;
  for (std::size_t t = place.warp(); t < tiles.size; t += place.warps()) {
    const std::size_t tile = tiles.size - 1 - t;
    const std::uint32_t found = gather_tile(from, tiles, tile, low, [&](std::uint32_t pattern) {
      const std::uint32_t magnitude = pattern & kMagnitude;
      const std::uint32_t digit = magnitude >> kNextShift & (SelectState::kCounters - 1);
      if (magnitude >> kTopShift == prefix && digit != 0) atomicAdd(&counters[digit], 1u);
    });
    if (threadIdx.x % kWarpSize == 0) tiles.counts[tile] = found;
  }
  add_counters<1>(counters, SelectState::kCounters, state->counters[1]);
  if (!last_block(&state->tickets[1], place.blocks)) return;
  find_digit<SelectState::kCounters>(state->counters[1], state->left, [&](std::uint32_t digit, std::uint32_t left) {
    state->prefix = prefix << (kTopShift - kNextShift) | digit;
    state->left = left;
  });
}

/// before[tile] := candidates above the threshold (upper half) and equal to it (lower half); before[tiles] := 0.
__device__ inline void count_candidates(const SelectTiles& tiles, std::uint32_t threshold, std::uint64_t* before,
                                        const Place& place) {
  const unsigned lane = threadIdx.x % kWarpSize;
  for (std::size_t tile = place.warp(); tile < tiles.size; tile += place.warps()) {
    const std::uint32_t count = tiles.counts[tile];
    std::uint32_t above = 0;
    std::uint32_t equal = 0;
    for (std::uint32_t i = lane; i < count; i += kWarpSize) {
      const std::uint32_t magnitude = tiles.patterns[tile * kTile + i] & kMagnitude;
      above += magnitude > threshold ? 1u : 0u;
      equal += magnitude == threshold ? 1u : 0u;
    }
    above = __reduce_add_sync(kAllLanes, above);
    equal = __reduce_add_sync(kAllLanes, equal);
    if (lane == 0) before[tile] = std::uint64_t{above} << 32 | equal;
  }
  if (place.thread() == 0) before[tiles.size] = 0;
}

/// Writes what is chosen. count of the state := how many numbers that is.
__device__ inline void write_chosen(const SelectChosen& chosen, SelectState* state, std::uint32_t* positions,
                                    float* values, const Place& place) {
  const std::uint32_t threshold = state->threshold;
  const std::uint32_t ties = state->ties;
  for (std::size_t tile = place.warp(); tile < chosen.tiles.size; tile += place.warps()) {
    const std::size_t first = tile * kTile;
    each_chosen(chosen, tile, threshold, ties, [&](std::size_t to, std::uint32_t i, std::uint32_t pattern) {
      positions[to] = static_cast<std::uint32_t>(first + chosen.tiles.places[first + i]);
      values[to] = format::one_nan(__uint_as_float(pattern));
    });
  }
  if (place.thread() == 0) {
    const std::uint64_t all = chosen.before[chosen.tiles.size];
    const auto equal = static_cast<std::uint32_t>(all);
    state->count = static_cast<std::uint32_t>(all >> 32) + (equal < ties ? equal : ties);
    state->retry = 0;  // callers that read the count back read it together with this as eight bytes
  }
}

}  // namespace gradtool::cuda
