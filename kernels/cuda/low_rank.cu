#include "kernels/cuda/low_rank.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <limits>

#include "kernels/cuda/block_sum.hpp"
#include "kernels/cuda/grid.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/runtime.hpp"
#include "kernels/law/normal.hpp"
#include "kernels/schedule/warp.hpp"

namespace gradtool::cuda {
namespace {

using schedule::Four;

constexpr std::size_t kColumnsAtOnce = 4;  ///< of a factor: the host's order of additions

__global__ void revive_kernel(const LowRankColumn* columns, law::DrawKey key, bool all, float* q) {
  const LowRankColumn column = columns[blockIdx.x];
  if (!all) {
    double squares = 0.0;
    for (std::size_t k = threadIdx.x; k < column.length; k += kThreads) {
      const double x = static_cast<double>(q[column.at + k]);
      squares += x * x;
    }
    squares = block_sum(squares);
    if (squares > 0.0 && squares < std::numeric_limits<double>::infinity()) return;
  }
  for (std::size_t k = threadIdx.x; k < column.length; k += kThreads)
    q[column.at + k] = law::normal(key, column.at + k);
}

__global__ void gather_kernel(const LowRankPiece* pieces, const float* gradient, float* message) {
  const LowRankPiece piece = pieces[blockIdx.x];
  for (std::size_t i = threadIdx.x; i < piece.count; i += kThreads) message[piece.at + i] = gradient[piece.first + i];
}
__global__ void scatter_kernel(const LowRankPiece* pieces, const float* message, float factor, float* gradient) {
  const LowRankPiece piece = pieces[blockIdx.x];
  for (std::size_t i = threadIdx.x; i < piece.count; i += kThreads)
    gradient[piece.first + i] = message[piece.at + i] * factor;
}

/// Four neighbouring columns for a thread, whose factors stay in registers while it walks down the rows; with R = 0
/// for any rank, whose factors then come from the first cache in every row.
template <unsigned R>
__device__ void rebuild_tile(const LowRankMatrix& matrix, const LowRankTile& tile, const float* p, const float* q,
                             float* out, float* left, bool aligned) {
  const unsigned lanes = min(kThreads, (tile.columns + 3) / 4);
  const unsigned groups = kThreads / lanes;
  const unsigned group = threadIdx.x / lanes;
  const unsigned at = threadIdx.x % lanes * 4;
  if (group >= groups) return;
  const unsigned count = min(4u, tile.columns - at);
  const std::size_t column = tile.column + at;
  const float* first = p + matrix.p_at;
  const float* second = q + matrix.q_at + column;
  float factor[kColumnsAtOnce][4];
  if constexpr (R > 0) {
#pragma unroll
    for (unsigned j = 0; j < R; ++j) {
#pragma unroll
      for (unsigned c = 0; c < 4; ++c) factor[j][c] = c < count ? second[j * matrix.columns + c] : 0.0f;
    }
  }
  for (std::size_t i = tile.row + group; i < tile.row + tile.rows; i += groups) {
    Four<float> sum{};
    if constexpr (R > 0) {
#pragma unroll
      for (unsigned j = 0; j < R; ++j) {
        const float weight = __ldg(first + j * matrix.rows + i);
#pragma unroll
        for (unsigned c = 0; c < 4; ++c)
          sum.value[c] = j == 0 ? weight * factor[0][c] : sum.value[c] + weight * factor[j][c];
      }
    } else {
      for (std::size_t from = 0; from < matrix.rank; from += kColumnsAtOnce) {
        const std::size_t to = min(from + kColumnsAtOnce, matrix.rank);
        Four<float> part{};
        for (std::size_t j = from; j < to; ++j) {
          const float weight = __ldg(first + j * matrix.rows + i);
#pragma unroll
          for (unsigned c = 0; c < 4; ++c) {
            if (c >= count) continue;
            const float term = weight * __ldg(second + j * matrix.columns + c);
            part.value[c] = j == from ? term : part.value[c] + term;
          }
        }
        for (unsigned c = 0; c < 4; ++c) sum.value[c] = from == 0 ? part.value[c] : sum.value[c] + part.value[c];
      }
    }
    const std::size_t element = matrix.first + i * matrix.columns + column;
    if (aligned && count == 4) {
      if (out != nullptr) *reinterpret_cast<Four<float>*>(out + element) = sum;
      if (left == nullptr) continue;
      auto* held = reinterpret_cast<Four<float>*>(left + element);
      Four<float> rest = *held;
      for (unsigned c = 0; c < 4; ++c) rest.value[c] -= sum.value[c];
      *held = rest;
      continue;
    }
    for (unsigned c = 0; c < count; ++c) {
      if (out != nullptr) out[element + c] = sum.value[c];
      if (left != nullptr) left[element + c] -= sum.value[c];
    }
  }
}

__global__ void rebuild_kernel(const LowRankMatrix* matrices, const LowRankTile* tiles, const float* p, const float* q,
                               float* out, float* left, bool aligned) {
  const LowRankTile tile = tiles[blockIdx.x];
  const LowRankMatrix matrix = matrices[tile.matrix];
  aligned = aligned && matrix.first % 4 == 0 && matrix.columns % 4 == 0;
  switch (matrix.rank) {
    case 1:
      return rebuild_tile<1>(matrix, tile, p, q, out, left, aligned);
    case 2:
      return rebuild_tile<2>(matrix, tile, p, q, out, left, aligned);
    case 3:
      return rebuild_tile<3>(matrix, tile, p, q, out, left, aligned);
    case 4:
      return rebuild_tile<4>(matrix, tile, p, q, out, left, aligned);
    default:
      return rebuild_tile<0>(matrix, tile, p, q, out, left, aligned);
  }
}

/// Tables have 32-bit places.
unsigned blocks(std::size_t items) {
  return static_cast<unsigned>(items);
}

}  // namespace

void revive_columns(Queue<Space::cuda> queue, const LowRankTables& tables, const law::DrawKey& key, bool all,
                    float* q) {
  if (tables.columns.empty()) return;
  launch(queue, "revive columns", revive_kernel, blocks(tables.columns.size()), tables.columns.data(), key, all, q);
}

void gather_pieces(Queue<Space::cuda> queue, const LowRankTables& tables, const float* gradient, float* message) {
  if (tables.pieces.empty()) return;
  launch(queue, "gather pieces", gather_kernel, blocks(tables.pieces.size()), tables.pieces.data(), gradient, message);
}

void scatter_pieces(Queue<Space::cuda> queue, const LowRankTables& tables, const float* message, float factor,
                    float* gradient) {
  if (tables.pieces.empty()) return;
  launch(queue, "scatter pieces", scatter_kernel, blocks(tables.pieces.size()), tables.pieces.data(), message, factor,
         gradient);
}

void rebuild_low_rank(Queue<Space::cuda> queue, const LowRankTables& tables, const float* p, const float* q, float* out,
                      float* left) {
  if (tables.tiles.empty()) return;
  launch(queue, "rebuild low rank", rebuild_kernel, blocks(tables.tiles.size()), tables.matrices.data(),
         tables.tiles.data(), p, q, out, left, aligned_to(out, 16) && aligned_to(left, 16));
}

}  // namespace gradtool::cuda
