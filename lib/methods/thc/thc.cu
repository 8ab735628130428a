// THC on a GPU: bytes and sums equal those of thc.cpp.
#include <cuda_runtime.h>

#include "kernels/cuda/block_sums.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/quads.hpp"
#include "kernels/cuda/warp.hpp"
#include "kernels/float_bits.hpp"
#include "lib/methods/thc/format.hpp"
#include "lib/methods/thc/reducer.hpp"

namespace gradtool {
namespace cuda {
namespace {

constexpr unsigned kThcThreads = 128;  ///< of a block of the grid
constexpr unsigned kThcWarps = kThcThreads / kWarpSize;

// A warp transforms a block of 1024 elements, of which x[k] in lane l is element 32 k + l. Additions are those of
// host::hadamard and host::hadamard_block, in their order.

/// Floats of shared memory that a warp's transform works in; a row of 32 is padded to 33 against bank conflicts.
constexpr int kTransformFloats = 32 * 33 + 4;  // a multiple of 4: the next warp's are 16-byte aligned too

/// x := H32 x, in registers.
__device__ void hadamard_32(float (&x)[32]) {
#pragma unroll
  for (int h = 1; h < 32; h *= 2) {
#pragma unroll
    for (int k = 0; k < 32; ++k) {
      if ((k & h) != 0) continue;
      const float sum = x[k] + x[k + h];
      const float difference = x[k] - x[k + h];
      x[k] = sum;
      x[k + h] = difference;
    }
  }
}

/// host::hadamard_block: a whole block of 1024, transposed on the way.
__device__ void hadamard_1024(float (&x)[32], float* shared) {
  const unsigned lane = threadIdx.x % kWarpSize;
  hadamard_32(x);
  __syncwarp();  // other lanes may still read what `shared` held before
#pragma unroll
  for (int k = 0; k < 32; ++k) shared[33 * k + lane] = x[k];
  __syncwarp();
#pragma unroll
  for (int k = 0; k < 32; ++k) x[k] = shared[33 * lane + k];
  hadamard_32(x);
}

/// host::hadamard: `size`, a power of two below 1024, in natural order. Elements behind it stay as they are.
__device__ void hadamard_short(float (&x)[32], unsigned size, float* shared) {
  const unsigned lane = threadIdx.x % kWarpSize;
  __syncwarp();
#pragma unroll
  for (int k = 0; k < 32; ++k) shared[32 * k + lane] = x[k];
  for (unsigned h = 1; h < size; h *= 2) {
    __syncwarp();
    for (unsigned pair = lane; pair < size / 2; pair += kWarpSize) {
      float* low = shared + pair / h * 2 * h + pair % h;
      const float sum = low[0] + low[h];
      const float difference = low[0] - low[h];
      low[0] = sum;
      low[h] = difference;
    }
  }
  __syncwarp();
#pragma unroll
  for (int k = 0; k < 32; ++k) x[k] = shared[32 * k + lane];
}

/// Transforms a block. Applied twice it gives size * x, so the same function rotates to and fro.
__device__ void rotate(float (&x)[32], unsigned size, float* shared) {
  if (size == format::kThcBlock)
    hadamard_1024(x, shared);
  else
    hadamard_short(x, size, shared);
}

/// signs[w] := 32 random bits, draw w of the key.
__global__ void signs_kernel(format::DrawKey key, std::uint32_t* signs, std::size_t count) {
  for (std::size_t i = thread_in_grid(); 4 * i < count; i += threads_in_grid()) {
    const format::Draws draws = format::draw4(key, i);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (4 * i + k < count) signs[4 * i + k] = draws.bits[k];
    }
  }
}

/// sums[c] := the sum of squares of chunk c of u, a warp for each chunk.
__global__ void squares_kernel(const float* u, std::size_t n, double* sums) {
  alignas(16) __shared__ float shared[kThcWarps][kTileRoom];
  const unsigned lane = lane_in_warp();
  for (std::size_t c = warp_in_grid(); c * format::kSumChunk < n; c += warps_in_grid()) {
    const std::size_t left = n - c * format::kSumChunk;
    const auto count = static_cast<int>(left < format::kSumChunk ? left : format::kSumChunk);
    const double sum =
        chunk_moments(u + c * format::kSumChunk, count, shared[threadIdx.x / kWarpSize], [](float /*x*/) {});
    if (lane == format::kSumLanes) sums[c] = sum;  // this lane has the sum of squares, lane 0 that of elements
  }
}

/// *norm := the root of the sum over all chunks. One block.
__global__ void norm_kernel(const double* sums, std::size_t chunks, float* norm) {
  __shared__ ChunkSumsShared<1> shared;
  double sum[1];
  sums_of_chunks<1>(sums, 0, 0, chunks, shared, sum);
  if (threadIdx.x == 0) *norm = format::one_nan(static_cast<float>(sqrt(sum[0])));
}

/// Word k of the block's 32 words of signs, of which every lane holds one.
__device__ std::uint32_t word_of_lane(std::uint32_t word, int k) {
  return __shfl_sync(kAllLanes, word, k);
}

/// Shared memory of a warp that encodes, besides its transform.
struct alignas(16) EncodeShared {
  Four<std::uint32_t> draws[32];  ///< of 128 elements
  std::uint8_t codes[format::kThcBlock];
};

/// Codes of a block's elements, which lie in `x`, and in x what the codes do not represent, in steps of the scale. The
/// loop runs over shared memory and is not unrolled, because in registers it would take most of them.
template <std::uint32_t Bits>
__device__ void quantise(const format::ThcStepLookup<Bits>& steps, float top, float factor, const format::DrawKey& key,
                         std::size_t first, unsigned size, float* x, EncodeShared& shared) {
  const unsigned lane = lane_in_warp();
  const float middle = 0.5f * top;
  const auto* draws = reinterpret_cast<const std::uint32_t*>(shared.draws);
#pragma unroll 1
  for (unsigned from = 0; from < format::kThcBlock; from += 128) {
    const format::Draws own = format::draw4(key, (first + from) / 4 + lane);
    __syncwarp();
#pragma unroll
    for (int k = 0; k < 4; ++k) shared.draws[lane].value[k] = own.bits[k];
    __syncwarp();
#pragma unroll
    for (unsigned k = 0; k < 4; ++k) {
      const unsigned i = from + 32 * k + lane;
      const float place = x[i] * factor + middle;
      const format::ThcCode code =
          format::thc_encode(steps, format::thc_clamp(place, top), format::uniform(draws[32 * k + lane]));
      x[i] = place - code.value;
      shared.codes[i] = static_cast<std::uint8_t>(i < size ? code.code : 0u);
    }
  }
  __syncwarp();
}

/// Packs a group of 32 codes of a byte each into its words, by one lane.
template <std::uint32_t Bits>
__device__ void write_group(const std::uint8_t* codes, std::uint32_t* words) {
  const auto* fours = reinterpret_cast<const std::uint32_t*>(codes);
  std::uint32_t word[Bits]{};
#pragma unroll
  for (std::uint32_t i = 0; i < 32; ++i) {
    const std::uint32_t code = fours[i / 4] >> (8 * (i % 4)) & 0xffu;
    word[i * Bits / 32] |= code << (i * Bits % 32);
    if (i * Bits % 32 + Bits > 32) word[i * Bits / 32 + 1] |= code >> (32 - i * Bits % 32);
  }
#pragma unroll
  for (std::uint32_t w = 0; w < Bits; ++w) words[w] = word[w];
}

/// Codes and residual of all blocks, a warp for each block at a time.
template <std::uint32_t Bits>
__global__ void __launch_bounds__(kThcThreads, 6)
    encode_kernel(format::ThcShape shape, const __grid_constant__ format::ThcTable<Bits> table, const float* u,
                  const float* norms, const std::uint32_t* signs, format::DrawKey key, std::uint32_t* codes,
                  float* residual) {
  alignas(16) __shared__ float transforms[kThcWarps][kTransformFloats];
  __shared__ EncodeShared encode_shared[kThcWarps];
  __shared__ format::ThcStepLookup<Bits> lookup;
  static_assert(kThcThreads >= format::ThcStepLookup<Bits>::kMost);
  lookup.set(threadIdx.x, table);
  __syncthreads();
  float* transform = transforms[threadIdx.x / kWarpSize];
  EncodeShared& own = encode_shared[threadIdx.x / kWarpSize];
  const unsigned lane = lane_in_warp();
  const double steps = format::thc_steps_per_unit(shape, table, format::thc_agreed_norm(norms, shape.ranks));
  for (std::size_t block = warp_in_grid(); block < shape.blocks(); block += warps_in_grid()) {
    const std::size_t first = format::kThcBlock * block;
    const auto size = static_cast<unsigned>(shape.block_size(block));
    const std::size_t left = shape.n - first;
    const unsigned present = left < size ? static_cast<unsigned>(left) : size;
    const std::size_t group = first / format::kPackGroup;
    const std::uint32_t flips = group + lane < shape.groups() ? signs[group + lane] : 0;
    const format::ThcFactors factors = format::thc_factors(steps, size);
    float x[32];
#pragma unroll
    for (int k = 0; k < 32; ++k) x[k] = 32 * k + lane < present ? u[first + 32 * k + lane] : 0.0f;
#pragma unroll
    for (int k = 0; k < 32; ++k) {
      const std::uint32_t flip = word_of_lane(flips, k) >> lane;
      if (32 * k + lane < present) x[k] = format::thc_turned(x[k], 1.0f, flip);
    }
    rotate(x, size, transform);
    __syncwarp();  // other lanes may still read the transform's memory
#pragma unroll
    for (int k = 0; k < 32; ++k) transform[32 * k + lane] = x[k];
    quantise(lookup, table.top, factors.encode, key, first, size, transform, own);
    if (group + lane < shape.groups()) write_group<Bits>(own.codes + 32 * lane, codes + Bits * (group + lane));
    if (residual == nullptr) continue;
#pragma unroll
    for (int k = 0; k < 32; ++k) x[k] = transform[32 * k + lane];
    rotate(x, size, transform);
#pragma unroll
    for (int k = 0; k < 32; ++k) {
      const std::uint32_t flip = word_of_lane(flips, k) >> lane;
      if (32 * k + lane < present) residual[first + 32 * k + lane] = format::thc_turned(x[k], factors.decode, flip);
    }
  }
}

/// sums := the values of the codes, or (add) sums += them, a thread for each group. Several sums lie in a word; they do
/// not overflow, so one addition of words adds all of them.
template <std::uint32_t Bits, class Sum>
__global__ void add_kernel(format::ThcTable<Bits> table, const std::uint32_t* codes, std::size_t groups, bool add,
                           Sum* sums) {
  constexpr unsigned kInWord = 4 / sizeof(Sum);
  constexpr unsigned kFours = 32 / kInWord / 4;
  __shared__ std::uint32_t values[format::ThcTable<Bits>::kLevels];
#pragma unroll
  for (unsigned q = 0; q < format::ThcTable<Bits>::kLevels; ++q) {
    if (threadIdx.x == q) values[q] = static_cast<std::uint32_t>(table.value[q]);
  }
  __syncthreads();
  for (std::size_t g = thread_in_grid(); g < groups; g += threads_in_grid()) {
    std::uint32_t word[Bits];
#pragma unroll
    for (std::uint32_t w = 0; w < Bits; ++w) word[w] = codes[Bits * g + w];
    auto* to = reinterpret_cast<Four<std::uint32_t>*>(sums + format::kPackGroup * g);
#pragma unroll
    for (unsigned f = 0; f < kFours; ++f) {
      Four<std::uint32_t> four{};
      if (add) four = to[f];
#pragma unroll
      for (unsigned i = 0; i < 4 * kInWord; ++i) {
        const unsigned bit = (4 * kInWord * f + i) * Bits;
        std::uint32_t code = word[bit / 32] >> (bit % 32);
        if (bit % 32 + Bits > 32) code |= word[bit / 32 + 1] << (32 - bit % 32);
        four.value[i / kInWord] += values[code & (format::ThcTable<Bits>::kLevels - 1)]
                                   << (8 * sizeof(Sum) * (i % kInWord));
      }
      to[f] = four;
    }
  }
}

/// Shared memory of a warp that decodes: a block's sums as they are loaded, then the memory of its transform.
template <class Sum>
union alignas(16) DecodeShared {
  Four<std::uint32_t> fours[format::kThcBlock * sizeof(Sum) / 16];
  Sum sums[format::kThcBlock];
  float transform[kTransformFloats];
};

/// Loads the sums of a block of `size` elements, in whole groups, 16 bytes for each lane at a time.
template <class Sum>
__device__ void load_sums(const Sum* sums, unsigned size, DecodeShared<Sum>& shared) {
  constexpr unsigned kInFour = 16 / sizeof(Sum);
  const auto* from = reinterpret_cast<const Four<std::uint32_t>*>(sums);
  __syncwarp();  // other lanes may still read what `shared` held before
#pragma unroll
  for (unsigned i = 0; i < format::kThcBlock / kInFour; i += kWarpSize) {
    if ((i + lane_in_warp()) * kInFour < size) shared.fours[i + lane_in_warp()] = from[i + lane_in_warp()];
  }
  __syncwarp();
}

/// gradient := the mean that the sums of all ranks stand for, a warp for each block at a time.
template <std::uint32_t Bits, class Sum>
__global__ void decode_kernel(format::ThcShape shape, format::ThcTable<Bits> table, const Sum* sums, const float* norms,
                              const std::uint32_t* signs, float* gradient) {
  __shared__ DecodeShared<Sum> all[kThcWarps];
  DecodeShared<Sum>& own = all[threadIdx.x / kWarpSize];
  const unsigned lane = lane_in_warp();
  const double steps = format::thc_steps_per_unit(shape, table, format::thc_agreed_norm(norms, shape.ranks));
  for (std::size_t block = warp_in_grid(); block < shape.blocks(); block += warps_in_grid()) {
    const std::size_t first = format::kThcBlock * block;
    const auto size = static_cast<unsigned>(shape.block_size(block));
    const std::size_t group = first / format::kPackGroup;
    const std::uint32_t flips = group + lane < shape.groups() ? signs[group + lane] : 0;
    const format::ThcMean mean = format::thc_mean(shape, table, steps, size);
    load_sums(sums + first, size, own);
    float x[32];
#pragma unroll
    for (int k = 0; k < 32; ++k)
      x[k] = 32 * k + lane < size ? static_cast<float>(own.sums[32 * k + lane]) : mean.middle;
#pragma unroll
    for (int k = 0; k < 32; ++k) x[k] = (x[k] - mean.middle) * mean.factor;
    rotate(x, size, own.transform);
#pragma unroll
    for (int k = 0; k < 32; ++k) {
      const std::uint32_t flip = word_of_lane(flips, k) >> lane;
      if (first + 32 * k + lane < shape.n) gradient[first + 32 * k + lane] = format::thc_turned(x[k], 1.0f, flip);
    }
  }
}

}  // namespace
}  // namespace cuda

namespace {

using cuda::blocks_for;
using cuda::kThcThreads;
using cuda::kThcWarps;
using cuda::launch;

/// The steps of ThcReducer on a GPU.
struct CudaSteps {
  static void signs(Queue<Space::cuda> queue, const format::DrawKey& key, View<std::uint32_t, Space::cuda> signs) {
    if (signs.empty()) return;
    launch(queue, "thc signs", cuda::signs_kernel, blocks_for(signs.size(), 4 * cuda::kThreads), key, signs.data(),
           signs.size());
  }

  static void norm(Queue<Space::cuda> queue, View<const float, Space::cuda> u, float* norm,
                   View<double, Space::cuda> squares) {
    if (!squares.empty()) {
      launch(queue, "thc squares", cuda::squares_kernel, {blocks_for(squares.size(), kThcWarps), kThcThreads}, u.data(),
             u.size(), squares.data());
    }
    launch(queue, "thc norm", cuda::norm_kernel, 1, squares.data(), squares.size(), norm);
  }

  /// Reads u once.
  template <std::uint32_t Bits>
  static void encode(Queue<Space::cuda> queue, const format::ThcShape& shape, const format::ThcTable<Bits>& table,
                     View<const float, Space::cuda> u, const float* norms, const std::uint32_t* signs,
                     const format::DrawKey& key, View<std::byte, Space::cuda> codes,
                     View<float, Space::cuda> residual) {
    if (shape.n == 0) return;
    expects(table.top < static_cast<float>(format::ThcStepLookup<Bits>::kMost), "thc: a table of more than 64 steps");
    launch(queue, "thc encode", cuda::encode_kernel<Bits>, {blocks_for(shape.blocks(), kThcWarps), kThcThreads}, shape,
           table, u.data(), norms, signs, key, reinterpret_cast<std::uint32_t*>(codes.data()),
           residual.empty() ? nullptr : residual.data());
  }

  template <std::uint32_t Bits, class Sum>
  static void add_codes(Queue<Space::cuda> queue, const format::ThcTable<Bits>& table,
                        View<const std::byte, Space::cuda> codes, std::size_t groups, bool add, Sum* sums) {
    if (groups == 0) return;
    launch(queue, "thc sum", cuda::add_kernel<Bits, Sum>, {blocks_for(groups, kThcThreads), kThcThreads}, table,
           reinterpret_cast<const std::uint32_t*>(codes.data()), groups, add, sums);
  }

  template <std::uint32_t Bits, class Sum>
  static void decode(Queue<Space::cuda> queue, const format::ThcShape& shape, const format::ThcTable<Bits>& table,
                     const Sum* sums, const float* norms, const std::uint32_t* signs,
                     View<float, Space::cuda> gradient) {
    if (shape.n == 0) return;
    launch(queue, "thc decode", cuda::decode_kernel<Bits, Sum>, {blocks_for(shape.blocks(), kThcWarps), kThcThreads},
           shape, table, sums, norms, signs, gradient.data());
  }
};

}  // namespace

extern constinit const GpuFactories thc_gpu{.reducer = make_thc_reducer<Space::cuda, CudaSteps>};

}  // namespace gradtool
