#include <cuda_runtime.h>

#include "kernels/cuda/block_sum.hpp"
#include "kernels/cuda/device_warp.hpp"
#include "kernels/cuda/gram.hpp"
#include "kernels/cuda/gram_grid.hpp"

namespace gradtool::cuda {
namespace {

__global__ void widen_kernel(const float* values, std::size_t stride, RowsOf rows, unsigned long long* non_finite) {
  unsigned long long bad = 0;
  const std::size_t workers = rows.rows - 1;
  for (std::size_t i = thread_in_grid(); i < rows.columns; i += threads_in_grid()) {
    double sum = 0;
    for (std::size_t r = 0; r < workers; ++r) {
      const double x = static_cast<double>(values[r * stride + i]);
      rows.data[r * rows.stride + i] = x;
      sum += x;
      bad += x - x == 0 ? 0 : 1;
    }
    rows.data[workers * rows.stride + i] = sum / static_cast<double>(workers);
  }
  if (bad > 0) atomicAdd(non_finite, bad);
}

/// Block (x, r): part x of row r. Three rows of `partial`, rows * parts numbers each: sums, lowest, highest.
__global__ void row_looks_kernel(RowsOf rows, double* partial) {
  const double* row = rows.data + blockIdx.y * rows.stride;
  double sum = 0;
  Extremes own{row[0], row[0]};
  for (std::size_t i = thread_in_grid(); i < rows.columns; i += threads_in_grid()) {
    sum += row[i];
    own.low = fmin(own.low, row[i]);
    own.high = fmax(own.high, row[i]);
  }
  const Extremes extremes = block_extremes(own);
  const double all = block_sum(sum);
  if (threadIdx.x != 0) return;
  const std::size_t at = std::size_t{blockIdx.y} * gridDim.x + blockIdx.x, kind = rows.rows * gridDim.x;
  partial[at] = all;
  partial[kind + at] = extremes.low;
  partial[2 * kind + at] = extremes.high;
}

__global__ void row_means_kernel(RowsOf rows, const double* partial, unsigned parts, double* means) {
  for (std::size_t r = thread_in_grid(); r < rows.rows; r += threads_in_grid()) {
    const std::size_t kind = rows.rows * parts;
    const double* mine = partial + r * parts;
    double sum = 0, low = mine[kind], high = mine[2 * kind];
    for (unsigned p = 0; p < parts; ++p) {
      sum += mine[p];
      low = fmin(low, mine[kind + p]);
      high = fmax(high, mine[2 * kind + p]);
    }
    means[r] = low < high ? sum / static_cast<double>(rows.columns) : low;
  }
}

__global__ void centre_rows_kernel(RowsOf rows, const double* means) {
  double* row = rows.data + blockIdx.y * rows.stride;
  const double mean = means[blockIdx.y];
  for (std::size_t i = thread_in_grid(); i < rows.columns; i += threads_in_grid()) row[i] -= mean;
}

__global__ void centre_columns_kernel(RowsOf rows) {
  for (std::size_t i = thread_in_grid(); i < rows.columns; i += threads_in_grid()) {
    double mean = 0;
    for (std::size_t r = 0; r < rows.rows; ++r) mean += rows.data[r * rows.stride + i];
    mean /= static_cast<double>(rows.rows);
    for (std::size_t r = 0; r < rows.rows; ++r) rows.data[r * rows.stride + i] -= mean;
  }
}

}  // namespace

void widen_with_mean(Queue<Space::cuda> queue, const float* values, std::size_t stride, const RowsOf& rows,
                     std::uint64_t* non_finite) {
  launch(queue, "widen", widen_kernel, blocks_for(rows.columns, 4 * kThreads), values, stride, rows,
         reinterpret_cast<unsigned long long*>(non_finite));
}

void centre_rows(Queue<Space::cuda> queue, const RowsOf& rows, double* means, double* work) {
  const Grid grid = gram_grid(rows.columns, rows.rows);
  launch(queue, "look at rows", row_looks_kernel, grid, rows, work);
  launch(queue, "means of rows", row_means_kernel, blocks_for(rows.rows, kThreads), rows, work, grid.x, means);
  launch(queue, "centre rows", centre_rows_kernel, grid, rows, means);
}

void centre_columns(Queue<Space::cuda> queue, const RowsOf& rows) {
  launch(queue, "centre columns", centre_columns_kernel, blocks_for(rows.columns, kThreads), rows);
}

}  // namespace gradtool::cuda
