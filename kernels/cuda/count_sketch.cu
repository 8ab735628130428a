#include "kernels/cuda/count_sketch.hpp"

#include <cuda_runtime.h>

#include <vector>

#include "kernels/cuda/device_warp.hpp"
#include "kernels/cuda/grid.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/law/count_sketch.hpp"
#include "kernels/law/keep_nan.hpp"

namespace gradtool::cuda {
namespace {

constexpr std::size_t kLanes = law::kSketchLanes;
constexpr std::size_t kTile = schedule::kLanes;  // cells of a tile

/// A block that reaches a tile: its lane l lies in the tile's cell l + offset - (kLanes - 1).
struct Entry {
  std::uint32_t block;
  std::uint16_t signs;
  std::uint16_t offset;
};

/// A warp for each tile of a row; tiles also cover the cells beyond the row's end, to which blocks go that go around
/// it.
__global__ void add_kernel(const float* x, std::size_t n, std::size_t tiles, const std::uint32_t* starts,
                           const Entry* reaching, std::size_t columns, float* cells, float* beyond) {
  const std::uint32_t lane = threadIdx.x % schedule::kLanes;
  const std::size_t tile = warp_in_grid(), row = blockIdx.y;
  if (tile >= tiles) return;
  const std::uint32_t first = starts[row * tiles + tile], last = starts[row * tiles + tile + 1];
  float sum = 0.0f;
  for (std::uint32_t at = first; at < last; at += schedule::kLanes) {
    Entry mine{};
    if (at + lane < last) mine = reaching[at + lane];
    const std::uint32_t both = std::uint32_t{mine.signs} | std::uint32_t{mine.offset} << 16;
    const std::uint32_t count = last - at < schedule::kLanes ? last - at : schedule::kLanes;
#pragma unroll 8
    for (std::uint32_t j = 0; j < count; ++j) {
      const std::uint32_t block = __shfl_sync(kAllLanes, mine.block, j), packed = __shfl_sync(kAllLanes, both, j);
      const std::uint32_t l = lane + (kLanes - 1) - (packed >> 16);  // wraps around below the block's first lane
      const std::size_t i = kLanes * block + l;
      if (l < kLanes && i < n) sum += law::with_sign(x[i], packed & 0xffffu, l);
    }
  }
  const std::size_t cell = kTile * tile + lane;
  if (cell < columns) {
    cells[row * columns + cell] = sum;
  } else if (cell < columns + kLanes) {
    beyond[row * kLanes + cell - columns] = sum;
  }
}

/// What went around the end is added to the beginning last.
__global__ void wrap_kernel(const float* beyond, std::size_t rows, std::size_t columns, float* cells) {
  const std::size_t row = threadIdx.x / kLanes, l = threadIdx.x % kLanes;
  if (row < rows && l + 1 < kLanes) cells[row * columns + l] += beyond[row * kLanes + l];
}

template <std::size_t Rows>
__global__ void estimate_kernel(const float* cells, std::size_t columns, const law::SketchHash* hashes,
                                std::size_t blocks, std::size_t n, float* out) {
  for (std::size_t i = thread_in_grid(); i < n; i += threads_in_grid()) {
    const std::size_t block = i / kLanes, l = i % kLanes;
    float v[Rows];
#pragma unroll
    for (std::size_t r = 0; r < Rows; ++r) {
      const law::SketchHash hash = hashes[r * blocks + block];
      std::size_t cell = hash.bucket + l;
      if (cell >= columns) cell -= columns;
      v[r] = law::with_sign(cells[r * columns + cell], hash.signs, l);
    }
    out[i] = law::sketch_median(v);
  }
}

__global__ void momentum_kernel(float mu, float* gradient, float* momentum, std::size_t n) {
  for (std::size_t i = thread_in_grid(); i < n; i += threads_in_grid()) {
    const float v = mu * momentum[i] + gradient[i];
    momentum[i] = v;
    gradient[i] = v;
  }
}

__global__ void gather_kernel(const std::uint32_t* positions, std::size_t count, const float* from, float* values) {
  for (std::size_t i = thread_in_grid(); i < count; i += threads_in_grid())
    values[i] = law::one_nan(from[positions[i]]);
}

__global__ void place_kernel(SketchResult result) {
  for (std::size_t j = thread_in_grid(); j < result.kept.size(); j += threads_in_grid()) {
    const std::uint32_t at = result.kept.data()[j], i = result.positions[at];
    result.out[i] = result.values[at] * result.share;
    if (result.residual != nullptr) result.residual[i] = 0.0f;
    if (result.momentum != nullptr) result.momentum[i] = 0.0f;
  }
}

}  // namespace

CountSketch::CountSketch(Queue<Space::cuda> queue, std::size_t n, std::size_t rows, std::size_t columns,
                         std::uint64_t seed)
    : n_{n},
      blocks_{(n + kLanes - 1) / kLanes},
      rows_{rows},
      columns_{columns},
      tiles_{(columns + kLanes - 1 + kTile - 1) / kTile},
      hashes_{rows * blocks_ * sizeof(law::SketchHash)},
      starts_{(rows * tiles_ + 1) * sizeof(std::uint32_t)},
      beyond_{rows * kLanes * sizeof(float)} {
  expects(rows % 2 == 1 && rows <= 7, "a count sketch has 1, 3, 5 or 7 rows");
  expects(columns >= kLanes && columns < (std::size_t{1} << 31), "a count sketch has from 16 to 2^31 - 1 columns");
  std::vector<law::SketchHash> hashes(rows * blocks_);
  std::vector<std::uint32_t> starts(rows * tiles_ + 1);
  const auto each_tile = [&](std::size_t row, std::size_t block, const auto& visit) {
    const std::size_t bucket = hashes[row * blocks_ + block].bucket;
    for (std::size_t tile = bucket / kTile; tile <= (bucket + kLanes - 1) / kTile; ++tile) {
      visit(row * tiles_ + tile, static_cast<std::uint16_t>(bucket + kLanes - 1 - tile * kTile));
    }
  };
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t b = 0; b < blocks_; ++b) {
      hashes[row * blocks_ + b] = law::sketch_hash(seed, static_cast<std::uint32_t>(row), b, columns);
      each_tile(row, b, [&](std::size_t tile, std::uint16_t) { ++starts[tile + 1]; });
    }
  }
  for (std::size_t tile = 0; tile < rows * tiles_; ++tile) starts[tile + 1] += starts[tile];
  std::vector<Entry> reaching(starts.back());
  std::vector<std::uint32_t> next(starts.begin(), starts.end() - 1);
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t b = 0; b < blocks_; ++b) {
      const auto signs = static_cast<std::uint16_t>(hashes[row * blocks_ + b].signs);
      each_tile(row, b, [&](std::size_t tile, std::uint16_t offset) {
        reaching[next[tile]++] = {static_cast<std::uint32_t>(b), signs, offset};
      });
    }
  }
  reaching_ = DeviceBuffer{reaching.size() * sizeof(Entry)};
  const auto upload = [&]<class T>(const std::vector<T>& from, const DeviceBuffer& to) {
    copy_elements(queue, to.as<T>(), HostView<const T>{from.data(), from.size()});
  };
  upload(hashes, hashes_);
  upload(starts, starts_);
  upload(reaching, reaching_);
  synchronize(queue);
}

void CountSketch::add_up(Queue<Space::cuda> queue, View<const float, Space::cuda> x,
                         View<float, Space::cuda> cells) const {
  Grid grid{static_cast<unsigned>((tiles_ * schedule::kLanes + kThreads - 1) / kThreads)};
  grid.y = static_cast<unsigned>(rows_);
  auto* beyond = beyond_.as<float>().data();
  launch(queue, "sketch", add_kernel, grid, x.data(), n_, tiles_, starts_.as<const std::uint32_t>().data(),
         reaching_.as<const Entry>().data(), columns_, cells.data(), beyond);
  launch(queue, "sketch ends", wrap_kernel, {1, 128}, beyond, rows_, columns_, cells.data());
}

void CountSketch::estimate(Queue<Space::cuda> queue, View<const float, Space::cuda> cells,
                           View<float, Space::cuda> out) const {
  const auto kernel = rows_ == 1   ? estimate_kernel<1>
                      : rows_ == 3 ? estimate_kernel<3>
                      : rows_ == 5 ? estimate_kernel<5>
                                   : estimate_kernel<7>;
  launch(queue, "estimates", kernel, blocks_for(n_, kThreads), cells.data(), columns_,
         hashes_.as<const law::SketchHash>().data(), blocks_, n_, out.data());
}

void momentum_step(Queue<Space::cuda> queue, float mu, View<float, Space::cuda> gradient,
                   View<float, Space::cuda> momentum) {
  if (gradient.empty()) return;
  launch(queue, "momentum", momentum_kernel, blocks_for(gradient.size(), 4 * kThreads), mu, gradient.data(),
         momentum.data(), gradient.size());
}

void gather_at(Queue<Space::cuda> queue, View<const std::uint32_t, Space::cuda> positions, const float* from,
               float* values) {
  if (positions.empty()) return;
  launch(queue, "gather", gather_kernel, blocks_for(positions.size(), kThreads), positions.data(), positions.size(),
         from, values);
}

void place_result(Queue<Space::cuda> queue, const SketchResult& result) {
  if (result.kept.empty()) return;
  launch(queue, "place", place_kernel, blocks_for(result.kept.size(), kThreads), result);
}

}  // namespace gradtool::cuda
