#include <cuda_runtime.h>

#include "kernels/cuda/block_sums.hpp"
#include "kernels/cuda/launch.hpp"
#include "lib/codecs/gpu_tensor_codec.hpp"
#include "lib/core/scratch.hpp"
#include "lib/methods/terngrad/format.hpp"

namespace gradtool {
namespace cuda {
namespace {

using format::Ternary;

/// The sums of each piece, from which the scale of a tensor follows.
struct Moments {
  double* sums;            ///< the sums of all pieces, and behind them their sums of squares
  std::uint32_t* largest;  ///< the pattern of the largest magnitude of each piece
};

__global__ void moments_kernel(TensorTable table, const float* gradient, Moments moments) {
  alignas(16) __shared__ float rooms[kChunkWarps][kTileRoom];
  const unsigned lane = lane_in_warp();
  for (std::size_t p = warp_in_grid(); p < table.pieces; p += warps_in_grid()) {
    const TensorPiece piece = table.piece[p];
    std::uint32_t largest = 0;
    const double sum = chunk_moments(gradient + piece.first, static_cast<int>(piece.count),
                                     rooms[threadIdx.x / kWarpSize], [&](float x) {
                                       const std::uint32_t pattern = format::bits_of(x) & 0x7fffffffu;
                                       largest = pattern > largest ? pattern : largest;
                                     });
    largest = __reduce_max_sync(kAllLanes, largest);
    if (lane % format::kSumLanes == 0) moments.sums[lane == 0 ? p : table.pieces + p] = sum;
    if (lane == 0) moments.largest[p] = largest;
  }
}

__global__ void scales_kernel(TensorTable table, double clip, Moments moments, float* scales) {
  __shared__ ChunkSumsShared<2> room;
  __shared__ std::uint32_t most[kThreads / kWarpSize];
  for (std::size_t t = blockIdx.x; t < table.tensors; t += gridDim.x) {
    const TensorRange range = table.tensor[t];
    std::uint32_t largest = 0;
    for (std::size_t p = range.first + threadIdx.x; p < range.last; p += kThreads)
      largest = moments.largest[p] > largest ? moments.largest[p] : largest;
    largest = __reduce_max_sync(kAllLanes, largest);
    if (lane_in_warp() == 0) most[threadIdx.x / kWarpSize] = largest;
    double sums[2]{};
    if (clip != 0.0) {
      sums_of_chunks<2>(moments.sums, table.pieces, range.first, range.last, room, sums);
    } else {
      __syncthreads();
    }
    if (threadIdx.x == 0) {
      for (const std::uint32_t other : most) largest = other > largest ? other : largest;
      scales[t] = Ternary::scale(sums[0], sums[1], largest, range.elements, clip);
    }
    __syncthreads();
  }
}

/// The codes of a share in shared memory, one in a byte.
union CodeRoom {
  std::uint8_t code[kShare];
  std::uint32_t four[kShare / 4];
  Four<std::uint32_t> sixteen[kShare / 16];
};

/// Word `word` of the packed codes.
template <bool Base3>
__device__ std::uint32_t packed(const CodeRoom& room, int word) {
  std::uint32_t out = 0;
  if constexpr (Base3) {
#pragma unroll
    for (int b = 3; b >= 0; --b) {
      const std::uint8_t* c = room.code + 20 * word + 5 * b;
      out = out << 8 | (c[0] + 3u * c[1] + 9u * c[2] + 27u * c[3] + 81u * c[4]);
    }
  } else {
    const Four<std::uint32_t> codes = room.sixteen[word];
#pragma unroll
    for (int q = 3; q >= 0; --q) {
      const std::uint32_t pairs = codes.value[q] | codes.value[q] >> 6;
      out = out << 8 | ((pairs | pairs >> 12) & 0xffu);
    }
  }
  return out;
}

/// A lane encodes the four elements that share a Philox counter: their first index in the gradient is a multiple of 4.
template <bool Base3>
__global__ void encode_kernel(TensorTable table, const float* gradient, bool aligned, format::DrawKey key,
                              const float* scales, std::uint32_t* words) {
  constexpr int kCodes = static_cast<int>(Ternary::codes_in_word(Base3));
  __shared__ CodeRoom rooms[kChunkWarps];
  CodeRoom& room = rooms[threadIdx.x / kWarpSize];
  const int lane = static_cast<int>(lane_in_warp());
  each_share(table, [&](std::size_t first, int count, const TensorPiece& piece, int offset) {
    const float scale = scales[piece.tensor];
    const int lead = static_cast<int>(first % 4);
    const int own = (count + kCodes - 1) / kCodes;
    __syncwarp();  // All lanes have read the room.
#pragma unroll 4
    for (int at = 4 * lane - lead; at < kCodes * own; at += 128) {
      const Four<float> quad = load_quad(gradient + first, at, count, aligned);
      const format::Draws draws =
          format::draw4(key, (first - static_cast<std::size_t>(lead) + static_cast<std::size_t>(at + lead)) / 4);
      std::uint32_t four = 0;
#pragma unroll
      for (int k = 0; k < 4; ++k) four |= Ternary::code(quad.value[k], scale, draws.bits[k]) << (8 * k);
      if (lead == 0) {
        room.four[at / 4] = four;
      } else {
        for (int k = 0; k < 4; ++k) {
          if (at + k >= 0 && at + k < kCodes * own) room.code[at + k] = static_cast<std::uint8_t>(four >> (8 * k));
        }
      }
    }
    __syncwarp();
    for (int w = lane; w < own; w += 32) words[piece.word + offset / kCodes + w] = packed<Base3>(room, w);
  });
}

/// Codes at..at+3 of `count`, two bits each. The codes of a byte above 242, which no encoder writes, are arbitrary.
template <bool Base3>
__device__ unsigned four_trits(const std::uint32_t* words, int at, int count) {
  if constexpr (!Base3) {
    return four_codes<2>(words, at, count);
  } else {
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(words);
    const int from = at < 0 ? 0 : at;
    const int byte = from / 5;
    std::uint32_t trits = bytes[byte];
    if (from % 5 > 1 && 5 * (byte + 1) < count) trits += 243u * bytes[byte + 1];
    for (int i = 0; i < from % 5; ++i) trits /= 3;
    unsigned four = 0;
    for (int k = from - at; k < 4; ++k, trits /= 3) four |= trits % 3 << (2 * k);
    return four;
  }
}

template <bool Base3>
__global__ void decode_kernel(TensorTable table, const __grid_constant__ Payloads payloads, float weight, float* out) {
  each_share(table, [&](std::size_t first, int count, const TensorPiece& piece, int offset) {
    update_quads(out + first, count, [&](int at, Four<float>& sum) {
      for (unsigned i = 0; i < payloads.count; ++i) {
        const auto* scales = reinterpret_cast<const float*>(payloads.at[i]);
        const auto* words = reinterpret_cast<const std::uint32_t*>(scales + table.tensors) + piece.word;
        const unsigned codes =
            four_trits<Base3>(words + offset / static_cast<int>(Ternary::codes_in_word(Base3)), at, count);
        const float scale = scales[piece.tensor];
#pragma unroll
        for (int k = 0; k < 4; ++k) sum.value[k] += weight * (Ternary::value(codes >> (2 * k) & 3u) * scale);
      }
    });
  });
}

}  // namespace
}  // namespace cuda

namespace {

class GpuTernGrad final : public GpuTensorCodec {
 public:
  GpuTernGrad(const Params& params, const Layout& layout)
      : GpuTensorCodec{"terngrad", params, layout,
                       [&](std::size_t count) { return format::Ternary::words(count, params.is("pack", "base3")); }},
        clip_{params.is("clip", "off") ? 0.0 : params.real("clip")},
        base3_{params.is("pack", "base3")} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    make_tables(n);
    return {.payload_bytes = payload_bytes(), .scratch_bytes = planned<Workspace>(*this)};
  }

  /// Reads the gradient twice, because the scale is that of a whole tensor.
  void encode(Queue<Space::cuda> queue, ConstFloats gradient, const EncodeContext& context, Bytes payload,
              Bytes scratch) const override {
    const cuda::TensorTable tensors = table();
    if (tensors.tensors == 0) return;
    const Workspace work{*this, Scratch<Space::cuda>{scratch}};
    const float* x = gradient.data();
    auto* scales = reinterpret_cast<float*>(payload.data());
    auto* words = reinterpret_cast<std::uint32_t*>(scales + tensors.tensors);
    const cuda::Grid by_piece{cuda::blocks_for(tensors.pieces, cuda::kChunkWarps), cuda::kChunkThreads};
    if (tensors.pieces > 0)
      cuda::launch(queue, "terngrad moments", cuda::moments_kernel, by_piece, tensors, x, work.moments);
    cuda::launch(queue, "terngrad scales", cuda::scales_kernel, cuda::blocks_for(tensors.tensors, 1), tensors, clip_,
                 work.moments, scales);
    if (tensors.pieces == 0) return;
    cuda::launch(queue, "terngrad encode", base3_ ? cuda::encode_kernel<true> : cuda::encode_kernel<false>,
                 cuda::grid_of_shares(tensors, cuda::kChunkThreads), tensors, x, cuda::aligned_to(x, 16), context.key,
                 scales, words);
  }

 private:
  struct Workspace {
    Workspace(const GpuTernGrad& codec, Scratch<Space::cuda> scratch) {
      const std::size_t count = codec.pieces().pieces().size();
      moments.sums = scratch.take<double>(2 * count).data();
      moments.largest = scratch.take<std::uint32_t>(count).data();
    }
    cuda::Moments moments{};
  };

  [[nodiscard]] std::size_t payload_bytes() const override {
    return 4 * (pieces().tensors().size() + pieces().words());
  }
  void decode_all(Queue<Space::cuda> queue, const cuda::Payloads& batch, float weight, float* out) const override {
    cuda::launch(queue, "terngrad decode", base3_ ? cuda::decode_kernel<true> : cuda::decode_kernel<false>,
                 cuda::grid_of_shares(table()), table(), batch, weight, out);
  }

  double clip_;  ///< 0: off
  bool base3_;
};

}  // namespace

extern constinit const GpuFactories terngrad_gpu{.codec = make_method_codec<Space::cuda, GpuTernGrad>};

}  // namespace gradtool
