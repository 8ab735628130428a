#include "kernels/cuda/gram.hpp"

#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/block_sum.hpp"
#include "kernels/cuda/device_warp.hpp"
#include "kernels/cuda/gram_grid.hpp"
#include "kernels/cuda/launch.hpp"

namespace gradtool::cuda {
namespace {

constexpr std::size_t kTile = 32;         // rows of a tile of the Gram matrix, and columns taken at a time
constexpr std::size_t kHalf = kTile / 2;  // a thread has 2 x 2 products, kHalf rows apart

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
  const std::size_t most = std::clamp<std::size_t>(1024 / pairs_of(rows), 1, kMostGramParts);
  return blocks_for(columns, 8 * kTile, most);
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
  const Grid grid = gram_grid(columns.count, a.rows);
  launch(queue, "row products", dots_kernel<Columns>, grid, a, b, columns, work);
  launch(queue, "sums of row products", join_dots_kernel, blocks_for(a.rows, kThreads), work, grid.x, a.rows, dots);
}

}  // namespace

std::size_t gram_work(std::size_t rows) {
  const std::size_t parts = std::clamp<std::size_t>(1024 / pairs_of(rows), 1, kMostGramParts);
  return std::max(pairs_of(rows) * parts * kTile * kTile, 3 * rows * kMostGramParts);
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
