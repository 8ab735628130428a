#include "kernels/cuda/tap_moves.hpp"

#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/block_sum.hpp"
#include "kernels/cuda/grid.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/schedule/warp.hpp"

namespace gradtool::cuda {
namespace {

using law::TapRange;
using schedule::Four;
using schedule::kLanes;

constexpr unsigned kRoom = 4608;      ///< floats of a tile in shared memory: 512 filters of 3x3 taps
constexpr unsigned kTapsAtOnce = 63;  ///< odd: a column of the tile lies in different banks
constexpr unsigned kAtOnce = 4;       ///< elements that a lane has on the way together
constexpr unsigned kRun = kAtOnce * kLanes;

/// From filter to filter of a tile in shared memory.
GT_HD unsigned stride_of(unsigned taps) {
  return taps | 1u;
}

/// Whether a tile's rows lie behind each other in the gradient exactly as in shared memory.
__device__ bool is_whole(const TapRange& range, const TapTile& tile) {
  return tile.down == range.taps && stride_of(tile.down) == tile.down;
}

__device__ std::size_t in_gradient(const TapRange& range, const TapTile& tile) {
  return range.first + tile.filter * range.taps + range.first_tap + tile.tap;
}

/// Calls move(place behind x, place in shared memory) for the elements of a tile, x being where it starts in the
/// gradient; or, while both are equal and aligned, move_four(k) for elements 4k to 4k + 3.
template <class Move, class MoveFour>
__device__ void along_gradient(const TapRange& range, const TapTile& tile, const float* x, Move&& move,
                               MoveFour&& move_four) {
  const unsigned stride = stride_of(tile.down);
  const unsigned count = tile.across * tile.down;
  if (is_whole(range, tile)) {
    const unsigned fours = aligned_to(x, 16) ? count / 4 : 0;
#pragma unroll 4
    for (unsigned k = threadIdx.x; k < fours; k += kThreads) move_four(k);
    for (unsigned k = 4 * fours + threadIdx.x; k < count; k += kThreads) move(k, k);
    return;
  }
#pragma unroll 4
  for (unsigned k = threadIdx.x; k < count; k += kThreads) {
    const unsigned i = k / tile.down;
    const unsigned t = k - i * tile.down;
    move(i * range.taps + t, i * stride + t);
  }
}

/// A run of a tap's elements in the row: the lane's first filter in the tile, and where filter 0 of the tile lies.
struct Run {
  unsigned tap, from;
  std::size_t at, mean_at;
};

/// body(run) for all runs of a tile, each by a warp.
template <class Body>
__device__ void along_row(const TapRange& range, const TapTile& tile, Body&& body) {
  const unsigned runs = (tile.across + kRun - 1) / kRun;
  for (unsigned u = threadIdx.x / kLanes; u < runs * tile.down; u += kThreads / kLanes) {
    Run run;
    run.tap = u / runs;
    run.from = (u - run.tap * runs) * kRun + threadIdx.x % kLanes;
    const std::size_t tap = tile.tap + run.tap;
    run.at = range.at + tap * range.filters + tile.filter;
    run.mean_at = range.mean_taps == 0 ? run.at : run.at - (tap - tap % range.mean_taps) * range.filters;
    body(run);
  }
}

template <bool kCentred>
__global__ void gather_kernel(const TapRange* ranges, const TapTile* tiles, const float* gradient, const float* means,
                              float* row, double* norms) {
  __shared__ Four<float> fours[kRoom / 4];
  auto* room = reinterpret_cast<float*>(fours);
  const TapTile tile = tiles[blockIdx.x];
  const TapRange range = ranges[tile.range];
  const float* x = gradient + in_gradient(range, tile);
  along_gradient(
      range, tile, x, [&](std::size_t from, unsigned to) { room[to] = x[from]; },
      [&](unsigned k) { fours[k] = reinterpret_cast<const Four<float>*>(x)[k]; });
  __syncthreads();
  const unsigned stride = stride_of(tile.down);
  double whole = 0.0;
  double centred = 0.0;
  along_row(range, tile, [&](const Run& run) {
    float mean[kAtOnce] = {};
    if constexpr (kCentred) {  // all on their way before the first is needed
#pragma unroll
      for (unsigned q = 0; q < kAtOnce; ++q) {
        const unsigned i = run.from + q * kLanes;
        if (i < tile.across) mean[q] = __ldg(means + run.mean_at + i);
      }
    }
#pragma unroll
    for (unsigned q = 0; q < kAtOnce; ++q) {
      const unsigned i = run.from + q * kLanes;
      if (i >= tile.across) continue;
      const float value = room[i * stride + run.tap];
      const float left = kCentred ? value - mean[q] : value;
      row[run.at + i] = left;
      if constexpr (kCentred) {
        whole += static_cast<double>(value) * static_cast<double>(value);
        centred += static_cast<double>(left) * static_cast<double>(left);
      }
    }
  });
  if constexpr (kCentred) {
    whole = block_sum(whole);
    centred = block_sum(centred);
    if (threadIdx.x != 0) return;
    norms[2 * blockIdx.x] = whole;
    norms[2 * blockIdx.x + 1] = centred;
  }
}

template <bool kCentred>
__global__ void scatter_kernel(const TapRange* ranges, const TapTile* tiles, const float* row, float factor,
                               const float* means, float* gradient) {
  __shared__ Four<float> fours[kRoom / 4];
  auto* room = reinterpret_cast<float*>(fours);
  const TapTile tile = tiles[blockIdx.x];
  const TapRange range = ranges[tile.range];
  const unsigned stride = stride_of(tile.down);
  along_row(range, tile, [&](const Run& run) {
#pragma unroll
    for (unsigned q = 0; q < kAtOnce; ++q) {
      const unsigned i = run.from + q * kLanes;
      if (i >= tile.across) continue;
      const float value = __ldg(row + run.at + i);
      room[i * stride + run.tap] = kCentred ? value + __ldg(means + run.mean_at + i) : value * factor;
    }
  });
  __syncthreads();
  float* x = gradient + in_gradient(range, tile);
  along_gradient(
      range, tile, x, [&](std::size_t to, unsigned from) { x[to] = room[from]; },
      [&](unsigned k) { reinterpret_cast<Four<float>*>(x)[k] = fours[k]; });
}

unsigned narrow(std::size_t value) {
  expects(value <= 0xffffffffu, "a layer is too large for the GPU's tables of taps");
  return static_cast<unsigned>(value);
}

/// Filters of a tile: whole runs, or what fits, an offset in the gradient that is a multiple of 16 bytes.
unsigned filters_of(unsigned down) {
  const unsigned most = kRoom / stride_of(down);
  return most >= kRun ? most / kRun * kRun : most / 4 * 4;
}

}  // namespace

TapMoves::TapMoves(std::span<const TapRange> ranges) {
  cut(ranges);
  range_table_ = DeviceBuffer{ranges_.size() * sizeof(TapRange)};
  tile_table_ = DeviceBuffer{tiles_.size() * sizeof(TapTile)};
  ranges_.clear();
  tiles_.clear();
}

void TapMoves::cut(std::span<const TapRange> ranges) {
  ranges_.clear();
  tiles_.clear();
  for (const TapRange& range : ranges) {
    if (range.count() == 0) continue;
    const unsigned index = narrow(ranges_.size());
    ranges_.push_back(range);
    const unsigned wanted = narrow(range.last_tap - range.first_tap);
    const unsigned down = std::min(wanted, kTapsAtOnce);
    const std::size_t across = filters_of(down);
    for (std::size_t filter = 0; filter < range.filters; filter += across) {
      const unsigned here = narrow(std::min(across, range.filters - filter));
      for (unsigned tap = 0; tap < wanted; tap += down)
        tiles_.push_back({filter, index, here, tap, std::min(down, wanted - tap)});
    }
  }
}

void TapMoves::choose(Queue<Space::cuda> queue, std::span<const TapRange> ranges) {
  cut(ranges);
  expects(
      ranges_.size() * sizeof(TapRange) <= range_table_.size() && tiles_.size() * sizeof(TapTile) <= tile_table_.size(),
      "more ranges of taps than were planned");
  copy_elements(queue, range_table_.as<TapRange>().first(ranges_.size()),
                HostView<const TapRange>{ranges_.data(), ranges_.size()});
  copy_elements(queue, tile_table_.as<TapTile>().first(tiles_.size()),
                HostView<const TapTile>{tiles_.data(), tiles_.size()});
  synchronize(queue);
}

void TapMoves::gather(Queue<Space::cuda> queue, const float* gradient, float* row) const {
  if (tiles_.empty()) return;
  launch(queue, "gather taps", gather_kernel<false>, narrow(tiles()), range_table_.as<TapRange>().data(),
         tile_table_.as<TapTile>().data(), gradient, nullptr, row, nullptr);
}

void TapMoves::gather_centred(Queue<Space::cuda> queue, const float* gradient, const float* means, float* row,
                              double* norms) const {
  if (tiles_.empty()) return;
  launch(queue, "gather centred taps", gather_kernel<true>, narrow(tiles()), range_table_.as<TapRange>().data(),
         tile_table_.as<TapTile>().data(), gradient, means, row, norms);
}

void TapMoves::scatter(Queue<Space::cuda> queue, const float* row, float factor, float* gradient) const {
  if (tiles_.empty()) return;
  launch(queue, "scatter taps", scatter_kernel<false>, narrow(tiles()), range_table_.as<TapRange>().data(),
         tile_table_.as<TapTile>().data(), row, factor, nullptr, gradient);
}

void TapMoves::scatter_centred(Queue<Space::cuda> queue, const float* row, const float* means, float* gradient) const {
  if (tiles_.empty()) return;
  launch(queue, "scatter centred taps", scatter_kernel<true>, narrow(tiles()), range_table_.as<TapRange>().data(),
         tile_table_.as<TapTile>().data(), row, 1.0f, means, gradient);
}

}  // namespace gradtool::cuda
