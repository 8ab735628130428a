#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/block_ops.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/warp.hpp"
#include "kernels/low_rank.hpp"

// A grid has a row of blocks (blockIdx.y) for every matrix; those of matrices that are not skinny end at once.
namespace gradtool::cuda {
namespace {

constexpr unsigned kRowsAtOnce = 4;           ///< of a matrix, for which a warp loads each number of Q once
constexpr unsigned kFactorsAtOnce = 4;        ///< columns of a factor: a matrix is read once for so many
constexpr unsigned kColumns = 2 * kWarpSize;  ///< of a matrix, for which a warp loads each number of P once
constexpr unsigned kMostBlocks = 1024;        ///< for one matrix: enough to fill a GPU

/// Every warp multiplies some rows of M by Q: lane l adds up the columns l, l + 32, ..., and the lanes' sums are added
/// as a tree.
__global__ void project_kernel(const LowRankMatrix* matrices, const float* m, const float* q, float* p) {
  const LowRankMatrix matrix = matrices[blockIdx.y];
  if (!format::is_skinny(matrix)) return;
  const unsigned lane = lane_in_warp();
  for (std::size_t row = kRowsAtOnce * warp_in_grid(); row < matrix.rows; row += kRowsAtOnce * warps_in_grid()) {
    const float* from = m + matrix.first + row * matrix.columns;
    for (std::size_t j = 0; j < matrix.rank; j += kFactorsAtOnce) {
      float sum[kRowsAtOnce][kFactorsAtOnce] = {};
#pragma unroll 4
      for (std::size_t k = lane; k < matrix.columns; k += kWarpSize) {
        float x[kRowsAtOnce];
#pragma unroll
        for (unsigned r = 0; r < kRowsAtOnce; ++r) x[r] = row + r < matrix.rows ? from[r * matrix.columns + k] : 0.0f;
#pragma unroll
        for (unsigned c = 0; c < kFactorsAtOnce; ++c) {
          const float factor = j + c < matrix.rank ? q[matrix.q_first + (j + c) * matrix.columns + k] : 0.0f;
#pragma unroll
          for (unsigned r = 0; r < kRowsAtOnce; ++r) sum[r][c] += x[r] * factor;
        }
      }
      float own = 0.0f;  // lane 4 r + c keeps the sum of row r and column c
#pragma unroll
      for (unsigned r = 0; r < kRowsAtOnce; ++r) {
#pragma unroll
        for (unsigned c = 0; c < kFactorsAtOnce; ++c) {
          for (unsigned half = kWarpSize / 2; half > 0; half /= 2)
            sum[r][c] += __shfl_xor_sync(kAllLanes, sum[r][c], static_cast<int>(half));
          if (lane == r * kFactorsAtOnce + c) own = sum[r][c];
        }
      }
      const std::size_t to_row = row + lane / kFactorsAtOnce;
      const std::size_t to_column = j + lane % kFactorsAtOnce;
      if (lane < kRowsAtOnce * kFactorsAtOnce && to_row < matrix.rows && to_column < matrix.rank)
        p[matrix.p_first + to_column * matrix.rows + to_row] = own;
    }
  }
}

/// A block multiplies a part of the rows of kColumns columns of M by P: warp w adds up rows w, w + 8, ..., and the
/// warps' sums are added in order. Sums of matrices of several parts go to `sums`, `q_size` for each part.
__global__ void project_columns_kernel(const LowRankMatrix* matrices, const float* m, const float* p,
                                       std::size_t q_size, float* sums, float* q) {
  const LowRankMatrix matrix = matrices[blockIdx.y];
  if (!format::is_skinny(matrix)) return;
  __shared__ float shared[kBlockWarpCount][kFactorsAtOnce][kColumns];
  static_assert(kFactorsAtOnce * kColumns == kThreads);
  const unsigned lane = lane_in_warp();
  const unsigned warp = threadIdx.x / kWarpSize;
  const std::size_t chunks = (matrix.columns + kColumns - 1) / kColumns;
  const std::size_t parts = skinny_parts(matrix);
  const std::size_t rows = skinny_part_rows(matrix);
  for (std::size_t tile = blockIdx.x; tile < chunks * parts; tile += gridDim.x) {
    const std::size_t column = tile % chunks * kColumns;
    const std::size_t first = tile / chunks * rows;
    const std::size_t last = min(first + rows, matrix.rows);
    const float* from = m + matrix.first + column + lane;
    const bool low = column + lane < matrix.columns;
    const bool high = column + lane + kWarpSize < matrix.columns;
    float* to = (parts == 1 ? q : sums + tile / chunks * q_size) + matrix.q_first;
    for (std::size_t j = 0; j < matrix.rank; j += kFactorsAtOnce) {
      float sum[kFactorsAtOnce][2] = {};
#pragma unroll 4
      for (std::size_t i = first + warp; i < last; i += kBlockWarpCount) {
        const float x = low ? from[i * matrix.columns] : 0.0f;
        const float y = high ? from[i * matrix.columns + kWarpSize] : 0.0f;
#pragma unroll
        for (unsigned c = 0; c < kFactorsAtOnce; ++c) {
          const float factor = j + c < matrix.rank ? p[matrix.p_first + (j + c) * matrix.rows + i] : 0.0f;
          sum[c][0] += x * factor;
          sum[c][1] += y * factor;
        }
      }
#pragma unroll
      for (unsigned c = 0; c < kFactorsAtOnce; ++c) {
        shared[warp][c][lane] = sum[c][0];
        shared[warp][c][lane + kWarpSize] = sum[c][1];
      }
      __syncthreads();
      const unsigned c = threadIdx.x / kColumns;
      const unsigned k = threadIdx.x % kColumns;
      if (j + c < matrix.rank && column + k < matrix.columns) {
        float total = shared[0][c][k];
        for (unsigned w = 1; w < kBlockWarpCount; ++w) total += shared[w][c][k];
        to[(j + c) * matrix.columns + column + k] = total;
      }
      __syncthreads();
    }
  }
}

/// q := the sums of all parts, in order, of matrices of several.
__global__ void add_parts_kernel(const LowRankMatrix* matrices, const float* sums, std::size_t q_size, float* q) {
  const LowRankMatrix matrix = matrices[blockIdx.y];
  const std::size_t parts = skinny_parts(matrix);
  if (!format::is_skinny(matrix) || parts == 1) return;
  for (std::size_t i = thread_in_grid(); i < matrix.rank * matrix.columns; i += threads_in_grid()) {
    float total = sums[matrix.q_first + i];
    for (std::size_t part = 1; part < parts; ++part) total += sums[part * q_size + matrix.q_first + i];
    q[matrix.q_first + i] = total;
  }
}

}  // namespace

SkinnyProducts::SkinnyProducts(const std::vector<LowRankMatrix>& matrices, std::size_t q_size) : q_size_{q_size} {
  for (const LowRankMatrix& matrix : matrices) {
    if (!format::is_skinny(matrix)) continue;
    const std::size_t parts = skinny_parts(matrix);
    rows_ = std::max(rows_, matrix.rows);
    parts_ = std::max(parts_, parts);
    tiles_ = std::max(tiles_, parts * ((matrix.columns + kColumns - 1) / kColumns));
    factor_ = std::max(factor_, parts == 1 ? 0 : matrix.rank * matrix.columns);
  }
}

void SkinnyProducts::project(Queue<Space::cuda> queue, const LowRankTable& table, const float* m, const float* q,
                             float* p) const {
  if (rows_ == 0) return;
  Grid grid{blocks_for(rows_, std::size_t{kRowsAtOnce} * kBlockWarpCount, kMostBlocks)};
  grid.y = static_cast<unsigned>(table.matrices.size());
  launch(queue, "powersgd project", project_kernel, grid, table.matrices.data(), m, q, p);
}

void SkinnyProducts::project_columns(Queue<Space::cuda> queue, const LowRankTable& table, const float* m,
                                     const float* p, View<float, Space::cuda> sums, float* q) const {
  if (rows_ == 0) return;
  Grid grid{blocks_for(tiles_, 1, kMostBlocks)};
  grid.y = static_cast<unsigned>(table.matrices.size());
  launch(queue, "powersgd project columns", project_columns_kernel, grid, table.matrices.data(), m, p, q_size_,
         sums.data(), q);
  if (factor_ == 0) return;
  grid.x = blocks_for(factor_, kThreads, kMostBlocks);
  launch(queue, "powersgd add parts", add_parts_kernel, grid, table.matrices.data(), sums.data(), q_size_, q);
}

}  // namespace gradtool::cuda
