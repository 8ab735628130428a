#include <cuda_runtime.h>

#include <vector>

#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/warp.hpp"
#include "kernels/float_bits.hpp"
#include "kernels/select.hpp"
#include "lib/methods/sketch/format.hpp"
#include "lib/methods/sketch/reducer.hpp"

/// sketch on the GPU. Its sketches and estimates are those of count_sketch.cpp, bit for bit.
namespace gradtool {
namespace cuda {
namespace {

constexpr std::size_t kLanes = format::kSketchLanes;
constexpr std::size_t kTile = kWarpSize;  // cells of a tile

/// A block that reaches a tile: the block's lane l lies in the tile's cell l + offset - (kLanes - 1).
struct Entry {
  std::uint32_t block;
  std::uint16_t signs;
  std::uint16_t offset;
};

/// Adds up a row, a warp for each tile and a lane for each cell, in the order of the elements. Tiles also cover the
/// cells past the row's end, to which the blocks go that wrap around it: their sums go to `wrapped`.
__global__ void add_kernel(const float* x, std::size_t n, std::size_t tiles, const std::uint32_t* starts,
                           const Entry* entries, std::size_t columns, float* cells, float* wrapped) {
  const std::uint32_t lane = lane_in_warp();
  const std::size_t tile = warp_in_grid(), row = blockIdx.y;
  if (tile >= tiles) return;
  const std::uint32_t first = starts[row * tiles + tile], last = starts[row * tiles + tile + 1];
  float sum = 0.0f;
  for (std::uint32_t next = first; next < last; next += kWarpSize) {
    Entry own{};
    if (next + lane < last) own = entries[next + lane];
    const std::uint32_t own_packed = std::uint32_t{own.signs} | std::uint32_t{own.offset} << 16;
    const std::uint32_t count = last - next < kWarpSize ? last - next : kWarpSize;
#pragma unroll 8
    for (std::uint32_t j = 0; j < count; ++j) {
      const std::uint32_t block = __shfl_sync(kAllLanes, own.block, j);
      const std::uint32_t packed = __shfl_sync(kAllLanes, own_packed, j);
      const std::uint32_t l = lane + (kLanes - 1) - (packed >> 16);  // below the block's first lane it becomes huge
      const std::size_t i = kLanes * block + l;
      if (l < kLanes && i < n) sum += format::with_sign(x[i], packed & 0xffffu, l);
    }
  }
  const std::size_t cell = kTile * tile + lane;
  if (cell < columns) {
    cells[row * columns + cell] = sum;
  } else if (cell < columns + kLanes) {
    wrapped[row * kLanes + cell - columns] = sum;
  }
}

/// Adds what went past the end of a row to the row's first cells.
__global__ void wrap_kernel(const float* wrapped, std::size_t rows, std::size_t columns, float* cells) {
  const std::size_t row = threadIdx.x / kLanes, l = threadIdx.x % kLanes;
  if (row < rows && l + 1 < kLanes) cells[row * columns + l] += wrapped[row * kLanes + l];
}

template <std::size_t Rows>
__global__ void estimate_kernel(const float* cells, std::size_t columns, const format::SketchHash* hashes,
                                std::size_t blocks, std::size_t n, float* out) {
  for (std::size_t i = thread_in_grid(); i < n; i += threads_in_grid()) {
    const std::size_t block = i / kLanes, l = i % kLanes;
    float v[Rows];
#pragma unroll
    for (std::size_t r = 0; r < Rows; ++r) {
      const format::SketchHash hash = hashes[r * blocks + block];
      std::size_t cell = hash.bucket + l;
      if (cell >= columns) cell -= columns;
      v[r] = format::with_sign(cells[r * columns + cell], hash.signs, l);
    }
    out[i] = format::sketch_median(v);
  }
}

/// momentum := mu momentum + gradient; gradient := momentum.
__global__ void momentum_kernel(float mu, float* gradient, float* momentum, std::size_t n) {
  for (std::size_t i = thread_in_grid(); i < n; i += threads_in_grid()) {
    const float v = mu * momentum[i] + gradient[i];
    momentum[i] = v;
    gradient[i] = v;
  }
}

/// values[i] := u[positions[i]].
__global__ void gather_kernel(const std::uint32_t* positions, std::size_t count, const float* u, float* values) {
  for (std::size_t i = thread_in_grid(); i < count; i += threads_in_grid())
    values[i] = format::one_nan(u[positions[i]]);
}

/// Puts the sums of the kept candidates in their places.
__global__ void place_kernel(const std::uint32_t* kept, std::size_t count, const std::uint32_t* positions,
                             const float* values, SketchTargets<Space::cuda> targets) {
  for (std::size_t j = thread_in_grid(); j < count; j += threads_in_grid()) {
    const std::uint32_t candidate = kept[j], i = positions[candidate];
    targets.out.data()[i] = values[candidate] * targets.share;
    if (!targets.residual.empty()) targets.residual.data()[i] = 0.0f;
    if (!targets.momentum.empty()) targets.momentum.data()[i] = 0.0f;
  }
}

/// CountSketch of count_sketch.hpp on the GPU. So that cells add in the order of the elements, each tile of 32
/// neighbouring cells has a list of the blocks that reach it. Lists and hashes take 20 bytes for each block and row,
/// and add_up reads x about one and a half times for each row.
class CountSketch {
 public:
  /// `rows` is 1, 3, 5 or 7; `columns` is at least 16. Builds the lists on the host and waits until they are copied.
  CountSketch(Queue<Space::cuda> queue, std::size_t n, std::size_t rows, std::size_t columns, std::uint64_t seed)
      : n_{n},
        blocks_{(n + kLanes - 1) / kLanes},
        rows_{rows},
        columns_{columns},
        tiles_{(columns + kLanes - 1 + kTile - 1) / kTile},
        hashes_{rows * blocks_ * sizeof(format::SketchHash)},
        starts_{(rows * tiles_ + 1) * sizeof(std::uint32_t)},
        wrapped_{rows * kLanes * sizeof(float)} {
    expects(rows % 2 == 1 && rows <= 7, "a count sketch has 1, 3, 5 or 7 rows");
    expect_valid(columns >= kLanes && columns < (std::size_t{1} << 31),
                 "a count sketch has from 16 to 2^31 - 1 columns");
    std::vector<format::SketchHash> hashes(rows * blocks_);
    std::vector<std::uint32_t> starts(rows * tiles_ + 1);
    const auto each_tile = [&](std::size_t row, std::size_t block, const auto& visit) {
      const std::size_t bucket = hashes[row * blocks_ + block].bucket;
      for (std::size_t tile = bucket / kTile; tile <= (bucket + kLanes - 1) / kTile; ++tile)
        visit(row * tiles_ + tile, static_cast<std::uint16_t>(bucket + kLanes - 1 - tile * kTile));
    };
    for (std::size_t row = 0; row < rows; ++row) {
      for (std::size_t b = 0; b < blocks_; ++b) {
        hashes[row * blocks_ + b] = format::sketch_hash(seed, static_cast<std::uint32_t>(row), b, columns);
        each_tile(row, b, [&](std::size_t tile, std::uint16_t) { ++starts[tile + 1]; });
      }
    }
    for (std::size_t tile = 0; tile < rows * tiles_; ++tile) starts[tile + 1] += starts[tile];
    std::vector<Entry> entries(starts.back());
    std::vector<std::uint32_t> next(starts.begin(), starts.end() - 1);
    for (std::size_t row = 0; row < rows; ++row) {
      for (std::size_t b = 0; b < blocks_; ++b) {
        const auto signs = static_cast<std::uint16_t>(hashes[row * blocks_ + b].signs);
        each_tile(row, b, [&](std::size_t tile, std::uint16_t offset) {
          entries[next[tile]++] = {static_cast<std::uint32_t>(b), signs, offset};
        });
      }
    }
    entries_ = DeviceBuffer{entries.size() * sizeof(Entry)};
    const auto upload = [&]<class T>(const std::vector<T>& rows_of_table, const DeviceBuffer& buffer) {
      copy_elements(queue, buffer.as<T>(), HostView<const T>{rows_of_table.data(), rows_of_table.size()});
    };
    upload(hashes, hashes_);
    upload(starts, starts_);
    upload(entries, entries_);
    synchronize(queue);
  }

  /// cells := the sketch of x. Enqueued.
  void add_up(Queue<Space::cuda> queue, View<const float, Space::cuda> x, View<float, Space::cuda> cells) const {
    Grid grid{static_cast<unsigned>((tiles_ * kWarpSize + kThreads - 1) / kThreads)};
    grid.y = static_cast<unsigned>(rows_);
    auto* wrapped = wrapped_.as<float>().data();
    launch(queue, "sketch", add_kernel, grid, x.data(), n_, tiles_, starts_.as<const std::uint32_t>().data(),
           entries_.as<const Entry>().data(), columns_, cells.data(), wrapped);
    launch(queue, "sketch wrap", wrap_kernel, {1, 128}, wrapped, rows_, columns_, cells.data());
  }
  /// out := the estimates of all n numbers. Enqueued.
  void estimate(Queue<Space::cuda> queue, View<const float, Space::cuda> cells, View<float, Space::cuda> out) const {
    const auto kernel = rows_ == 1   ? estimate_kernel<1>
                        : rows_ == 3 ? estimate_kernel<3>
                        : rows_ == 5 ? estimate_kernel<5>
                                     : estimate_kernel<7>;
    launch(queue, "sketch estimates", kernel, blocks_for(n_, kThreads), cells.data(), columns_,
           hashes_.as<const format::SketchHash>().data(), blocks_, n_, out.data());
  }

 private:
  std::size_t n_, blocks_, rows_, columns_, tiles_;
  DeviceBuffer hashes_;   ///< format::SketchHash, [row][block]
  DeviceBuffer starts_;   ///< uint32: where the list of each [row][tile] starts, and the end of the last one
  DeviceBuffer entries_;  ///< the lists, one behind the other
  DeviceBuffer wrapped_;  ///< float, [row][kLanes]: sums of the cells past the end of a row
};

}  // namespace
}  // namespace cuda

namespace {

using Bytes = View<std::byte, Space::cuda>;

/// The steps of a rank by itself, on a GPU; see SketchReducer.
class CudaSteps {
 public:
  CudaSteps(Queue<Space::cuda> queue, const SketchPlan& plan)
      : plan_{plan},
        sketch_{queue, plan.n, plan.rows, plan.columns, plan.seed},
        select_bytes_{cuda::Select::scratch_bytes(plan.n)} {}

  [[nodiscard]] std::size_t scratch_bytes() const { return planned<Workspace>(*this); }

  void take_momentum(Queue<Space::cuda> queue, float mu, View<float, Space::cuda> gradient,
                     View<float, Space::cuda> momentum) const {
    cuda::launch(queue, "sketch momentum", cuda::momentum_kernel, cuda::blocks_for(gradient.size(), 4 * cuda::kThreads),
                 mu, gradient.data(), momentum.data(), gradient.size());
  }
  void sketch(Queue<Space::cuda> queue, View<const float, Space::cuda> u, View<float, Space::cuda> cells,
              Bytes /*scratch*/) const {
    sketch_.add_up(queue, u, cells);
  }
  void find(Queue<Space::cuda> queue, View<const float, Space::cuda> cells, View<const float, Space::cuda> u,
            View<std::uint32_t, Space::cuda> positions, View<float, Space::cuda> values, Bytes scratch) const {
    const Workspace work{*this, Scratch<Space::cuda>{scratch}};
    sketch_.estimate(queue, cells, work.estimates);
    const cuda::Select select{queue, work.estimates, work.select};
    select.largest(plan_.candidates);
    select.write(positions.data(), values.data());
    cuda::launch(queue, "sketch gather", cuda::gather_kernel, cuda::blocks_for(positions.size(), cuda::kThreads),
                 positions.data(), positions.size(), u.data(), values.data());
  }
  void place(Queue<Space::cuda> queue, View<const std::uint32_t, Space::cuda> positions,
             View<const float, Space::cuda> values, const SketchTargets<Space::cuda>& targets, Bytes scratch) const {
    const Workspace work{*this, Scratch<Space::cuda>{scratch}};
    const cuda::Select select{queue, values, work.select};
    select.largest(plan_.kept);
    select.write(work.kept.data(), work.kept_values.data());
    cuda::launch(queue, "sketch place", cuda::place_kernel, cuda::blocks_for(plan_.kept, cuda::kThreads),
                 work.kept.data(), plan_.kept, positions.data(), values.data(), targets);
  }

 private:
  struct Workspace {
    Workspace(const CudaSteps& steps, Scratch<Space::cuda> scratch)
        : estimates{scratch.take<float>(steps.plan_.n)},
          kept{scratch.take<std::uint32_t>(steps.plan_.kept)},
          kept_values{scratch.take<float>(steps.plan_.kept)},
          select{scratch.take_bytes(steps.select_bytes_)} {}
    View<float, Space::cuda> estimates;
    View<std::uint32_t, Space::cuda> kept;  ///< which candidates are kept
    View<float, Space::cuda> kept_values;   ///< their sums; written by the selection, not used
    Bytes select;
  };

  SketchPlan plan_;
  cuda::CountSketch sketch_;
  std::size_t select_bytes_;  ///< asked for once: `reduce` is in the timed region
};

}  // namespace

extern constinit const GpuFactories sketch_gpu{
    .reducer = make_method_reducer<Space::cuda, SketchReducer<Space::cuda, CudaSteps>>};

}  // namespace gradtool
