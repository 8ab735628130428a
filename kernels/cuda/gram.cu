#include "kernels/cuda/gram.hpp"

#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/block_sum.hpp"
#include "kernels/cuda/device_warp.hpp"
#include "kernels/cuda/grid.hpp"
#include "kernels/cuda/launch.hpp"

namespace gradtool::cuda {
namespace {

constexpr std::size_t kTile = 32;         // rows of a tile of the Gram matrix, and columns taken at a time
constexpr std::size_t kHalf = kTile / 2;  // a thread has 2 x 2 products, kHalf rows apart
constexpr unsigned kMostParts = 64;       // into which the columns of a sum are cut

static_assert(kHalf * kHalf == kThreads);

struct AllColumns {
  std::uint64_t count;
  [[nodiscard]] GT_HD std::uint64_t offset(std::uint64_t c) const { return c; }
};

std::size_t tiles_of(std::size_t rows) {
  return (rows + kTile - 1) / kTile;
}
/// Tiles of the lower triangle, its diagonal included.
std::size_t pairs_of(std::size_t rows) {
  return tiles_of(rows) * (tiles_of(rows) + 1) / 2;
}
/// Parts of the columns: enough blocks for any GPU, and partial matrices that stay small.
unsigned gram_parts(std::size_t rows, std::size_t columns) {
  const std::size_t most = std::clamp<std::size_t>(1024 / pairs_of(rows), 1, kMostParts);
  return blocks_for(columns, 8 * kTile, most);
}

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
  __shared__ double low[kThreads], high[kThreads];
  const double* row = rows.data + blockIdx.y * rows.stride;
  double sum = 0, lowest = row[0], highest = row[0];
  for (std::size_t i = thread_in_grid(); i < rows.columns; i += threads_in_grid()) {
    sum += row[i];
    lowest = fmin(lowest, row[i]);
    highest = fmax(highest, row[i]);
  }
  low[threadIdx.x] = lowest;
  high[threadIdx.x] = highest;
  __syncthreads();
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) {
      low[threadIdx.x] = fmin(low[threadIdx.x], low[threadIdx.x + half]);
      high[threadIdx.x] = fmax(high[threadIdx.x], high[threadIdx.x + half]);
    }
    __syncthreads();
  }
  const double all = block_sum(sum);
  if (threadIdx.x != 0) return;
  const std::size_t at = std::size_t{blockIdx.y} * gridDim.x + blockIdx.x, kind = rows.rows * gridDim.x;
  partial[at] = all;
  partial[kind + at] = low[0];
  partial[2 * kind + at] = high[0];
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

/// The tile (row, column) of the lower triangle that is its pair-th, counted row by row.
__device__ void tile_of(unsigned pair, std::size_t& i, std::size_t& j) {
  i = 0;
  while ((i + 1) * (i + 2) / 2 <= pair) ++i;
  j = pair - i * (i + 1) / 2;
}

/// Block (x, y): part x of the columns, tile y. Its products go to partial[y][x][kTile][kTile].
template <class Columns>
__global__ void gram_kernel(RowsOf rows, Columns columns, double* partial) {
  __shared__ double a[kTile][kTile + 1], b[kTile][kTile + 1];
  std::size_t i = 0, j = 0;
  tile_of(blockIdx.y, i, j);
  const std::size_t pieces = (columns.count + kTile - 1) / kTile;
  const std::size_t first = pieces * blockIdx.x / gridDim.x, last = pieces * (blockIdx.x + 1) / gridDim.x;
  const unsigned x = threadIdx.x % kHalf, y = threadIdx.x / kHalf;
  double sum[2][2] = {};
  for (std::size_t piece = first; piece < last; ++piece) {
    const std::size_t c = piece * kTile + threadIdx.x % kTile;
    const bool inside = c < columns.count;
    const std::size_t at = inside ? columns.offset(c) : 0;
    for (std::size_t r = threadIdx.x / kTile; r < kTile; r += kThreads / kTile) {
      const std::size_t mine = i * kTile + r, other = j * kTile + r;
      a[r][threadIdx.x % kTile] = inside && mine < rows.rows ? rows.data[mine * rows.stride + at] : 0.0;
      b[r][threadIdx.x % kTile] = inside && other < rows.rows ? rows.data[other * rows.stride + at] : 0.0;
    }
    __syncthreads();
#pragma unroll 8
    for (std::size_t k = 0; k < kTile; ++k) {
      const double a0 = a[y][k], a1 = a[y + kHalf][k], b0 = b[x][k], b1 = b[x + kHalf][k];
      sum[0][0] += a0 * b0;
      sum[0][1] += a0 * b1;
      sum[1][0] += a1 * b0;
      sum[1][1] += a1 * b1;
    }
    __syncthreads();
  }
  double* out = partial + (std::size_t{blockIdx.y} * gridDim.x + blockIdx.x) * kTile * kTile;
  out[y * kTile + x] = sum[0][0];
  out[y * kTile + x + kHalf] = sum[0][1];
  out[(y + kHalf) * kTile + x] = sum[1][0];
  out[(y + kHalf) * kTile + x + kHalf] = sum[1][1];
}

/// Block y: tile y of the matrix from its parts, and its mirror image.
__global__ void join_gram_kernel(const double* partial, unsigned parts, std::size_t rows, double* gram) {
  std::size_t i = 0, j = 0;
  tile_of(blockIdx.x, i, j);
  for (std::size_t at = threadIdx.x; at < kTile * kTile; at += kThreads) {
    const std::size_t row = i * kTile + at / kTile, column = j * kTile + at % kTile;
    if (row >= rows || column > row) continue;
    double sum = 0;
    for (unsigned p = 0; p < parts; ++p) sum += partial[(std::size_t{blockIdx.x} * parts + p) * kTile * kTile + at];
    gram[row * rows + column] = sum;
    gram[column * rows + row] = sum;
  }
}

/// Block (x, r): part x of row r.
template <class Columns>
__global__ void dots_kernel(RowsOf a, RowsOf b, Columns columns, double* partial) {
  const double *x = a.data + blockIdx.y * a.stride, *y = b.data + blockIdx.y * b.stride;
  double sum = 0;
  for (std::size_t c = thread_in_grid(); c < columns.count; c += threads_in_grid()) {
    const std::size_t at = columns.offset(c);
    sum += x[at] * y[at];
  }
  const double all = block_sum(sum);
  if (threadIdx.x == 0) partial[std::size_t{blockIdx.y} * gridDim.x + blockIdx.x] = all;
}

__global__ void join_dots_kernel(const double* partial, unsigned parts, std::size_t rows, double* dots) {
  for (std::size_t r = thread_in_grid(); r < rows; r += threads_in_grid()) {
    double sum = 0;
    for (unsigned p = 0; p < parts; ++p) sum += partial[r * parts + p];
    dots[r] = sum;
  }
}

Grid grid_of(std::size_t columns, std::size_t rows) {
  Grid grid{blocks_for(columns, 4 * kThreads, kMostParts)};
  grid.y = static_cast<unsigned>(rows);
  return grid;
}

template <class Columns>
void gram_of(Queue<Space::cuda> queue, const RowsOf& rows, const Columns& columns, double* gram, double* work) {
  constexpr std::size_t kMostPairs = 65535;  // of blocks along y
  expects(pairs_of(rows.rows) <= kMostPairs, "a GPU correlates at most 11552 rows; take fewer steps, or the CPU");
  Grid grid{gram_parts(rows.rows, columns.count)};
  grid.y = static_cast<unsigned>(pairs_of(rows.rows));
  launch(queue, "inner products", gram_kernel<Columns>, grid, rows, columns, work);
  launch(queue, "sums of inner products", join_gram_kernel, grid.y, work, grid.x, rows.rows, gram);
}

template <class Columns>
void dots_of(Queue<Space::cuda> queue, const RowsOf& a, const RowsOf& b, const Columns& columns, double* dots,
             double* work) {
  const Grid grid = grid_of(columns.count, a.rows);
  launch(queue, "row products", dots_kernel<Columns>, grid, a, b, columns, work);
  launch(queue, "sums of row products", join_dots_kernel, blocks_for(a.rows, kThreads), work, grid.x, a.rows, dots);
}

}  // namespace

std::size_t gram_work(std::size_t rows) {
  const std::size_t parts = std::clamp<std::size_t>(1024 / pairs_of(rows), 1, kMostParts);
  return std::max(pairs_of(rows) * parts * kTile * kTile, 3 * rows * kMostParts);
}

void widen_with_mean(Queue<Space::cuda> queue, const float* values, std::size_t stride, const RowsOf& rows,
                     std::uint64_t* non_finite) {
  launch(queue, "widen", widen_kernel, blocks_for(rows.columns, 4 * kThreads), values, stride, rows,
         reinterpret_cast<unsigned long long*>(non_finite));
}

void centre_rows(Queue<Space::cuda> queue, const RowsOf& rows, double* means, double* work) {
  const Grid grid = grid_of(rows.columns, rows.rows);
  launch(queue, "look at rows", row_looks_kernel, grid, rows, work);
  launch(queue, "means of rows", row_means_kernel, blocks_for(rows.rows, kThreads), rows, work, grid.x, means);
  launch(queue, "centre rows", centre_rows_kernel, grid, rows, means);
}

void centre_columns(Queue<Space::cuda> queue, const RowsOf& rows) {
  launch(queue, "centre columns", centre_columns_kernel, blocks_for(rows.columns, kThreads), rows);
}

void gram(Queue<Space::cuda> queue, const RowsOf& rows, double* out, double* work) {
  gram_of(queue, rows, AllColumns{rows.columns}, out, work);
}
void gram(Queue<Space::cuda> queue, const RowsOf& rows, const law::SliceColumns& slice, double* out, double* work) {
  gram_of(queue, rows, slice, out, work);
}

void row_dots(Queue<Space::cuda> queue, const RowsOf& a, const RowsOf& b, double* dots, double* work) {
  dots_of(queue, a, b, AllColumns{a.columns}, dots, work);
}
void row_dots(Queue<Space::cuda> queue, const RowsOf& a, const RowsOf& b, const law::SliceColumns& slice, double* dots,
              double* work) {
  dots_of(queue, a, b, slice, dots, work);
}

}  // namespace gradtool::cuda
