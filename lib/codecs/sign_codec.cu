#include "lib/codecs/sign_codec.hpp"

#include <cuda_runtime.h>

#include "kernels/bitpack.hpp"
#include "kernels/cuda/block_sums.hpp"
#include "kernels/cuda/launch.hpp"
#include "lib/codecs/gpu_tensor_codec.hpp"

namespace gradtool {
namespace cuda {
namespace {

/// Writes the signs, and, unless `sums` is null, the sum of magnitudes of each piece.
__global__ void encode_kernel(TensorTable table, const float* gradient, std::uint32_t* words, double* sums) {
  alignas(16) __shared__ float rooms[kChunkWarps][kTileRoom];
  const unsigned lane = lane_in_warp();
  for (std::size_t p = warp_in_grid(); p < table.pieces; p += warps_in_grid()) {
    const TensorPiece piece = table.piece[p];
    const int count = static_cast<int>(piece.count);
    double sum = 0.0;
    each_tile(gradient + piece.first, count, rooms[threadIdx.x / kWarpSize], [&](int first, const float* tile) {
      write_negatives(tile, first, count, words + piece.word);
      if (sums == nullptr) return;
#pragma unroll 8
      for (unsigned i = lane % format::kSumLanes; i < kTile; i += format::kSumLanes)
        sum += static_cast<double>(format::float_of(format::bits_of(tile[i]) & 0x7fffffffu));
    });
    sum = folded(sum);
    if (sums != nullptr && lane == 0) sums[p] = sum;
  }
}

__global__ void means_kernel(TensorTable table, const double* sums, float* means) {
  __shared__ ChunkSumsShared<1> room;
  for (std::size_t t = blockIdx.x; t < table.tensors; t += gridDim.x) {
    const TensorRange range = table.tensor[t];
    double sum[1];
    sums_of_chunks<1>(sums, 0, range.first, range.last, room, sum);
    if (threadIdx.x == 0) means[t] = format::stored_mean(sum[0], range.elements);
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
        const std::uint32_t pattern = format::bits_of(scaled ? weight * mean[piece.tensor] : weight);
#pragma unroll
        for (int k = 0; k < 4; ++k) sum.value[k] += format::float_of(pattern ^ (bits >> k & 1u) << 31);
      }
    });
  });
}

}  // namespace
}  // namespace cuda

namespace {

class GpuSignCodec final : public GpuTensorCodec {
 public:
  GpuSignCodec(std::string_view name, const Params& params, const Layout& layout, bool scaled)
      : GpuTensorCodec{name, params, layout, [](std::size_t count) { return format::packed_words(count, 1); }},
        scaled_{scaled} {}

  /// The scratch holds the sum of magnitudes of each piece.
  [[nodiscard]] Footprint plan(std::size_t n) const override {
    make_tables(n);
    return {.payload_bytes = payload_bytes(), .scratch_bytes = scaled_ ? sizeof(double) * pieces().pieces().size() : 0};
  }

  /// Reads the gradient once.
  void encode(Queue<Space::cuda> queue, ConstFloats gradient, const EncodeContext& /*context*/, Bytes payload,
              Bytes scratch) const override {
    const cuda::TensorTable tensors = table();
    auto* words = reinterpret_cast<std::uint32_t*>(payload.data() + 4 * means());
    auto* sums = scaled_ ? reinterpret_cast<double*>(scratch.data()) : nullptr;
    if (tensors.pieces > 0) {
      const cuda::Grid grid{cuda::blocks_for(tensors.pieces, cuda::kChunkWarps), cuda::kChunkThreads};
      cuda::launch(queue, "signs encode", cuda::encode_kernel, grid, tensors, gradient.data(), words, sums);
    }
    if (means() > 0) {
      cuda::launch(queue, "means of tensors", cuda::means_kernel, cuda::blocks_for(tensors.tensors, 1), tensors, sums,
                   reinterpret_cast<float*>(payload.data()));
    }
  }

 private:
  [[nodiscard]] std::size_t means() const { return scaled_ ? pieces().tensors().size() : 0; }
  [[nodiscard]] std::size_t payload_bytes() const override { return 4 * (means() + pieces().words()); }
  void decode_all(Queue<Space::cuda> queue, const cuda::Payloads& batch, float weight, float* out) const override {
    cuda::launch(queue, "signs decode", cuda::decode_kernel, cuda::grid_of_shares(table()), table(), batch, scaled_,
                 weight, out);
  }

  bool scaled_;
};

}  // namespace

std::unique_ptr<Codec<Space::cuda>> make_gpu_sign_codec(std::string_view name, const Params& params,
                                                        const Layout& layout, bool scaled) {
  return std::make_unique<GpuSignCodec>(name, params, layout, scaled);
}

}  // namespace gradtool
