#include <cuda_runtime.h>

#include <algorithm>
#include <utility>

#include "kernels/cuda/block_sums.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/runtime.hpp"
#include "kernels/cuda/warp.hpp"
#include "kernels/rows.hpp"

namespace gradtool {
namespace {

using cuda::kThreads;
using cuda::kWarpSize;
using Rows = RowSelection<Space::cuda>;

constexpr std::size_t kMostBlocks = 1024;  ///< for a matrix
constexpr unsigned kSummers = kThreads / format::kSumLanes;

/// blockIdx.y is the matrix, in all kernels but choose_kernel.
cuda::Grid grid_of(std::size_t items, std::size_t per_block, std::size_t matrices) {
  cuda::Grid grid{cuda::blocks_for(items, per_block, kMostBlocks)};
  grid.y = static_cast<unsigned>(matrices);
  return grid;
}

__device__ std::size_t chunks_of(const RowMatrix& matrix) {
  return (matrix.columns + format::kSumChunk - 1) / format::kSumChunk;
}

/// Half a warp adds up the magnitudes of a chunk of a row. All threads of a warp go through the same number of chunks.
__global__ void chunk_magnitudes_kernel(const RowMatrix* matrices, const float* x, double* sums) {
  const RowMatrix matrix = matrices[blockIdx.y];
  if (!matrix.selects()) return;
  const std::size_t chunks = chunks_of(matrix);
  const std::size_t all = matrix.rows * chunks;
  const std::size_t lane = threadIdx.x % format::kSumLanes;
  for (std::size_t first = blockIdx.x * kSummers; first < all; first += std::size_t{gridDim.x} * kSummers) {
    const std::size_t chunk = first + threadIdx.x / format::kSumLanes;
    const std::size_t begin = chunk % chunks * format::kSumChunk;
    const std::size_t end = chunk >= all                                 ? begin
                            : begin + format::kSumChunk < matrix.columns ? begin + format::kSumChunk
                                                                         : matrix.columns;
    const float* row = x + matrix.first + chunk / chunks * matrix.columns;
    double sum = 0.0;
#pragma unroll 8
    for (std::size_t i = begin + lane; i < end; i += format::kSumLanes) sum += static_cast<double>(fabsf(row[i]));
    sum = cuda::folded(sum);
    if (lane == 0 && chunk < all) sums[matrix.sum_first + chunk] = sum;
  }
}

__global__ void row_magnitudes_kernel(const RowMatrix* matrices, const double* sums, float* out) {
  const RowMatrix matrix = matrices[blockIdx.y];
  if (!matrix.selects()) return;
  const std::size_t chunks = chunks_of(matrix);
  for (std::size_t row = cuda::thread_in_grid(); row < matrix.rows; row += cuda::threads_in_grid()) {
    double sum = 0.0;
    for (std::size_t chunk = 0; chunk < chunks; ++chunk) sum += sums[matrix.sum_first + row * chunks + chunk];
    out[matrix.key_first + row] = format::stored_mean(sum, 1);
  }
}

/// Keys of `rows` rows that are at least `least`; every thread gets it.
__device__ std::size_t at_least(const std::uint32_t* keys, std::size_t rows, std::uint32_t least) {
  double count = 0.0;
  for (std::size_t row = threadIdx.x; row < rows; row += kThreads) count += keys[row] >= least ? 1.0 : 0.0;
  return static_cast<std::size_t>(cuda::block_sum(count));
}

/// A block chooses for a matrix: bit by bit it finds the key of the last row that is chosen, then it goes through the
/// rows in their order. Rows are few beside elements.
__global__ void choose_kernel(const RowMatrix* matrices, const std::uint32_t* keys, std::uint32_t* chosen) {
  __shared__ std::uint32_t above_of_warp[kThreads / kWarpSize], ties_of_warp[kThreads / kWarpSize];
  const RowMatrix matrix = matrices[blockIdx.x];
  if (!matrix.selects()) {
    for (std::size_t row = threadIdx.x; row < matrix.rows; row += kThreads)
      chosen[matrix.chosen_first + row] = static_cast<std::uint32_t>(row);
    return;
  }
  const std::uint32_t* own = keys + matrix.key_first;
  std::uint32_t threshold = 0;
  for (int bit = 30; bit >= 0; --bit) {
    const std::uint32_t larger = threshold | 1u << bit;
    if (at_least(own, matrix.rows, larger) >= matrix.count) threshold = larger;
  }
  const std::size_t ties = matrix.count - at_least(own, matrix.rows, threshold + 1);
  std::size_t above_before = 0, ties_before = 0;
  for (std::size_t first = 0; first < matrix.rows; first += kThreads) {
    const std::size_t row = first + threadIdx.x;
    const bool above = row < matrix.rows && own[row] > threshold;
    const bool tie = row < matrix.rows && own[row] == threshold;
    const unsigned all_above = __ballot_sync(cuda::kAllLanes, above);
    const unsigned all_ties = __ballot_sync(cuda::kAllLanes, tie);
    const unsigned lane = cuda::lane_in_warp(), warp = threadIdx.x / kWarpSize;
    if (lane == 0) {
      above_of_warp[warp] = cuda::bits_set(all_above);
      ties_of_warp[warp] = cuda::bits_set(all_ties);
    }
    __syncthreads();
    std::size_t above_here = above_before + cuda::bits_set(all_above & cuda::lanes_below(lane));
    std::size_t ties_here = ties_before + cuda::bits_set(all_ties & cuda::lanes_below(lane));
    for (unsigned w = 0; w < kThreads / kWarpSize; ++w) {
      if (w < warp) {
        above_here += above_of_warp[w];
        ties_here += ties_of_warp[w];
      }
      above_before += above_of_warp[w];
      ties_before += ties_of_warp[w];
    }
    if (above || (tie && ties_here < ties))
      chosen[matrix.chosen_first + above_here + (ties_here < ties ? ties_here : ties)] =
          static_cast<std::uint32_t>(row);
    __syncthreads();  // the counts are read before the next rows' are written
  }
}

/// body(element of the vector, element of the message) over the chosen rows of a matrix.
template <class Body>
__device__ void each_kept(const RowMatrix& matrix, const std::uint32_t* chosen, const Body& body) {
  for (std::size_t i = cuda::thread_in_grid(); i < matrix.count * matrix.columns; i += cuda::threads_in_grid()) {
    const std::size_t row = chosen[matrix.chosen_first + i / matrix.columns];
    body(matrix.first + row * matrix.columns + i % matrix.columns, matrix.message_first + i);
  }
}

__global__ void gather_kernel(const RowMatrix* matrices, const std::uint32_t* chosen, const float* x, float* message) {
  each_kept(matrices[blockIdx.y], chosen, [&](std::size_t element, std::size_t at) { message[at] = x[element]; });
}

__global__ void clear_kernel(const RowMatrix* matrices, float* out) {
  const RowMatrix matrix = matrices[blockIdx.y];
  if (!matrix.selects()) return;
  for (std::size_t i = cuda::thread_in_grid(); i < matrix.rows * matrix.columns; i += cuda::threads_in_grid())
    out[matrix.first + i] = 0.0F;
}

__global__ void place_kernel(const RowMatrix* matrices, const std::uint32_t* chosen, const float* message, float share,
                             float* out) {
  each_kept(matrices[blockIdx.y], chosen,
            [&](std::size_t element, std::size_t at) { out[element] = message[at] * share; });
}

__global__ void fade_kernel(const RowMatrix* matrices, const std::uint32_t* chosen, float* x) {
  const RowMatrix matrix = matrices[blockIdx.y];
  each_kept(matrix, chosen, [&](std::size_t element, std::size_t) {
    x[element] = matrix.keeps == 0.0F ? 0.0F : x[element] * matrix.keeps;
  });
}

}  // namespace

template <>
Rows::RowSelection(RowPlan plan, Queue<Space::cuda> queue)
    : plan_{std::move(plan)},
      arena_{std::max<std::size_t>(plan_.matrices.size(), 1) * sizeof(RowMatrix)},
      table_{arena_.take<RowMatrix>(plan_.matrices.size())} {
  for (const RowMatrix& matrix : plan_.matrices) {
    most_kept_ = std::max(most_kept_, matrix.count * matrix.columns);
    if (!matrix.selects()) continue;
    most_rows_ = std::max(most_rows_, matrix.rows);
    most_sums_ = std::max(most_sums_, matrix.rows * ((matrix.columns + format::kSumChunk - 1) / format::kSumChunk));
    largest_ = std::max(largest_, matrix.rows * matrix.columns);
  }
  cuda::copy_elements(queue, table_, HostView<const RowMatrix>{plan_.matrices.data(), plan_.matrices.size()});
  cuda::synchronize(queue);
}

template <>
void Rows::magnitudes(const Workspace& work, Queue<Space::cuda> queue, View<const float, Space::cuda> x,
                      View<float, Space::cuda> out) const {
  if (plan_.keys == 0) return;
  cuda::launch(queue, "row magnitudes of chunks", chunk_magnitudes_kernel, grid_of(most_sums_, kSummers, table_.size()),
               table_.data(), x.data(), work.sums.data());
  cuda::launch(queue, "row magnitudes", row_magnitudes_kernel, grid_of(most_rows_, kThreads, table_.size()),
               table_.data(), work.sums.data(), out.data());
}

template <>
void Rows::choose(const Workspace& work, Queue<Space::cuda> queue, View<std::uint32_t, Space::cuda> chosen) const {
  if (table_.empty()) return;
  cuda::launch(queue, "row choice", choose_kernel, cuda::Grid{static_cast<unsigned>(table_.size())}, table_.data(),
               work.keys.data(), chosen.data());
}

template <>
void Rows::gather(Queue<Space::cuda> queue, View<const std::uint32_t, Space::cuda> chosen,
                  View<const float, Space::cuda> x, View<float, Space::cuda> message) const {
  if (table_.empty()) return;
  cuda::launch(queue, "row gather", gather_kernel, grid_of(most_kept_, kThreads, table_.size()), table_.data(),
               chosen.data(), x.data(), message.data());
}

template <>
void Rows::place(Queue<Space::cuda> queue, View<const std::uint32_t, Space::cuda> chosen,
                 View<const float, Space::cuda> message, float share, View<float, Space::cuda> out) const {
  if (table_.empty()) return;
  if (plan_.keys > 0) {
    cuda::launch(queue, "row clear", clear_kernel, grid_of(largest_, kThreads, table_.size()), table_.data(),
                 out.data());
  }
  cuda::launch(queue, "row place", place_kernel, grid_of(most_kept_, kThreads, table_.size()), table_.data(),
               chosen.data(), message.data(), share, out.data());
}

template <>
void Rows::fade(Queue<Space::cuda> queue, View<const std::uint32_t, Space::cuda> chosen,
                View<float, Space::cuda> x) const {
  if (table_.empty()) return;
  cuda::launch(queue, "row fade", fade_kernel, grid_of(most_kept_, kThreads, table_.size()), table_.data(),
               chosen.data(), x.data());
}

}  // namespace gradtool
