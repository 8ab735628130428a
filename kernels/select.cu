#include "kernels/select.hpp"

#include <cuda_runtime.h>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/block_ops.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/radix_select.hpp"
#include "kernels/cuda/tile_scan.hpp"
#include "kernels/float_bits.hpp"
#include "lib/core/view.hpp"

namespace gradtool::cuda {
namespace {

constexpr std::size_t kTile = SelectTiles::kTile;
constexpr unsigned kFours = 4;                // loads of 16 bytes that a thread has under way
constexpr std::size_t kSampled = kTile / 16;  // numbers of a tile that are in the sample

// The numbers that a kernel selects from. load(i) starts the load of numbers 4i to 4i + 3, with zeros behind the end;
// load_whole(i) does so without a test, where whole(4i + 4). patterns(loaded), called when other loads are under way
// too, makes their patterns.

struct NumberSource {
  using Loaded = uint4;
  const float* x;
  std::size_t n;
  bool aligned;

  explicit NumberSource(const SelectSource& from) : x{from.x}, n{from.size}, aligned{aligned_to(from.x, 16)} {}
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

/// Calls start with the source that `from` describes.
template <class Start>
void with_source(const SelectSource& from, const Start& start) {
  if (from.pairs) {
    start(PowerSource{from});
  } else {
    start(NumberSource{from});
  }
}

constexpr std::uint32_t kLastCounters = 512;  // values of the last digit
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

/// Finds the leading digit of the k-th largest of all numbers. Neighbouring lanes count in different copies of the
/// counters. `OnlyAgain`: does nothing unless a guess from a sample failed.
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

/// Finds the second or the last digit, among the candidates.
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
    for (std::uint32_t i = threadIdx.x % kWarpSize; i < count; i += kWarpSize) {
      const std::uint32_t magnitude = tiles.patterns[tile * kTile + i] & kMagnitude;
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

constexpr unsigned kRound = 4 * kFours * kWarpSize;
static_assert(kTile % kRound == 0);

/// The work of a gather besides gathering candidates.
enum class Gather {
  chosen,  ///< stores that all candidates are chosen
  refine,  ///< finds the second digit, among candidates that have the leading one
  count,   ///< finds the leading digit, and whether there are at least k candidates
  again,   ///< gathers only where a guess from a sample failed
};

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

/// In a gather that counts second digits: the last block finds that of the k-th largest.
__device__ void settle_refined(const std::uint32_t* counters, std::uint32_t prefix, SelectState* state) {
  add_counters<1>(counters, SelectState::kCounters, state->counters[1]);
  if (!last_block(&state->tickets[1])) return;
  find_digit<SelectState::kCounters>(state->counters[1], state->left, [&](std::uint32_t digit, std::uint32_t left) {
    state->prefix = prefix << (kTopShift - kNextShift) | digit;
    state->left = left;
  });
}

/// Gathers the candidates of all tiles: what reaches *low_at, or `low` where that is null. A pass before this one ended
/// with the last tiles, which the cache may still have, so this one begins with them.
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
    if (threadIdx.x % kWarpSize == 0) {
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

/// before[tile] := candidates above the threshold (upper half) and equal to it (lower half); before[tiles] := 0. Where
/// `low` is not null, threshold := max(*low, 1) - 1, so that what reaches *low lies above it, except zeros.
__global__ void count_kernel(SelectTiles tiles, const std::uint32_t* low, SelectState* state, std::uint64_t* before) {
  const std::uint32_t threshold = low == nullptr ? state->threshold : (*low == 0 ? 1u : *low) - 1;
  const unsigned lane = threadIdx.x % kWarpSize;
  for (std::size_t tile = warp_in_grid(); tile < tiles.size; tile += warps_in_grid()) {
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
  if (thread_in_grid() != 0) return;
  before[tiles.size] = 0;
  if (low != nullptr) state->threshold = threshold;
}

/// Writes what is chosen. count of the state := how many numbers that is.
__global__ void write_kernel(SelectChosen chosen, SelectState* state, std::uint32_t* positions, float* values) {
  const std::uint32_t threshold = state->threshold;
  const std::uint32_t ties = state->ties;
  for (std::size_t tile = warp_in_grid(); tile < chosen.tiles.size; tile += warps_in_grid()) {
    const std::size_t first = tile * kTile;
    each_chosen(chosen, tile, threshold, ties, [&](std::size_t to, std::uint32_t i, std::uint32_t pattern) {
      positions[to] = static_cast<std::uint32_t>(first + chosen.tiles.places[first + i]);
      values[to] = format::one_nan(__uint_as_float(pattern));
    });
  }
  if (thread_in_grid() == 0) {
    const std::uint64_t all = chosen.before[chosen.tiles.size];
    const auto equal = static_cast<std::uint32_t>(all);
    state->count = static_cast<std::uint32_t>(all >> 32) + (equal < ties ? equal : ties);
    state->retry = 0;  // callers that read the count back read it together with this as eight bytes
  }
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
  constexpr bool kCounts = What == Gather::refine || What == Gather::count;
  constexpr unsigned kMost = What == Gather::again ? kMostAgain : kCounts ? 2 * kMostHistograms : 8192;
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
  gather<Gather::refine>(queue_, from_, workspace_.tiles, 0, &workspace_.state->low, 0, nullptr, workspace_.state);
  find_last_digit(queue_, workspace_.tiles, workspace_.state);
}
void Select::count_chosen() const {
  count_candidates(queue_, workspace_.tiles, nullptr, workspace_.before, workspace_.state);
}

}  // namespace gradtool::cuda
