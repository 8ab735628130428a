// The first product of PowerSGD for factors of few columns: they leave time to bring the matrix up to date on the way.
#include <cuda_runtime.h>

#include "kernels/cuda/device_warp.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/low_rank.hpp"
#include "kernels/cuda/low_rank_tiles.hpp"
#include "kernels/law/keep_nan.hpp"

namespace gradtool::cuda {
namespace {

using schedule::Four;
using schedule::kLanes;

constexpr unsigned kRowsOfWarp = 4;  ///< whose sums a lane keeps in registers
static_assert(kProductRows == kRowsOfWarp * kWarps);

/// What all rows of a tile are multiplied with, in shared memory: registers are for loads that are on their way.
struct RowRoom {
  Four<float> factor[kMostDirectRank][kPartColumns / 4];
  Four<float> last_q[kMostDirectRank][kPartColumns / 4];
  Four<float> last_p[kProductRows];
};

template <unsigned R>
__device__ void fill_factor(const float* q, const LowRankMatrix& matrix, const LowRankTile& tile, bool aligned,
                            Four<float> (&to)[kMostDirectRank][kPartColumns / 4]) {
  const float* from = q + matrix.q_at + tile.column;
#pragma unroll
  for (unsigned j = 0; j < R; ++j) {
    for (unsigned k = threadIdx.x; 4 * k < tile.columns; k += kThreads)
      to[j][k] = four_at(from + j * matrix.columns + 4 * k, min(4u, tile.columns - 4 * k), aligned);
  }
}

/// Four rows for a warp, which walks along the columns of its tile; sums of rows end in its first lane.
template <unsigned R, bool kHeld>
__device__ void project_rows_of(const LowRankMatrix& matrix, const LowRankTile& tile, const float* gradient,
                                const LowRankHeld& held, const float* q, RowRoom& room, float* to, bool aligned,
                                bool aligned_q) {
  fill_factor<R>(q, matrix, tile, aligned_q, room.factor);
  if constexpr (kHeld) {
    fill_factor<R>(held.q, matrix, tile, aligned_q, room.last_q);
    for (unsigned i = threadIdx.x; i < tile.rows; i += kThreads) {
#pragma unroll
      for (unsigned j = 0; j < R; ++j) room.last_p[i].value[j] = held.p[matrix.p_at + j * matrix.rows + tile.row + i];
    }
  }
  __syncthreads();
  const unsigned lane = threadIdx.x % kLanes;
  const unsigned own = threadIdx.x / kLanes * kRowsOfWarp;
  if (own >= tile.rows) return;
  const unsigned rows = min(kRowsOfWarp, tile.rows - own);
  const std::size_t first_row = tile.row + own;
  const std::size_t first = matrix.first + first_row * matrix.columns + tile.column;
  float sum[kRowsOfWarp][R] = {};
  for (unsigned at = 4 * lane; at < tile.columns; at += kColumns) {
    const unsigned count = min(4u, tile.columns - at);
    Four<float> m[kRowsOfWarp] = {}, left[kRowsOfWarp] = {}, factor[R], last[R];
#pragma unroll
    for (unsigned i = 0; i < kRowsOfWarp; ++i) {
      if (i >= rows) continue;
      m[i] = four_at(gradient + first + at + i * matrix.columns, count, aligned);
      if constexpr (kHeld) left[i] = four_at(held.m + first + at + i * matrix.columns, count, aligned);
    }
#pragma unroll
    for (unsigned j = 0; j < R; ++j) {
      factor[j] = room.factor[j][at / 4];
      if constexpr (kHeld) last[j] = room.last_q[j][at / 4];
    }
#pragma unroll
    for (unsigned i = 0; i < kRowsOfWarp; ++i) {
      if (i >= rows) continue;
      Four<float> weight;
      if constexpr (kHeld) weight = room.last_p[own + i];
#pragma unroll
      for (unsigned c = 0; c < 4; ++c) {
        if (c >= count) continue;
        if constexpr (kHeld) {  // rebuild_low_rank's order of additions
          float known = weight.value[0] * last[0].value[c];
#pragma unroll
          for (unsigned j = 1; j < R; ++j) known += weight.value[j] * last[j].value[c];
          m[i].value[c] = law::one_nan(left[i].value[c] - known + m[i].value[c]);
        }
#pragma unroll
        for (unsigned j = 0; j < R; ++j) sum[i][j] += m[i].value[c] * factor[j].value[c];
      }
      if constexpr (kHeld) put_four(m[i], held.m + first + at + i * matrix.columns, count, aligned);
    }
  }
#pragma unroll
  for (unsigned i = 0; i < kRowsOfWarp; ++i) {
#pragma unroll
    for (unsigned j = 0; j < R; ++j) {
      float total = sum[i][j];
#pragma unroll
      for (unsigned half = kLanes / 2; half > 0; half /= 2) total += __shfl_down_sync(kAllLanes, total, half);
      if (lane == 0 && i < rows) to[j * matrix.rows + first_row + i] = total;
    }
  }
}

template <bool kHeld>
__global__ void __launch_bounds__(kThreads, kHeld ? 2 : 3)
    project_rows_kernel(const LowRankMatrix* matrices, const LowRankTile* tiles, const float* gradient,
                        LowRankHeld held, const float* q, float* parts, float* p, bool aligned, bool aligned_q) {
  __shared__ RowRoom shared;
  RowRoom& room = shared;
  const LowRankTile tile = tiles[blockIdx.x];
  const LowRankMatrix matrix = matrices[tile.matrix];
  const bool by_four = matrix.columns % 4 == 0;
  float* to =
      matrix.p_parts == 1 ? p + matrix.p_at : parts + matrix.p_parts_at + tile.part * (matrix.rank * matrix.rows);
  with_rank(matrix.rank, [&](auto rank) {
    project_rows_of<decltype(rank)::value, kHeld>(matrix, tile, gradient, held, q, room, to,
                                                  aligned && by_four && matrix.first % 4 == 0,
                                                  aligned_q && by_four && matrix.q_at % 4 == 0);
  });
}

}  // namespace

void project_rows(Queue<Space::cuda> queue, const LowRankTables& tables, const float* gradient, const LowRankHeld& held,
                  const float* q, float* parts, float* p) {
  const auto& tiles = tables.row_products;
  if (tiles.empty()) return;
  const bool aligned = aligned_to(gradient, 16) && aligned_to(held.m, 16);
  const bool aligned_q = aligned_to(q, 16) && aligned_to(held.q, 16);
  launch(queue, "project rows", held.m == nullptr ? project_rows_kernel<false> : project_rows_kernel<true>,
         static_cast<unsigned>(tiles.size()), tables.matrices.data(), tiles.data(), gradient, held, q, parts, p,
         aligned, aligned_q);
  add_parts(queue, tables.p_sums, parts, p);
}

}  // namespace gradtool::cuda
