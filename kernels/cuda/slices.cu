#include "kernels/cuda/slices.hpp"

#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/grid.hpp"
#include "kernels/cuda/launch.hpp"

namespace gradtool::cuda {
namespace {

constexpr unsigned kRoom = 4096;      ///< floats of a tile in shared memory
constexpr unsigned kTapsAtOnce = 63;  ///< odd: a column of the tile lies in different banks

/// How a layer is cut into tiles of some filters by some taps.
struct Tiling {
  std::size_t filters, taps;      ///< of the layer
  std::size_t first_tap, wanted;  ///< the taps that move
  unsigned across, down;          ///< filters and taps of a tile
  unsigned stride;                ///< of a filter in shared memory
  unsigned columns;               ///< tiles along the taps

  Tiling(const ConvLayer& layer, std::size_t from, std::size_t to)
      : filters{layer.filters},
        taps{layer.taps},
        first_tap{from},
        wanted{to - from},
        across{0},
        down{static_cast<unsigned>(std::min<std::size_t>(wanted, kTapsAtOnce))},
        stride{down | 1u},
        columns{static_cast<unsigned>((wanted + down - 1) / down)} {
    across = static_cast<unsigned>(std::min<std::size_t>(filters, kRoom / stride));
  }
  [[nodiscard]] unsigned tiles() const { return columns * static_cast<unsigned>((filters + across - 1) / across); }
};

/// The tile of a block.
struct Tile {
  std::size_t filter, tap;
  unsigned across, down;

  __device__ explicit Tile(const Tiling& by) {
    filter = std::size_t{blockIdx.x / by.columns} * by.across;
    tap = std::size_t{blockIdx.x % by.columns} * by.down;
    across = static_cast<unsigned>(by.filters - filter < by.across ? by.filters - filter : by.across);
    down = static_cast<unsigned>(by.wanted - tap < by.down ? by.wanted - tap : by.down);
  }
};

__device__ float mean_at(const SliceMeans& means, std::size_t element) {
  if (means.data == nullptr) return 0.0f;
  return means.data[means.period == 0 ? element : element % means.period];
}

__global__ void gather_kernel(Tiling by, const float* x, SliceMeans means, float* out) {
  __shared__ float room[kRoom];
  const Tile tile{by};
  for (unsigned k = threadIdx.x; k < tile.across * tile.down; k += kThreads) {
    const unsigned i = k / tile.down;
    const unsigned t = k - i * tile.down;
    room[i * by.stride + t] = x[(tile.filter + i) * by.taps + by.first_tap + tile.tap + t];
  }
  __syncthreads();
  for (unsigned k = threadIdx.x; k < tile.across * tile.down; k += kThreads) {
    const unsigned t = k / tile.across;
    const unsigned i = k - t * tile.across;
    const std::size_t element = (tile.tap + t) * by.filters + tile.filter + i;
    const float value = room[i * by.stride + t];
    out[element] = means.data == nullptr ? value : value - mean_at(means, element);
  }
}

__global__ void scatter_kernel(Tiling by, const float* in, float factor, SliceMeans means, float* x) {
  __shared__ float room[kRoom];
  const Tile tile{by};
  for (unsigned k = threadIdx.x; k < tile.across * tile.down; k += kThreads) {
    const unsigned t = k / tile.across;
    const unsigned i = k - t * tile.across;
    const std::size_t element = (tile.tap + t) * by.filters + tile.filter + i;
    const float value = in[element] * factor;
    room[i * by.stride + t] = means.data == nullptr ? value : value + mean_at(means, element);
  }
  __syncthreads();
  for (unsigned k = threadIdx.x; k < tile.across * tile.down; k += kThreads) {
    const unsigned i = k / tile.down;
    const unsigned t = k - i * tile.down;
    x[(tile.filter + i) * by.taps + by.first_tap + tile.tap + t] = room[i * by.stride + t];
  }
}

}  // namespace

void gather_taps(Queue<Space::cuda> queue, const ConvLayer& layer, const float* gradient, std::size_t first_tap,
                 std::size_t last_tap, const SliceMeans& means, float* out) {
  if (first_tap >= last_tap || layer.filters == 0) return;
  const Tiling by{layer, first_tap, last_tap};
  launch(queue, "gather taps", gather_kernel, by.tiles(), by, gradient + layer.first, means, out);
}

void scatter_taps(Queue<Space::cuda> queue, const ConvLayer& layer, const float* in, std::size_t first_tap,
                  std::size_t last_tap, float factor, const SliceMeans& means, float* gradient) {
  if (first_tap >= last_tap || layer.filters == 0) return;
  const Tiling by{layer, first_tap, last_tap};
  launch(queue, "scatter taps", scatter_kernel, by.tiles(), by, in, factor, means, gradient + layer.first);
}

}  // namespace gradtool::cuda
