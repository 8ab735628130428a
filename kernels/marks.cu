#include "kernels/marks.hpp"

#include <cuda_runtime.h>

#include "kernels/cuda/block_ops.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/runtime.hpp"
#include "kernels/cuda/tile_scan.hpp"
#include "kernels/float_bits.hpp"

namespace gradtool::cuda {
namespace {

constexpr std::size_t kTileWords = kThreads;
constexpr std::size_t kMostLanes = 1024;

std::size_t words_of(std::size_t n) {
  return (n + 31) / 32;
}
std::size_t tiles_of(std::size_t n) {
  return (words_of(n) + kTileWords - 1) / kTileWords;
}
std::size_t row_bytes(std::size_t n) {
  return Arena<Space::cuda>::padded_size(8 * (tiles_of(n) + 1));
}

__global__ void count_kernel(const std::uint32_t* words, std::size_t count, std::size_t tiles, std::uint64_t* before) {
  for (std::size_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const std::size_t w = tile * kTileWords + threadIdx.x;
    const auto own = static_cast<std::uint32_t>(w < count ? __popc(words[w]) : 0);
    std::uint32_t total = 0;
    block_sum_through(own, total);
    if (threadIdx.x == 0) before[tile] = total;
  }
  if (thread_in_grid() == 0) before[tiles] = 0;
}

/// visit(i, marked, at) for every element, neighbours by the lanes of a warp; `at` counts the marks in front of it.
template <class Visit>
__device__ void each_element(const MarkScan& marks, const Visit& visit) {
  __shared__ std::uint32_t words[kTileWords], fronts[kTileWords];
  const unsigned lane = lane_in_warp();
  const std::size_t count = (marks.n + 31) / 32;
  for (std::size_t tile = blockIdx.x; tile < marks.tiles; tile += gridDim.x) {
    const std::size_t w = tile * kTileWords + threadIdx.x;
    const std::uint32_t word = w < count ? marks.words[w] : 0;
    const auto own = static_cast<std::uint32_t>(__popc(word));
    std::uint32_t total = 0;
    fronts[threadIdx.x] = block_sum_through(own, total) - own;
    words[threadIdx.x] = word;
    __syncthreads();
    const std::uint64_t base = marks.before[tile];
    const unsigned first = threadIdx.x - lane;
    for (unsigned j = first; j < first + kWarpSize; ++j) {
      const std::size_t i = 32 * (tile * kTileWords + j) + lane;
      const std::uint32_t mine = words[j];
      const auto in_word = static_cast<std::uint32_t>(__popc(mine & lanes_below(lane)));
      if (i < marks.n) visit(i, (mine >> lane & 1u) != 0, base + fronts[j] + in_word);
    }
    __syncthreads();
  }
}

__global__ void positions_kernel(MarkScan marks, std::uint32_t* positions, std::uint32_t* count) {
  each_element(marks, [&](std::size_t i, bool marked, std::uint64_t at) {
    if (marked) positions[at] = static_cast<std::uint32_t>(i);
  });
  if (count != nullptr && thread_in_grid() == 0) *count = static_cast<std::uint32_t>(marks.before[marks.tiles]);
}

__global__ void or_kernel(const std::uint32_t* other, std::size_t count, std::uint32_t* words) {
  for (std::size_t i = thread_in_grid(); i < count; i += threads_in_grid()) words[i] |= other[i];
}

__global__ void set_kernel(const std::uint32_t* positions, const std::uint32_t* count, std::size_t most,
                           std::uint32_t* words) {
  const std::size_t k = count == nullptr ? most : *count;
  for (std::size_t i = thread_in_grid(); i < k && i < most; i += threads_in_grid())
    atomicOr(&words[positions[i] / 32], 1u << positions[i] % 32);
}

__global__ void take_kernel(MarkScan marks, float* held, float* momentum, const std::uint32_t* spared, float* values) {
  each_element(marks, [&](std::size_t i, bool marked, std::uint64_t at) {
    if (!marked) return;
    values[at] = format::one_nan(held[i]);
    held[i] = 0.0f;
    if (momentum != nullptr && (spared[i / 32] >> i % 32 & 1u) == 0) momentum[i] = 0.0f;
  });
}

__global__ void place_kernel(MarkScan marks, const float* values, float share, float* out) {
  each_element(marks,
               [&](std::size_t i, bool marked, std::uint64_t at) { out[i] = marked ? values[at] * share : 0.0f; });
}

/// loads[lane] += the marks there.
__global__ void lanes_kernel(const std::uint32_t* marks, std::size_t words, std::size_t lanes, std::uint32_t* loads) {
  __shared__ std::uint32_t own[kMostLanes];
  for (std::size_t l = threadIdx.x; l < lanes; l += kThreads) own[l] = 0;
  __syncthreads();
  for (std::size_t w = thread_in_grid(); w < words; w += threads_in_grid()) {
    for (std::uint32_t rest = marks[w]; rest != 0; rest &= rest - 1) {
      const std::size_t i = 32 * w + static_cast<std::uint32_t>(__ffs(static_cast<int>(rest)) - 1);
      atomicAdd(&own[i % lanes], 1u);
    }
  }
  __syncthreads();
  for (std::size_t l = threadIdx.x; l < lanes; l += kThreads) {
    if (own[l] != 0) atomicAdd(&loads[l], own[l]);
  }
}

/// One warp: the fullest lane.
__global__ void most_kernel(const std::uint32_t* loads, std::size_t lanes, std::uint64_t* most) {
  std::uint32_t largest = 0;
  for (std::size_t l = threadIdx.x; l < lanes; l += kWarpSize) largest = max(largest, loads[l]);
  largest = __reduce_max_sync(kAllLanes, largest);
  if (threadIdx.x == 0) *most = largest;
}

unsigned blocks_of(const MarkScan& marks) {
  return blocks_for(marks.tiles, 1);
}

}  // namespace

std::size_t mark_scratch_bytes(std::size_t n) {
  return row_bytes(n) + Arena<Space::cuda>::padded_size(scan_bytes<std::uint64_t>(tiles_of(n) + 1));
}

MarkScan scan_marks(Queue<Space::cuda> queue, View<const std::uint32_t, Space::cuda> words, std::size_t n,
                    View<std::byte, Space::cuda> scratch) {
  expects(words.size() == words_of(n) && scratch.size() >= mark_scratch_bytes(n),
          "a bitmap needs a bit for each element, and scratch as planned");
  auto* before = reinterpret_cast<std::uint64_t*>(scratch.data());
  const std::size_t tiles = tiles_of(n), front = row_bytes(n);
  launch(queue, "count marks", count_kernel, blocks_for(tiles, 1), words.data(), words.size(), tiles, before);
  scan_tiles(queue, before, tiles + 1, scratch.part(front, scratch.size() - front));
  return {words.data(), n, before, tiles};
}

void mark_positions(Queue<Space::cuda> queue, const MarkScan& marks, std::uint32_t* positions, std::uint32_t* count) {
  launch(queue, "positions of marks", positions_kernel, blocks_of(marks), marks, positions, count);
}

void or_marks(Queue<Space::cuda> queue, View<const std::uint32_t, Space::cuda> other,
              View<std::uint32_t, Space::cuda> words) {
  expects(other.size() == words.size(), "bitmaps of two sizes");
  if (words.empty()) return;
  launch(queue, "or", or_kernel, blocks_for(words.size(), 4 * kThreads), other.data(), words.size(), words.data());
}

void set_marks(Queue<Space::cuda> queue, const std::uint32_t* positions, const std::uint32_t* count, std::size_t most,
               std::uint32_t* words) {
  if (most == 0) return;
  launch(queue, "set marks", set_kernel, blocks_for(most, kThreads), positions, count, most, words);
}

void count_lanes(Queue<Space::cuda> queue, View<const std::uint32_t, Space::cuda> words, std::size_t lanes,
                 std::uint32_t* loads, std::uint64_t* most) {
  expects(lanes <= kMostLanes, "marks are counted in at most 1024 lanes");
  fill(queue, as_writable_bytes(View<std::uint32_t, Space::cuda>{loads, lanes}), 0);
  launch(queue, "marks of lanes", lanes_kernel, blocks_for(words.size(), 4 * kThreads, 1024), words.data(),
         words.size(), lanes, loads);
  launch(queue, "fullest lane", most_kernel, {1, kWarpSize}, loads, lanes, most);
}

void take_marked(Queue<Space::cuda> queue, const MarkScan& marks, float* held, float* momentum,
                 const std::uint32_t* spared, float* values) {
  launch(queue, "take what is marked", take_kernel, blocks_of(marks), marks, held, momentum, spared, values);
}

void place_marked(Queue<Space::cuda> queue, const MarkScan& marks, const float* values, float share, float* out) {
  launch(queue, "place what is marked", place_kernel, blocks_of(marks), marks, values, share, out);
}

}  // namespace gradtool::cuda
