// The second product of PowerSGD for factors of few columns, and what both products need behind them.
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/grid.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/low_rank.hpp"
#include "kernels/cuda/low_rank_tiles.hpp"
#include "kernels/schedule/warp.hpp"

namespace gradtool::cuda {
namespace {

using schedule::Four;
using schedule::kLanes;

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

__global__ void keep_kernel(const float* p, std::size_t p_count, float share, float* q, std::size_t q_count,
                            float* last_p, float* last_q) {
  const std::size_t stride = std::size_t{gridDim.x} * kThreads;
  for (std::size_t i = std::size_t{blockIdx.x} * kThreads + threadIdx.x; i < p_count || i < q_count; i += stride) {
    if (i < p_count) last_p[i] = p[i];
    if (i >= q_count) continue;
    const float value = q[i] * share;
    q[i] = value;
    last_q[i] = value;
  }
}

}  // namespace

void add_parts(Queue<Space::cuda> queue, View<const LowRankSum, Space::cuda> sums, const float* parts, float* to) {
  if (sums.empty()) return;
  launch(queue, "add parts", add_parts_kernel, static_cast<unsigned>(sums.size()), sums.data(), parts, to);
}

void project_columns(Queue<Space::cuda> queue, const LowRankTables& tables, const float* m, const float* p,
                     float* parts, float* q) {
  const auto& tiles = tables.column_products;
  if (tiles.empty()) return;
  launch(queue, "project columns", project_columns_kernel, static_cast<unsigned>(tiles.size()), tables.matrices.data(),
         tiles.data(), m, p, parts, q, aligned_to(m, 16));
  add_parts(queue, tables.q_sums, parts, q);
}

void keep_factors(Queue<Space::cuda> queue, View<const float, Space::cuda> p, float share, View<float, Space::cuda> q,
                  View<float, Space::cuda> last_p, View<float, Space::cuda> last_q) {
  expects(p.size() == last_p.size() && q.size() == last_q.size(), "factors are kept in as much room as they take");
  launch(queue, "keep factors", keep_kernel, blocks_for(std::max(p.size(), q.size()), kThreads), p.data(), p.size(),
         share, q.data(), q.size(), last_p.data(), last_q.data());
}

}  // namespace gradtool::cuda
