#include "kernels/cuda/signs.hpp"

#include <cuda_runtime.h>

#include "kernels/cuda/device_warp.hpp"
#include "kernels/cuda/grid.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/ordered_sums.hpp"
#include "kernels/cuda/quads.hpp"
#include "kernels/cuda/sign_words.hpp"

namespace gradtool::cuda {
namespace {

/// `sums` null: not wanted.
__global__ void encode_kernel(TensorTable table, const float* gradient, std::uint32_t* words, double* sums) {
  alignas(16) __shared__ float room[kChunkWarps][kTileRoom];
  const unsigned lane = lane_in_warp();
  for (std::size_t p = warp_in_grid(); p < table.pieces; p += warps_in_grid()) {
    const TensorPiece piece = table.piece[p];
    const int count = static_cast<int>(piece.count);
    double sum = 0.0;
    each_tile(gradient + piece.first, count, room[threadIdx.x / schedule::kLanes], [&](int first, const float* tile) {
      write_negatives(tile, first, count, words + piece.word);
      if (sums == nullptr) return;
#pragma unroll 8
      for (unsigned i = lane % law::kSumLanes; i < kTile; i += law::kSumLanes)
        sum += static_cast<double>(law::float_of(law::bits_of(tile[i]) & 0x7fffffffu));
    });
    sum = folded(sum);
    if (sums != nullptr && lane == 0) sums[p] = sum;
  }
}

__global__ void means_kernel(TensorTable table, const double* sums, float* means) {
  __shared__ SumRoom<1> room;
  for (std::size_t t = blockIdx.x; t < table.tensors; t += gridDim.x) {
    const TensorRange range = table.tensor[t];
    double sum[1];
    sums_of_chunks<1>(sums, 0, range.first, range.last, room, sum);
    if (threadIdx.x == 0) means[t] = law::stored_mean(sum[0], range.elements);
  }
}

__global__ void decode_kernel(TensorTable table, const __grid_constant__ Payloads payloads, bool scaled, float weight,
                              float* out) {
  const std::size_t means = scaled ? table.tensors : 0;
  each_share(table, [&](std::size_t first, int count, const TensorPiece& piece, int offset) {
    update_quads(out + first, count, [&](int at, Four<float>& sum) {
      for (unsigned i = 0; i < payloads.count; ++i) {
        const auto* mean = reinterpret_cast<const float*>(payloads.at[i]);
        const auto* words = reinterpret_cast<const std::uint32_t*>(mean + means) + piece.word + offset / 32;
        const unsigned bits = four_codes<1>(words, at, count);
        const std::uint32_t pattern = law::bits_of(scaled ? weight * mean[piece.tensor] : weight);
#pragma unroll
        for (int k = 0; k < 4; ++k) sum.value[k] += law::float_of(pattern ^ (bits >> k & 1u) << 31);
      }
    });
  });
}

}  // namespace

void signs_encode(Queue<Space::cuda> queue, const TensorTable& table, const float* gradient, std::uint32_t* words,
                  float* means, std::byte* scratch) {
  auto* sums = means != nullptr ? reinterpret_cast<double*>(scratch) : nullptr;
  if (table.pieces > 0) {
    const Grid grid{blocks_for(table.pieces, kChunkWarps), kChunkThreads};
    launch(queue, "signs encode", encode_kernel, grid, table, gradient, words, sums);
  }
  if (means != nullptr && table.tensors > 0)
    launch(queue, "means of tensors", means_kernel, blocks_for(table.tensors, 1), table, sums, means);
}

void signs_decode_add(Queue<Space::cuda> queue, const TensorTable& table, const Payloads& payloads, bool scaled,
                      float weight, float* out) {
  if (table.pieces == 0) return;
  launch(queue, "signs decode", decode_kernel, blocks_for(4 * table.pieces, kThreads / schedule::kLanes), table,
         payloads, scaled, weight, out);
}

}  // namespace gradtool::cuda
