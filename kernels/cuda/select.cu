#include "kernels/cuda/select.hpp"

#include <cuda_runtime.h>

#include <cmath>

#include "kernels/cuda/block_ops.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/select_digits.hpp"
#include "kernels/cuda/tile_scan.hpp"
#include "kernels/law/keep_nan.hpp"

namespace gradtool::cuda {
namespace {

constexpr std::uint32_t kNextShift = 9;
constexpr std::uint32_t kLastCounters = 512;
constexpr std::uint32_t kCopies = 2;  // of the counters of leading digits, which many numbers share
constexpr std::size_t kTile = 2048;   // numbers that a warp takes at a time
constexpr unsigned kFours = 4;        // loads of 16 bytes that a thread has under way
constexpr unsigned kRound = 4 * kFours * schedule::kLanes;
static_assert(kTile % kRound == 0);

/// Candidates are written from their tile's start on, so that no tile waits for another.
struct Tiles {
  std::uint32_t* patterns;
  std::uint16_t* places;
  std::uint32_t* counts;
  std::size_t size;
};

/// A tile's numbers that are in the sample: 128 in a row, in a place that changes from tile to tile.
constexpr unsigned kSampled = 4 * schedule::kLanes;
__device__ std::size_t sampled_four(std::size_t i) {
  const std::size_t tile = i / schedule::kLanes;
  const std::uint32_t place = static_cast<std::uint32_t>(tile) * 2654435769u >> 28;
  static_assert(kTile / kSampled == 16);
  return tile * (kTile / 4) + place * schedule::kLanes + i % schedule::kLanes;
}

/// Where candidates begin: at the leading digit that `wanted` of the sample reach.
__global__ void sample_kernel(const float* x, std::size_t n, bool aligned, std::size_t tiles, std::uint32_t wanted,
                              SelectState* state) {
  __shared__ std::uint32_t counters[kCopies * SelectState::kCounters];
  clear_counters(counters, kCopies * SelectState::kCounters);
  std::uint32_t* own = counters + threadIdx.x % kCopies;
  const std::size_t fours = tiles * schedule::kLanes;
  for (std::size_t first = thread_in_grid(); first < fours; first += kFours * threads_in_grid()) {
    uint4 loaded[kFours];
#pragma unroll
    for (unsigned j = 0; j < kFours; ++j) {
      const std::size_t i = first + j * threads_in_grid();
      loaded[j] = i < fours ? four_patterns(x, sampled_four(i), n, aligned) : uint4{0, 0, 0, 0};
    }
#pragma unroll
    for (unsigned j = 0; j < kFours; ++j) count_top_digits<kCopies>(loaded[j], own);
  }
  add_counters<kCopies>(counters, SelectState::kCounters, state->sampled);
  if (!last_block(&state->tickets[3])) return;
  find_digit<SelectState::kCounters>(state->sampled, wanted,
                                     [&](std::uint32_t digit, std::uint32_t) { state->low = digit << kTopShift; });
}

/// The leading digit of all numbers. Neighbouring lanes count in different copies. `OnlyAgain`: where a sample failed.
template <bool OnlyAgain>
__global__ void top_digit_kernel(const float* x, std::size_t n, bool aligned, std::uint32_t k, SelectState* state) {
  if (OnlyAgain && state->retry == 0) return;
  __shared__ std::uint32_t counters[kCopies * SelectState::kCounters];
  clear_counters(counters, kCopies * SelectState::kCounters);
  std::uint32_t* own = counters + threadIdx.x % kCopies;
  const std::size_t fours = (n + 3) / 4;
  for (std::size_t first = std::size_t{blockIdx.x} * (kFours * kThreads); first < fours;
       first += std::size_t{gridDim.x} * (kFours * kThreads)) {
    uint4 loaded[kFours];
#pragma unroll
    for (unsigned j = 0; j < kFours; ++j) loaded[j] = four_patterns(x, first + j * kThreads + threadIdx.x, n, aligned);
#pragma unroll
    for (unsigned j = 0; j < kFours; ++j) count_top_digits<kCopies>(loaded[j], own);
  }
  add_counters<kCopies>(counters, SelectState::kCounters, state->counters[0]);
  if (!last_block(&state->tickets[0])) return;
  find_digit<SelectState::kCounters>(state->counters[0], k, [&](std::uint32_t digit, std::uint32_t left) {
    state->prefix = digit;
    state->left = left;
    state->low = digit << kTopShift;
  });
}

/// What a gather of candidates does beside gathering them.
enum class Gather {
  chosen,  ///< they are what is chosen
  refine,  ///< counts the next digit of those that begin with the leading one
  count,   ///< counts their leading digits, and tells whether they are at least k
  again,   ///< nothing, and that only where a sample failed
};

/// Candidates of all tiles: what reaches *low_at, or `low`. A pass before this one ended with the last tiles, which the
/// cache may still have, so they come first.
template <Gather What>
__global__ void gather_kernel(const float* x, std::size_t n, bool aligned, Tiles tiles, std::uint32_t low,
                              const std::uint32_t* low_at, std::uint32_t k, std::uint64_t* before, SelectState* state) {
  constexpr bool kCounts = What == Gather::refine || What == Gather::count;
  __shared__ std::uint32_t counters[kCounts ? SelectState::kCounters : 1];
  if (What == Gather::again && state->retry == 0) return;
  if constexpr (kCounts) clear_counters(counters, SelectState::kCounters);
  if (low_at != nullptr) low = *low_at;
  if (What == Gather::chosen && low == 0) low = 1;
  const std::uint32_t prefix = What == Gather::refine ? state->prefix : 0u;
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
          if constexpr (What == Gather::count) count_top_digit<1>(pattern[e], counters);
          if constexpr (What == Gather::refine) {
            const std::uint32_t magnitude = pattern[e] & kMagnitude;
            const std::uint32_t digit = magnitude >> kNextShift & (SelectState::kCounters - 1);
            if (magnitude >> kTopShift == prefix && digit != 0) atomicAdd(&counters[digit], 1u);
          }
        }
      }
    }
    if (lane == 0) tiles.counts[tile] = found;
    if (What == Gather::chosen && lane == 0) before[tile] = std::uint64_t{found} << 32;
  }
  if constexpr (What == Gather::count) {
    add_counters<1>(counters, SelectState::kCounters, state->candidates);
    if (!last_block(&state->tickets[4])) return;
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
  } else if constexpr (What == Gather::refine) {
    add_counters<1>(counters, SelectState::kCounters, state->counters[1]);
    if (!last_block(&state->tickets[1])) return;
    find_digit<SelectState::kCounters>(state->counters[1], state->left, [&](std::uint32_t digit, std::uint32_t left) {
      state->prefix = prefix << (kTopShift - kNextShift) | digit;
      state->left = left;
    });
  } else if (What == Gather::chosen && thread_in_grid() == 0) {
    before[tiles.size] = 0;
    state->threshold = low - 1;
    state->ties = 0;
  }
}

/// The second or the last digit, among candidates.
template <std::uint32_t Digit>
__global__ void digit_kernel(Tiles tiles, SelectState* state) {
  constexpr std::uint32_t kCount = Digit == 1 ? SelectState::kCounters : kLastCounters;
  constexpr std::uint32_t kShift = Digit == 1 ? kNextShift : 0;
  constexpr std::uint32_t kAbove = Digit == 1 ? kTopShift : kNextShift;
  __shared__ std::uint32_t counters[kCount];
  clear_counters(counters, kCount);
  const std::uint32_t prefix = state->prefix;
  for (std::size_t tile = warp_in_grid(); tile < tiles.size; tile += warps_in_grid()) {
    const std::uint32_t count = tiles.counts[tile];
    for (std::uint32_t i = threadIdx.x % schedule::kLanes; i < count; i += schedule::kLanes) {
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
        values[to] = law::one_nan(__uint_as_float(pattern));
      }
      above += static_cast<std::uint32_t>(__popc(all_above));
      equal += static_cast<std::uint32_t>(__popc(all_equal));
    }
  }
  if (thread_in_grid() == 0) {
    const std::uint64_t all = before[tiles.size];
    const auto equal = static_cast<std::uint32_t>(all);
    state->count = static_cast<std::uint32_t>(all >> 32) + (equal < ties ? equal : ties);
    state->retry = 0;  // whoever reads the count back reads eight bytes
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

Select::Select(Queue<Space::cuda> queue, View<const float, Space::cuda> numbers, View<std::byte, Space::cuda> scratch,
               std::size_t many)
    : queue_{queue}, numbers_{numbers}, many_{many} {
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

namespace {

template <Gather What>
void gather(Queue<Space::cuda> queue, View<const float, Space::cuda> x, const Tiles& tiles, std::uint32_t low,
            const std::uint32_t* low_at, std::size_t k, std::uint64_t* before, SelectState* state) {
  const bool counts = What == Gather::refine || What == Gather::count;
  launch(queue, "select gather", gather_kernel<What>,
         blocks_for(tiles.size, kBlockWarpCount, counts ? 2 * kMostBlocks : 8192), x.data(), x.size(),
         aligned_to(x.data(), 16), tiles, low, low_at, static_cast<std::uint32_t>(k), before, state);
}

}  // namespace

void Select::largest(std::size_t k) const {
  const std::size_t n = numbers_.size();
  expects(k >= 1 && k <= n, "select: more numbers wanted than there are");
  clear();
  if (n >= many_) {
    find_by_sample(k);
  } else {
    find_by_histogram(k, false);
    refine();
  }
  count_chosen();
}

void Select::find_by_histogram(std::size_t k, bool only_again) const {
  const std::size_t n = numbers_.size();
  const auto kernel = only_again ? top_digit_kernel<true> : top_digit_kernel<false>;
  launch(queue_, "select top digit", kernel, blocks_for(n, 4 * kFours * kThreads, kMostBlocks), numbers_.data(), n,
         aligned_to(numbers_.data(), 16), static_cast<std::uint32_t>(k), state_);
}

/// The share of the sample that the k largest have, and some standard deviations more.
void Select::find_by_sample(std::size_t k) const {
  const std::size_t n = numbers_.size();
  const Tiles tiles{patterns_, places_, counts_, tiles_of(n)};
  const double share = static_cast<double>(k) * kSampled / kTile;
  const auto wanted = static_cast<std::uint32_t>(1.125 * share + 4.0 * std::sqrt(share) + 8.0);
  launch(queue_, "select sample", sample_kernel, blocks_for(tiles.size, kFours * kBlockWarpCount, kMostBlocks),
         numbers_.data(), n, aligned_to(numbers_.data(), 16), tiles.size, wanted, state_);
  gather<Gather::count>(queue_, numbers_, tiles, 0, &state_->low, k, before_, state_);
  find_by_histogram(k, true);
  gather<Gather::again>(queue_, numbers_, tiles, 0, &state_->low, k, before_, state_);
  const unsigned blocks = blocks_for(tiles.size, kBlockWarpCount, kMostBlocks);
  launch(queue_, "select next digit", digit_kernel<1>, blocks, tiles, state_);
  launch(queue_, "select last digit", digit_kernel<2>, blocks, tiles, state_);
}

void Select::clear() const {
  fill(queue_, {reinterpret_cast<std::byte*>(state_), sizeof(SelectState)}, 0);
}

void Select::refine() const {
  const Tiles tiles{patterns_, places_, counts_, tiles_of(numbers_.size())};
  gather<Gather::refine>(queue_, numbers_, tiles, 0, &state_->low, 0, before_, state_);
  const unsigned blocks = blocks_for(tiles.size, kBlockWarpCount, kMostBlocks);
  launch(queue_, "select last digit", digit_kernel<2>, blocks, tiles, state_);
}

void Select::count_chosen() const {
  narrow(nullptr);
}
void Select::narrow(const std::uint32_t* low) const {
  const Tiles tiles{patterns_, places_, counts_, tiles_of(numbers_.size())};
  launch(queue_, "select count", count_kernel, blocks_for(tiles.size, kBlockWarpCount), tiles, low, state_, before_);
}

void Select::at_least(std::uint32_t low) const {
  const Tiles tiles{patterns_, places_, counts_, tiles_of(numbers_.size())};
  gather<Gather::chosen>(queue_, numbers_, tiles, low, nullptr, 0, before_, state_);
}
void Select::at_least(const std::uint32_t* low) const {
  const Tiles tiles{patterns_, places_, counts_, tiles_of(numbers_.size())};
  gather<Gather::chosen>(queue_, numbers_, tiles, 0, low, 0, before_, state_);
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
