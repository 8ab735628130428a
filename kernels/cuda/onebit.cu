#include "kernels/cuda/onebit.hpp"

#include <cuda_runtime.h>

#include "kernels/cuda/device_warp.hpp"
#include "kernels/cuda/grid.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/ordered_sums.hpp"
#include "kernels/cuda/quads.hpp"
#include "kernels/cuda/sign_words.hpp"

namespace gradtool::cuda {
namespace {

/// What is added up for a column over a chunk of its rows.
struct ColumnSums {
  double negative;
  double other;
  std::uint64_t negatives;
};

/// What the two kinds of elements of a column decode to.
struct alignas(8) Means {
  float other;
  float negative;
};

/// Scratch: of pieces of single columns the sums below zero, behind them the others, and how many are below; then the
/// sums of strips.
struct Sums {
  double* of_piece;
  std::uint64_t* negatives;
  ColumnSums* of_strip;

  __device__ __host__ Sums(std::byte* scratch, std::size_t pieces)
      : of_piece{reinterpret_cast<double*>(scratch)},
        negatives{reinterpret_cast<std::uint64_t*>(of_piece + 2 * pieces)},
        of_strip{reinterpret_cast<ColumnSums*>(negatives + pieces)} {}
};

/// Words of all elements; sums of those in single columns: elements below zero by the lower half of a warp, the others
/// by the upper half.
__global__ void pieces_kernel(OneBitTable table, const float* gradient, std::uint32_t* words, Sums sums) {
  alignas(16) __shared__ float room[kChunkWarps][kTileRoom];
  const unsigned lane = lane_in_warp();
  for (std::size_t p = warp_in_grid(); p < table.pieces.pieces; p += warps_in_grid()) {
    const TensorPiece piece = table.pieces.piece[p];
    const int count = static_cast<int>(piece.count);
    const bool single = table.matrix[piece.tensor].columns == 1;
    const bool lower = lane < law::kSumLanes;
    double sum = 0.0;
    unsigned negatives = 0;
    each_tile(gradient + piece.first, count, room[threadIdx.x / schedule::kLanes], [&](int first, const float* tile) {
      negatives += static_cast<unsigned>(__popc(write_negatives(tile, first, count, words + piece.word)));
      if (!single) return;
#pragma unroll 8
      for (unsigned i = lane % law::kSumLanes; i < kTile; i += law::kSumLanes)
        sum += static_cast<double>((tile[i] < 0.0f) == lower ? tile[i] : 0.0f);
    });
    if (!single) continue;
    sum = folded(sum);
    negatives = __reduce_add_sync(kAllLanes, negatives);
    if (lane % law::kSumLanes == 0) sums.of_piece[lower ? p : table.pieces.pieces + p] = sum;
    if (lane == 0) sums.negatives[p] = negatives;
  }
}

/// A lane has four columns, 32 apart, so that a row is read in whole sectors.
__global__ void strips_kernel(OneBitTable table, const float* gradient, ColumnSums* sums) {
  constexpr int kOwn = kStripColumns / schedule::kLanes;
  for (std::size_t t = warp_in_grid(); t < table.tiles; t += warps_in_grid()) {
    const OneBitTile tile = table.tile[t];
    const OneBitStrip strip = table.strip[tile.strip];
    const std::size_t left = strip.rows - law::kSumRows * tile.chunk;
    const auto rows = static_cast<int>(left < law::kSumRows ? left : law::kSumRows);
    const float* x = gradient + strip.first + law::kSumRows * tile.chunk * strip.stride + lane_in_warp();
    const int columns = static_cast<int>(strip.count) - static_cast<int>(lane_in_warp());
    double negative[kOwn]{};
    double other[kOwn]{};
    unsigned negatives[kOwn]{};
#pragma unroll 4
    for (int r = 0; r < rows; ++r, x += strip.stride) {
#pragma unroll
      for (int c = 0; c < kOwn; ++c) {
        const float value = 32 * c < columns ? x[32 * c] : 0.0f;
        const bool below = value < 0.0f;
        negative[c] += static_cast<double>(below ? value : 0.0f);
        other[c] += static_cast<double>(below ? 0.0f : value);
        negatives[c] += below ? 1u : 0u;
      }
    }
    ColumnSums* to = sums + strip.slot + tile.chunk * strip.count + lane_in_warp();
#pragma unroll
    for (int c = 0; c < kOwn; ++c) {
      if (32 * c < columns) to[32 * c] = {negative[c], other[c], negatives[c]};
    }
  }
}

__device__ Means means_of(double negative, double other, std::uint64_t negatives, std::uint64_t count) {
  return {law::stored_mean(other, count - negatives), law::stored_mean(negative, negatives)};
}

/// A block for each tensor; those of several columns are not its business.
__global__ void single_means_kernel(OneBitTable table, Sums sums, Means* means) {
  __shared__ SumRoom<2> room;
  __shared__ std::uint64_t counts[kThreads / schedule::kLanes];
  for (std::size_t t = blockIdx.x; t < table.pieces.tensors; t += gridDim.x) {
    const OneBitMatrix matrix = table.matrix[t];
    if (matrix.columns != 1) continue;
    const TensorRange range = table.pieces.tensor[t];
    std::uint64_t negatives = 0;
    for (std::size_t p = range.first + threadIdx.x; p < range.last; p += kThreads) negatives += sums.negatives[p];
    for (unsigned half = 16; half > 0; half /= 2) negatives += __shfl_down_sync(kAllLanes, negatives, half);
    if (lane_in_warp() == 0) counts[threadIdx.x / schedule::kLanes] = negatives;
    double both[2];
    sums_of_chunks<2>(sums.of_piece, table.pieces.pieces, range.first, range.last, room, both);
    if (threadIdx.x == 0) {
      std::uint64_t all = 0;
      for (const std::uint64_t warp : counts) all += warp;
      means[matrix.first_column] = means_of(both[0], both[1], all, matrix.rows);
    }
    __syncthreads();
  }
}

/// A thread for each column of a strip.
__global__ void strip_means_kernel(OneBitTable table, const ColumnSums* sums, Means* means) {
  for (std::size_t s = blockIdx.x; s < table.strips; s += gridDim.x) {
    const OneBitStrip strip = table.strip[s];
    if (threadIdx.x >= strip.count) continue;
    const ColumnSums* from = sums + strip.slot + threadIdx.x;
    law::GroupedSum negative;
    law::GroupedSum other;
    std::uint64_t negatives = 0;
    const std::size_t chunks = (strip.rows + law::kSumRows - 1) / law::kSumRows;
#pragma unroll 8
    for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
      const ColumnSums part = from[chunk * strip.count];
      negative.add(part.negative);
      other.add(part.other);
      negatives += part.negatives;
    }
    means[strip.column + threadIdx.x] = means_of(negative.value(), other.value(), negatives, strip.rows);
  }
}

__global__ void decode_kernel(OneBitTable table, const __grid_constant__ Payloads payloads, float weight, float* out) {
  each_share(table.pieces, [&](std::size_t first, int count, const TensorPiece& piece, int offset) {
    const OneBitMatrix matrix = table.matrix[piece.tensor];
    const auto columns = static_cast<unsigned>(matrix.columns);
    // Of the element four before the first, or more, so that a lead in front of it is nothing special.
    const auto start = static_cast<unsigned>((first - matrix.first + 4 * (matrix.columns - 1)) % matrix.columns);
    update_quads(out + first, count, [&](int at, Four<float>& sum) {
      const unsigned column = columns == 1 ? 0 : (start + static_cast<unsigned>(at + 4)) % columns;
      for (unsigned i = 0; i < payloads.count; ++i) {
        const Means* means = reinterpret_cast<const Means*>(payloads.at[i]);
        const auto* words = reinterpret_cast<const std::uint32_t*>(means + table.columns) + piece.word + offset / 32;
        const unsigned bits = four_codes<1>(words, at, count);
        means += matrix.first_column;
        unsigned c = column;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const Means mean = means[c];
          sum.value[k] += weight * ((bits >> k & 1u) != 0 ? mean.negative : mean.other);
          c = c + 1 == columns ? 0 : c + 1;
        }
      }
    });
  });
}

}  // namespace

void onebit_encode(Queue<Space::cuda> queue, const OneBitTable& table, const float* gradient, float* means,
                   std::uint32_t* words, std::byte* scratch) {
  const TensorTable& pieces = table.pieces;
  if (pieces.pieces == 0) return;
  const Sums sums{scratch, pieces.pieces};
  auto* out = reinterpret_cast<Means*>(means);
  const Grid by_piece{blocks_for(pieces.pieces, kChunkWarps), kChunkThreads};
  launch(queue, "onebit signs", pieces_kernel, by_piece, table, gradient, words, sums);
  launch(queue, "onebit means", single_means_kernel, blocks_for(pieces.tensors, 1), table, sums, out);
  if (table.tiles == 0) return;
  const Grid by_tile{blocks_for(table.tiles, kChunkWarps), kChunkThreads};
  launch(queue, "onebit columns", strips_kernel, by_tile, table, gradient, sums.of_strip);
  const Grid by_strip{blocks_for(table.strips, 1), kChunkThreads};
  static_assert(kStripColumns == kChunkThreads);
  launch(queue, "onebit means of columns", strip_means_kernel, by_strip, table, sums.of_strip, out);
}

void onebit_decode_add(Queue<Space::cuda> queue, const OneBitTable& table, const Payloads& payloads, float weight,
                       float* out) {
  if (table.pieces.pieces == 0) return;
  launch(queue, "onebit decode", decode_kernel, blocks_for(4 * table.pieces.pieces, kThreads / schedule::kLanes), table,
         payloads, weight, out);
}

}  // namespace gradtool::cuda
