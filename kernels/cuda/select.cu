#include "kernels/cuda/select.hpp"

#include <cuda_runtime.h>

#include "kernels/cuda/block_ops.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/select_digits.hpp"
#include "kernels/cuda/tile_scan.hpp"

namespace gradtool::cuda {
namespace {

constexpr std::uint32_t kNextShift = 9;
constexpr std::uint32_t kLastCounters = 512;
constexpr std::size_t kTile = 2048;  // numbers that a warp takes at a time
constexpr unsigned kFours = 4;       // loads of 16 bytes that a thread has under way
constexpr unsigned kRound = 4 * kFours * schedule::kLanes;
static_assert(kTile % kRound == 0);

/// Candidates are written from their tile's start on, so that no tile waits for another.
struct Tiles {
  std::uint32_t* patterns;
  std::uint16_t* places;
  std::uint32_t* counts;
  std::size_t size;
};

/// The leading digit of all numbers. Neighbouring lanes count in different copies.
__global__ void top_digit_kernel(const float* x, std::size_t n, bool aligned, std::uint32_t k, SelectState* state) {
  constexpr std::uint32_t kCopies = 2;
  __shared__ std::uint32_t counters[kCopies * SelectState::kCounters];
  clear_counters(counters, kCopies * SelectState::kCounters);
  std::uint32_t* own = counters + threadIdx.x % kCopies;
  const auto count = [&](std::uint32_t pattern) { count_top_digit<kCopies>(pattern, own); };
  const std::size_t fours = (n + 3) / 4;
  for (std::size_t first = std::size_t{blockIdx.x} * (kFours * kThreads); first < fours;
       first += std::size_t{gridDim.x} * (kFours * kThreads)) {
    uint4 loaded[kFours];
#pragma unroll
    for (unsigned j = 0; j < kFours; ++j) loaded[j] = four_patterns(x, first + j * kThreads + threadIdx.x, n, aligned);
#pragma unroll
    for (unsigned j = 0; j < kFours; ++j) {
      count(loaded[j].x);
      count(loaded[j].y);
      count(loaded[j].z);
      count(loaded[j].w);
    }
  }
  add_counters<kCopies>(counters, SelectState::kCounters, state->counters[0]);
  if (!last_block(&state->tickets[0])) return;
  find_digit<SelectState::kCounters>(state->counters[0], k, [&](std::uint32_t digit, std::uint32_t left) {
    state->prefix = digit;
    state->left = left;
    state->low = digit << kTopShift;
  });
}

/// Candidates of all tiles. `Refine`: counts the next digit of those that begin with the leading one found; else they
/// are what is chosen. The first pass ended with the last tiles, which the cache may still have, so they come first.
template <bool Refine>
__global__ void gather_kernel(const float* x, std::size_t n, bool aligned, Tiles tiles, std::uint32_t low,
                              const std::uint32_t* low_at, std::uint64_t* before, SelectState* state) {
  __shared__ std::uint32_t counters[Refine ? SelectState::kCounters : 1];
  if constexpr (Refine) clear_counters(counters, SelectState::kCounters);
  if (low_at != nullptr) low = *low_at;
  if (!Refine && low == 0) low = 1;
  const std::uint32_t prefix = Refine ? state->prefix : 0u;
  const unsigned lane = threadIdx.x % schedule::kLanes;
  const std::uint32_t below = schedule::lanes_below(lane);
  for (std::size_t t = warp_in_grid(); t < tiles.size; t += warps_in_grid()) {
    const std::size_t tile = tiles.size - 1 - t;
    std::uint32_t* patterns = tiles.patterns + tile * kTile;
    std::uint16_t* places = tiles.places + tile * kTile;
    std::uint32_t found = 0;
    for (std::uint32_t round = 0; round < kTile && tile * kTile + round < n; round += kRound) {
      const std::size_t first = (tile * kTile + round) / 4 + lane;
      uint4 loaded[kFours];
#pragma unroll
      for (unsigned j = 0; j < kFours; ++j) loaded[j] = four_patterns(x, first + j * schedule::kLanes, n, aligned);
#pragma unroll
      for (unsigned j = 0; j < kFours; ++j) {
        const std::uint32_t pattern[4] = {loaded[j].x, loaded[j].y, loaded[j].z, loaded[j].w};
        const std::size_t index = 4 * (first + j * schedule::kLanes);
        bool is[4];
        for (unsigned e = 0; e < 4; ++e) is[e] = (pattern[e] & kMagnitude) >= low && index + e < n;
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
          if constexpr (Refine) {
            const std::uint32_t magnitude = pattern[e] & kMagnitude;
            const std::uint32_t digit = magnitude >> kNextShift & (SelectState::kCounters - 1);
            if (magnitude >> kTopShift == prefix && digit != 0) atomicAdd(&counters[digit], 1u);
          }
        }
      }
    }
    if (lane == 0) tiles.counts[tile] = found;
    if (!Refine && lane == 0) before[tile] = std::uint64_t{found} << 32;
  }
  if constexpr (Refine) {
    add_counters<1>(counters, SelectState::kCounters, state->counters[1]);
    if (!last_block(&state->tickets[1])) return;
    find_digit<SelectState::kCounters>(state->counters[1], state->left, [&](std::uint32_t digit, std::uint32_t left) {
      state->prefix = prefix << (kTopShift - kNextShift) | digit;
      state->left = left;
    });
  } else if (thread_in_grid() == 0) {
    before[tiles.size] = 0;
    state->threshold = low - 1;
    state->ties = 0;
  }
}

/// The last digit, among candidates.
__global__ void last_digit_kernel(Tiles tiles, SelectState* state) {
  __shared__ std::uint32_t counters[kLastCounters];
  clear_counters(counters, kLastCounters);
  const std::uint32_t prefix = state->prefix;
  for (std::size_t tile = warp_in_grid(); tile < tiles.size; tile += warps_in_grid()) {
    const std::uint32_t count = tiles.counts[tile];
    for (std::uint32_t i = threadIdx.x % schedule::kLanes; i < count; i += schedule::kLanes) {
      const std::uint32_t magnitude = tiles.patterns[tile * kTile + i] & kMagnitude;
      const std::uint32_t digit = magnitude & (kLastCounters - 1);
      if (magnitude >> kNextShift == prefix && digit != 0) atomicAdd(&counters[digit], 1u);
    }
  }
  add_counters<1>(counters, kLastCounters, state->counters[2]);
  if (!last_block(&state->tickets[2])) return;
  find_digit<kLastCounters>(state->counters[2], state->left, [&](std::uint32_t digit, std::uint32_t left) {
    state->threshold = prefix << kNextShift | digit;
    state->ties = left;
  });
}

/// before[tile] := candidates above the threshold (upper half) and equal to it; the last one closes the row.
__global__ void count_kernel(Tiles tiles, const std::uint32_t* low, SelectState* state, std::uint64_t* before) {
  std::uint32_t threshold = state->threshold;
  if (low != nullptr) threshold = (*low == 0 ? 1u : *low) - 1;
  const unsigned lane = threadIdx.x % schedule::kLanes;
  for (std::size_t tile = warp_in_grid(); tile < tiles.size; tile += warps_in_grid()) {
    const std::uint32_t count = tiles.counts[tile];
    std::uint32_t above = 0;
    std::uint32_t equal = 0;
    for (std::uint32_t i = lane; i < count; i += schedule::kLanes) {
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

__global__ void write_kernel(Tiles tiles, SelectState* state, const std::uint64_t* before, std::uint32_t* positions,
                             float* values) {
  const std::uint32_t threshold = state->threshold;
  const std::uint32_t ties = state->ties;
  const unsigned lane = threadIdx.x % schedule::kLanes;
  const std::uint32_t below = schedule::lanes_below(lane);
  for (std::size_t tile = warp_in_grid(); tile < tiles.size; tile += warps_in_grid()) {
    const std::uint32_t count = tiles.counts[tile];
    auto above = static_cast<std::uint32_t>(before[tile] >> 32);
    auto equal = static_cast<std::uint32_t>(before[tile]);
    for (std::uint32_t first = 0; first < count; first += schedule::kLanes) {
      const std::uint32_t i = first + lane;
      const std::uint32_t pattern = i < count ? tiles.patterns[tile * kTile + i] : 0u;
      const std::uint32_t magnitude = pattern & kMagnitude;
      const bool is_above = i < count && magnitude > threshold;
      const bool is_equal = i < count && magnitude == threshold;
      const std::uint32_t all_above = __ballot_sync(kAllLanes, is_above);
      const std::uint32_t all_equal = __ballot_sync(kAllLanes, is_equal);
      const std::uint32_t tie = equal + static_cast<std::uint32_t>(__popc(all_equal & below));
      if (is_above || (is_equal && tie < ties)) {
        const std::uint32_t stronger = above + static_cast<std::uint32_t>(__popc(all_above & below));
        const std::size_t to = std::size_t{stronger} + (tie < ties ? tie : ties);
        positions[to] = static_cast<std::uint32_t>(tile * kTile + tiles.places[tile * kTile + i]);
        values[to] = __uint_as_float(pattern);
      }
      above += static_cast<std::uint32_t>(__popc(all_above));
      equal += static_cast<std::uint32_t>(__popc(all_equal));
    }
  }
  if (thread_in_grid() == 0) {
    const std::uint64_t all = before[tiles.size];
    const auto equal = static_cast<std::uint32_t>(all);
    state->count = static_cast<std::uint32_t>(all >> 32) + (equal < ties ? equal : ties);
  }
}

std::size_t tiles_of(std::size_t n) {
  return (n + kTile - 1) / kTile;
}
constexpr unsigned kMostBlocks = 1024;  // every block clears and flushes a histogram, so each reads a lot

}  // namespace

/// Where things lie in the scratch.
struct Select::Places {
  explicit Places(std::size_t n) {
    const std::size_t tiles = tiles_of(n);
    const auto take = [this](std::size_t size) {
      const std::size_t at = bytes;
      bytes += Arena<Space::cuda>::padded_size(size);
      return at;
    };
    state = take(sizeof(SelectState));
    patterns = take(4 * kTile * tiles);
    places = take(2 * kTile * tiles);
    counts = take(4 * tiles);
    before = take(8 * (tiles + 1));
    scan = take(scan_bytes<std::uint64_t>(tiles + 1));
  }
  std::size_t state = 0, patterns = 0, places = 0, counts = 0, before = 0, scan = 0, bytes = 0;
};

std::size_t Select::scratch_bytes(std::size_t n) {
  return n == 0 ? 0 : Places{n}.bytes;
}

Select::Select(Queue<Space::cuda> queue, View<const float, Space::cuda> numbers, View<std::byte, Space::cuda> scratch)
    : queue_{queue}, numbers_{numbers} {
  const Places at{numbers.size()};
  expects(!numbers.empty() && at.bytes <= scratch.size(), "select: scratch is smaller than planned");
  std::byte* base = scratch.data();
  state_ = reinterpret_cast<SelectState*>(base + at.state);
  patterns_ = reinterpret_cast<std::uint32_t*>(base + at.patterns);
  places_ = reinterpret_cast<std::uint16_t*>(base + at.places);
  counts_ = reinterpret_cast<std::uint32_t*>(base + at.counts);
  before_ = reinterpret_cast<std::uint64_t*>(base + at.before);
  scan_ = scratch.part(at.scan, at.bytes - at.scan);
}

void Select::gather(bool refine, std::uint32_t low, const std::uint32_t* low_at) const {
  const Tiles tiles{patterns_, places_, counts_, tiles_of(numbers_.size())};
  const auto kernel = refine ? gather_kernel<true> : gather_kernel<false>;
  const unsigned blocks = blocks_for(tiles.size, kBlockWarpCount, refine ? 2 * kMostBlocks : 8192);
  launch(queue_, "select gather", kernel, blocks, numbers_.data(), numbers_.size(), aligned_to(numbers_.data(), 16),
         tiles, low, low_at, before_, state_);
}

void Select::largest(std::size_t k) const {
  const std::size_t n = numbers_.size();
  expects(k >= 1 && k <= n, "select: more numbers wanted than there are");
  clear();
  launch(queue_, "select top digit", top_digit_kernel, blocks_for(n, 4 * kFours * kThreads, kMostBlocks),
         numbers_.data(), n, aligned_to(numbers_.data(), 16), static_cast<std::uint32_t>(k), state_);
  refine();
  count_chosen();
}

void Select::clear() const {
  fill(queue_, {reinterpret_cast<std::byte*>(state_), sizeof(SelectState)}, 0);
}

void Select::refine() const {
  const Tiles tiles{patterns_, places_, counts_, tiles_of(numbers_.size())};
  gather(true, 0, &state_->low);
  const unsigned blocks = blocks_for(tiles.size, kBlockWarpCount, kMostBlocks);
  launch(queue_, "select last digit", last_digit_kernel, blocks, tiles, state_);
}

void Select::count_chosen() const {
  narrow(nullptr);
}
void Select::narrow(const std::uint32_t* low) const {
  const Tiles tiles{patterns_, places_, counts_, tiles_of(numbers_.size())};
  launch(queue_, "select count", count_kernel, blocks_for(tiles.size, kBlockWarpCount), tiles, low, state_, before_);
}

void Select::at_least(std::uint32_t low) const {
  gather(false, low, nullptr);
}
void Select::at_least(const std::uint32_t* low) const {
  gather(false, 0, low);
}

Select::Candidates Select::candidates() const {
  return {patterns_, counts_, tiles_of(numbers_.size()), kTile};
}

void Select::write(std::uint32_t* positions, float* values) const {
  const Tiles tiles{patterns_, places_, counts_, tiles_of(numbers_.size())};
  scan_tiles(queue_, before_, tiles.size + 1, scan_);
  launch(queue_, "select write", write_kernel, blocks_for(tiles.size, kBlockWarpCount), tiles, state_, before_,
         positions, values);
}

}  // namespace gradtool::cuda
