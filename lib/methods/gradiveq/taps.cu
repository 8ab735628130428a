#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/block_sums.hpp"
#include "kernels/cuda/launch.hpp"
#include "lib/methods/gradiveq/gpu.hpp"

namespace gradtool::gradiveq {
namespace {

using cuda::kThreads;

constexpr unsigned kTileFloats = 4608;  ///< floats of a tile in shared memory: 512 filters of 3x3 taps
constexpr unsigned kTileTaps = 63;      ///< most taps of a tile

/// Floats from one filter to the next of a tile in shared memory. An odd number, so that the filters of one tap lie in
/// different banks.
GT_HD unsigned filter_stride(unsigned taps) {
  return taps | 1u;
}

/// move(x, s): for the elements of a tile in the order of the gradient, where they lie behind the start of the tensor
/// and in shared memory.
template <class Move>
__device__ void for_gradient(const TapRange& range, const TapTile& tile, const Move& move) {
  const std::size_t first = tile.filter * range.taps + range.first_tap + tile.tap;
  for (unsigned k = threadIdx.x; k < tile.filters * tile.taps; k += kThreads) {
    const unsigned filter = k / tile.taps;
    const unsigned tap = k - filter * tile.taps;
    move(first + filter * range.taps + tap, filter * filter_stride(tile.taps) + tap);
  }
}

/// move(r, m, s): for the elements of a tile in the order of the row, where they lie in the row, where their mean lies
/// in the row of means, and where they lie in shared memory.
template <class Move>
__device__ void for_row(const TapRange& range, const TapTile& tile, const Move& move) {
  for (unsigned k = threadIdx.x; k < tile.filters * tile.taps; k += kThreads) {
    const unsigned tile_tap = k / tile.filters;
    const unsigned filter = k - tile_tap * tile.filters;
    const std::size_t tap = tile.tap + tile_tap;
    const std::size_t mean_tap = range.mean_taps == 0 ? tap : tap % range.mean_taps;
    const std::size_t in_tap = tile.filter + filter;
    move(range.row_first + tap * range.filters + in_tap, range.row_first + mean_tap * range.filters + in_tap,
         filter * filter_stride(tile.taps) + tile_tap);
  }
}

template <bool kCentred>
__global__ void gather_kernel(const TapRange* ranges, const TapTile* tiles, const float* gradient, const float* means,
                              float* row, double* norms) {
  __shared__ float values[kTileFloats];
  const TapTile tile = tiles[blockIdx.x];
  const TapRange range = ranges[tile.range];
  const float* tensor = gradient + range.first;
  for_gradient(range, tile, [&](std::size_t x, unsigned s) { values[s] = tensor[x]; });
  __syncthreads();
  double before = 0.0;
  double after = 0.0;
  for_row(range, tile, [&](std::size_t r, std::size_t m, unsigned s) {
    const float value = values[s];
    const float centred = kCentred ? value - means[m] : value;
    row[r] = centred;
    if constexpr (kCentred) {
      before += static_cast<double>(value) * static_cast<double>(value);
      after += static_cast<double>(centred) * static_cast<double>(centred);
    }
  });
  if constexpr (kCentred) {
    before = cuda::block_sum(before);
    after = cuda::block_sum(after);
    if (threadIdx.x != 0) return;
    norms[2 * blockIdx.x] = before;
    norms[2 * blockIdx.x + 1] = after;
  }
}

template <bool kCentred>
__global__ void scatter_kernel(const TapRange* ranges, const TapTile* tiles, const float* row, float factor,
                               const float* means, float* gradient) {
  __shared__ float values[kTileFloats];
  const TapTile tile = tiles[blockIdx.x];
  const TapRange range = ranges[tile.range];
  for_row(range, tile, [&](std::size_t r, std::size_t m, unsigned s) {
    values[s] = kCentred ? row[r] + means[m] : row[r] * factor;
  });
  __syncthreads();
  float* tensor = gradient + range.first;
  for_gradient(range, tile, [&](std::size_t x, unsigned s) { tensor[x] = values[s]; });
}

unsigned narrow(std::size_t value) {
  expect_valid(value <= 0xffffffffu, "a layer is too large for the GPU's tables of taps");
  return static_cast<unsigned>(value);
}

}  // namespace

TapMoves<Space::cuda>::TapMoves(std::span<const TapRange> ranges) {
  cut(ranges);
  range_table_ = cuda::DeviceBuffer{ranges_.size() * sizeof(TapRange)};
  tile_table_ = cuda::DeviceBuffer{tiles_.size() * sizeof(TapTile)};
  ranges_.clear();
  tiles_.clear();
}

void TapMoves<Space::cuda>::cut(std::span<const TapRange> ranges) {
  ranges_.clear();
  tiles_.clear();
  for (const TapRange& range : ranges) {
    if (range.count() == 0) continue;
    const unsigned index = narrow(ranges_.size());
    ranges_.push_back(range);
    const unsigned range_taps = narrow(range.last_tap - range.first_tap);
    const unsigned taps = std::min(range_taps, kTileTaps);
    const std::size_t filters = kTileFloats / filter_stride(taps);
    for (std::size_t filter = 0; filter < range.filters; filter += filters) {
      const unsigned tile_filters = narrow(std::min(filters, range.filters - filter));
      for (unsigned tap = 0; tap < range_taps; tap += taps)
        tiles_.push_back({filter, index, tile_filters, tap, std::min(taps, range_taps - tap)});
    }
  }
}

void TapMoves<Space::cuda>::choose(Queue queue, std::span<const TapRange> ranges) {
  cut(ranges);
  expects(
      ranges_.size() * sizeof(TapRange) <= range_table_.size() && tiles_.size() * sizeof(TapTile) <= tile_table_.size(),
      "more ranges of taps than were planned");
  cuda::copy_elements(queue, range_table_.as<TapRange>().first(ranges_.size()),
                      HostView<const TapRange>{ranges_.data(), ranges_.size()});
  cuda::copy_elements(queue, tile_table_.as<TapTile>().first(tiles_.size()),
                      HostView<const TapTile>{tiles_.data(), tiles_.size()});
  cuda::synchronize(queue);
}

void TapMoves<Space::cuda>::gather(Queue queue, const float* gradient, float* row) const {
  if (tiles_.empty()) return;
  cuda::launch(queue, "gather taps", gather_kernel<false>, narrow(tiles()), range_table_.as<TapRange>().data(),
               tile_table_.as<TapTile>().data(), gradient, nullptr, row, nullptr);
}

void TapMoves<Space::cuda>::gather_centred(Queue queue, const float* gradient, const float* means, float* row,
                                           double* norms) const {
  if (tiles_.empty()) return;
  cuda::launch(queue, "gather centred taps", gather_kernel<true>, narrow(tiles()), range_table_.as<TapRange>().data(),
               tile_table_.as<TapTile>().data(), gradient, means, row, norms);
}

void TapMoves<Space::cuda>::scatter(Queue queue, const float* row, float factor, float* gradient) const {
  if (tiles_.empty()) return;
  cuda::launch(queue, "scatter taps", scatter_kernel<false>, narrow(tiles()), range_table_.as<TapRange>().data(),
               tile_table_.as<TapTile>().data(), row, factor, nullptr, gradient);
}

void TapMoves<Space::cuda>::scatter_centred(Queue queue, const float* row, const float* means, float* gradient) const {
  if (tiles_.empty()) return;
  cuda::launch(queue, "scatter centred taps", scatter_kernel<true>, narrow(tiles()), range_table_.as<TapRange>().data(),
               tile_table_.as<TapTile>().data(), row, 1.0f, means, gradient);
}

}  // namespace gradtool::gradiveq
