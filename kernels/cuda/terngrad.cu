#include "kernels/cuda/terngrad.hpp"

#include <cuda_runtime.h>

#include "kernels/cuda/device_warp.hpp"
#include "kernels/cuda/grid.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/ordered_sums.hpp"
#include "kernels/cuda/quads.hpp"
#include "kernels/law/ternary.hpp"

namespace gradtool::cuda {
namespace {

using law::Ternary;

/// Of all pieces: their sums, behind them their sums of squares, and the patterns of their largest magnitudes.
struct Moments {
  double* sums;
  std::uint32_t* largest;
};

__global__ void moments_kernel(TensorTable table, const float* gradient, Moments moments) {
  alignas(16) __shared__ float room[kChunkWarps][kTileRoom];
  const unsigned lane = lane_in_warp();
  for (std::size_t p = warp_in_grid(); p < table.pieces; p += warps_in_grid()) {
    const TensorPiece piece = table.piece[p];
    std::uint32_t largest = 0;
    const double sum = chunk_moments(gradient + piece.first, static_cast<int>(piece.count),
                                     room[threadIdx.x / schedule::kLanes], [&](float x) {
                                       const std::uint32_t pattern = law::bits_of(x) & 0x7fffffffu;
                                       largest = pattern > largest ? pattern : largest;
                                     });
    largest = __reduce_max_sync(kAllLanes, largest);
    if (lane % law::kSumLanes == 0) moments.sums[lane == 0 ? p : table.pieces + p] = sum;
    if (lane == 0) moments.largest[p] = largest;
  }
}

__global__ void scales_kernel(TensorTable table, double clip, Moments moments, float* scales) {
  __shared__ SumRoom<2> room;
  __shared__ std::uint32_t most[kThreads / schedule::kLanes];
  for (std::size_t t = blockIdx.x; t < table.tensors; t += gridDim.x) {
    const TensorRange range = table.tensor[t];
    std::uint32_t largest = 0;
    for (std::size_t p = range.first + threadIdx.x; p < range.last; p += kThreads)
      largest = moments.largest[p] > largest ? moments.largest[p] : largest;
    largest = __reduce_max_sync(kAllLanes, largest);
    if (lane_in_warp() == 0) most[threadIdx.x / schedule::kLanes] = largest;
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

/// Codes in shared memory, a byte each.
union CodeRoom {
  std::uint8_t code[kShare];
  std::uint32_t four[kShare / 4];
  Four<std::uint32_t> sixteen[kShare / 16];
};

/// 16 codes of 2 bits, or 20 in four bytes of five.
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

/// Quads are those that share a Philox counter: four neighbours from a multiple of four in the whole gradient.
template <bool Base3>
__global__ void encode_kernel(TensorTable table, const float* gradient, bool aligned, law::DrawKey key,
                              const float* scales, std::uint32_t* words) {
  constexpr int kCodes = Base3 ? 20 : 16;  // in a word
  __shared__ CodeRoom rooms[kChunkWarps];
  CodeRoom& room = rooms[threadIdx.x / schedule::kLanes];
  const int lane = static_cast<int>(lane_in_warp());
  each_share(table, [&](std::size_t first, int count, const TensorPiece& piece, int offset) {
    const float scale = scales[piece.tensor];
    const int lead = static_cast<int>(first % 4);
    const int own = (count + kCodes - 1) / kCodes;
    __syncwarp();  // the room has been read
#pragma unroll 4
    for (int at = 4 * lane - lead; at < kCodes * own; at += 128) {
      const Four<float> quad = load_quad(gradient + first, at, count, aligned);
      const law::Draws draws =
          law::draw4(key, (first - static_cast<std::size_t>(lead) + static_cast<std::size_t>(at + lead)) / 4);
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

/// Codes at..at+3 of `count`, two bits each. Of a byte above 242 the trits are anything.
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
        const unsigned codes = four_trits<Base3>(words + offset / (Base3 ? 20 : 16), at, count);
        const float scale = scales[piece.tensor];
#pragma unroll
        for (int k = 0; k < 4; ++k) sum.value[k] += weight * (Ternary::value(codes >> (2 * k) & 3u) * scale);
      }
    });
  });
}

}  // namespace

void terngrad_encode(Queue<Space::cuda> queue, const TensorTable& table, const TerngradFormat& format,
                     const float* gradient, const law::DrawKey& key, float* scales, std::uint32_t* words,
                     std::byte* scratch) {
  if (table.tensors == 0) return;
  auto* sums = reinterpret_cast<double*>(scratch);
  const Moments moments{sums, reinterpret_cast<std::uint32_t*>(sums + 2 * table.pieces)};
  const Grid by_piece{blocks_for(table.pieces, kChunkWarps), kChunkThreads};
  if (table.pieces > 0) launch(queue, "terngrad moments", moments_kernel, by_piece, table, gradient, moments);
  launch(queue, "terngrad scales", scales_kernel, blocks_for(table.tensors, 1), table, format.clip, moments, scales);
  if (table.pieces == 0) return;
  const Grid by_share{blocks_for(4 * table.pieces, kChunkWarps), kChunkThreads};
  launch(queue, "terngrad encode", format.base3 ? encode_kernel<true> : encode_kernel<false>, by_share, table, gradient,
         aligned_to(gradient, 16), key, scales, words);
}

void terngrad_decode_add(Queue<Space::cuda> queue, const TensorTable& table, const TerngradFormat& format,
                         const Payloads& payloads, float weight, float* out) {
  if (table.pieces == 0) return;
  launch(queue, "terngrad decode", format.base3 ? decode_kernel<true> : decode_kernel<false>,
         blocks_for(4 * table.pieces, kThreads / schedule::kLanes), table, payloads, weight, out);
}

}  // namespace gradtool::cuda
