// The two products of PowerSGD for factors of few columns, which leave time to add up what they multiply.
#include <cuda_runtime.h>

#include "kernels/cuda/device_warp.hpp"
#include "kernels/cuda/grid.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/low_rank.hpp"
#include "kernels/law/keep_nan.hpp"
#include "kernels/schedule/warp.hpp"

namespace gradtool::cuda {
namespace {

using schedule::Four;
using schedule::kLanes;

constexpr unsigned kWarps = kThreads / kLanes;
constexpr unsigned kRowsOfWarp = 4;        ///< of the first product, whose sums a lane keeps in registers
constexpr unsigned kColumns = 4 * kLanes;  ///< that a warp reads at a time

static_assert(kProductRows == kRowsOfWarp * kWarps && kProductColumns == kColumns);

/// Up to four neighbours, zeros behind them. `aligned`: all four are there, and one access reads them.
__device__ Four<float> four_at(const float* x, unsigned count, bool aligned) {
  if (aligned) return *reinterpret_cast<const Four<float>*>(x);
  Four<float> four{};
#pragma unroll
  for (unsigned c = 0; c < 4; ++c) {
    if (c < count) four.value[c] = x[c];
  }
  return four;
}
__device__ void put_four(const Four<float>& four, float* x, unsigned count, bool aligned) {
  if (aligned) {
    *reinterpret_cast<Four<float>*>(x) = four;
    return;
  }
#pragma unroll
  for (unsigned c = 0; c < 4; ++c) {
    if (c < count) x[c] = four.value[c];
  }
}

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
      for (unsigned half = kLanes / 2; half > 0; half /= 2) total += __shfl_down_sync(DeviceWarp::kAll, total, half);
      if (lane == 0 && i < rows) to[j * matrix.rows + first_row + i] = total;
    }
  }
}

/// Calls body(std::integral_constant<unsigned, rank>).
template <class Body>
__device__ void with_rank(std::size_t rank, Body&& body) {
  switch (rank) {
    case 1:
      return body(std::integral_constant<unsigned, 1>{});
    case 2:
      return body(std::integral_constant<unsigned, 2>{});
    case 3:
      return body(std::integral_constant<unsigned, 3>{});
    default:
      return body(std::integral_constant<unsigned, 4>{});
  }
}

template <bool kHeld>
__global__ void __launch_bounds__(kThreads, 2)
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

struct ColumnRoom {
  Four<float> sum[kWarps][kMostDirectRank][kLanes];
};

/// Four neighbouring columns for a lane; the warps of a block take its rows in turn, and are added up at the end.
template <unsigned R>
__device__ void project_columns_of(const LowRankMatrix& matrix, const LowRankTile& tile, const float* m, const float* p,
                                   ColumnRoom& room, float* to, bool aligned) {
  const unsigned at = threadIdx.x % kLanes * 4;
  const unsigned warp = threadIdx.x / kLanes;
  const unsigned count = at < tile.columns ? min(4u, tile.columns - at) : 0;
  const float* x = m + matrix.first + tile.row * matrix.columns + tile.column + at;
  const float* weights = p + matrix.p_at + tile.row;
  Four<float> sum[R] = {};
  if (count > 0) {
#pragma unroll 4
    for (unsigned i = warp; i < tile.rows; i += kWarps) {
      const Four<float> row = four_at(x + i * matrix.columns, count, aligned);
#pragma unroll
      for (unsigned j = 0; j < R; ++j) {
        const float weight = __ldg(weights + j * matrix.rows + i);
#pragma unroll
        for (unsigned c = 0; c < 4; ++c) sum[j].value[c] += weight * row.value[c];
      }
    }
  }
#pragma unroll
  for (unsigned j = 0; j < R; ++j) room.sum[warp][j][threadIdx.x % kLanes] = sum[j];
  __syncthreads();
  for (unsigned k = threadIdx.x; k < R * kColumns; k += kThreads) {
    const unsigned j = k / kColumns;
    const unsigned c = k % kColumns;
    if (c >= tile.columns) continue;
    float total = room.sum[0][j][c / 4].value[c % 4];
#pragma unroll
    for (unsigned w = 1; w < kWarps; ++w) total += room.sum[w][j][c / 4].value[c % 4];
    to[j * matrix.columns + tile.column + c] = total;
  }
}

__global__ void __launch_bounds__(kThreads, 4)
    project_columns_kernel(const LowRankMatrix* matrices, const LowRankTile* tiles, const float* m, const float* p,
                           float* parts, float* q, bool aligned) {
  __shared__ ColumnRoom shared;
  ColumnRoom& room = shared;
  const LowRankTile tile = tiles[blockIdx.x];
  const LowRankMatrix matrix = matrices[tile.matrix];
  float* to =
      matrix.q_parts == 1 ? q + matrix.q_at : parts + matrix.q_parts_at + tile.part * (matrix.rank * matrix.columns);
  with_rank(matrix.rank, [&](auto rank) {
    project_columns_of<decltype(rank)::value>(matrix, tile, m, p, room, to,
                                              aligned && matrix.columns % 4 == 0 && matrix.first % 4 == 0);
  });
}

/// A warp takes every eighth part of 32 neighbours; then the first warp adds up those sums.
__global__ void add_parts_kernel(const LowRankSum* sums, const float* parts, float* to) {
  __shared__ float room[kWarps][kLanes];
  const LowRankSum sum = sums[blockIdx.x];
  const unsigned lane = threadIdx.x % kLanes;
  const unsigned warp = threadIdx.x / kLanes;
  float total = 0.0f;
  if (lane < sum.count) {
    const float* from = parts + sum.from + lane;
#pragma unroll 8
    for (std::size_t s = warp; s < sum.parts; s += kWarps) total += from[s * sum.stride];
  }
  room[warp][lane] = total;
  __syncthreads();
  if (warp != 0 || lane >= sum.count) return;
#pragma unroll
  for (unsigned w = 1; w < kWarps; ++w) total += room[w][lane];
  to[sum.to + lane] = total;
}

void add_parts(Queue<Space::cuda> queue, View<const LowRankSum, Space::cuda> sums, const float* parts, float* to) {
  if (sums.empty()) return;
  launch(queue, "add parts", add_parts_kernel, static_cast<unsigned>(sums.size()), sums.data(), parts, to);
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

void project_columns(Queue<Space::cuda> queue, const LowRankTables& tables, const float* m, const float* p,
                     float* parts, float* q) {
  const auto& tiles = tables.column_products;
  if (tiles.empty()) return;
  launch(queue, "project columns", project_columns_kernel, static_cast<unsigned>(tiles.size()), tables.matrices.data(),
         tiles.data(), m, p, parts, q, aligned_to(m, 16));
  add_parts(queue, tables.q_sums, parts, q);
}

}  // namespace gradtool::cuda
