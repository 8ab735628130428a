#include <cuda_runtime.h>

#include "kernels/cuda/block_sums.hpp"
#include "kernels/cuda/code_windows.hpp"
#include "kernels/cuda/launch.hpp"
#include "lib/codecs/gpu_codec.hpp"
#include "lib/core/scratch.hpp"
#include "lib/methods/uint8/format.hpp"

namespace gradtool {
namespace cuda {
namespace {

using format::kUint8Buckets;
using format::Uint8Unit;
static_assert(kUint8Buckets == kThreads, "a thread for each bucket of values");

/// Working memory of an encode, on the device.
struct Uint8Work {
  double* sums;            ///< of the chunks of format::sum_cut, and behind them their sums of squares
  std::uint32_t* largest;  ///< the pattern of the largest magnitude of each chunk
  Uint8Unit* unit;
  unsigned long long* bucket_sums;    ///< of the integers of each bucket's elements, modulo 2^64
  unsigned long long* bucket_counts;  ///< elements of each bucket
};

__global__ void moments_kernel(const float* x, std::size_t n, Uint8Work work) {
  alignas(16) __shared__ float rooms[kChunkWarps][kTileRoom];
  const unsigned lane = lane_in_warp();
  const format::SumCut cut = format::sum_cut(n);
  for (std::size_t c = warp_in_grid(); c < cut.count; c += warps_in_grid()) {
    const std::size_t left = n - c * cut.chunk;
    std::uint32_t largest = 0;
    const double sum = chunk_moments(x + c * cut.chunk, static_cast<int>(left < cut.chunk ? left : cut.chunk),
                                     rooms[threadIdx.x / kWarpSize], [&](float value) {
                                       const std::uint32_t pattern = format::bits_of(value) & 0x7fffffffu;
                                       largest = pattern > largest ? pattern : largest;
                                     });
    largest = __reduce_max_sync(kAllLanes, largest);
    if (lane % format::kSumLanes == 0) work.sums[lane == 0 ? c : cut.count + c] = sum;
    if (lane == 0) work.largest[c] = largest;
  }
}

/// One block of kThreads: how the unit's elements become codes, and empty buckets.
__global__ void unit_kernel(std::size_t n, Uint8Work work) {
  __shared__ ChunkSumsShared<2> room;
  __shared__ std::uint32_t most;
  if (threadIdx.x == 0) most = 0;
  __syncthreads();
  const std::size_t chunks = format::sum_cut(n).count;
  for (std::size_t c = threadIdx.x; c < chunks; c += kThreads) atomicMax(&most, work.largest[c]);
  double sums[2];
  sums_of_chunks<2>(work.sums, chunks, 0, chunks, room, sums);
  if (threadIdx.x == 0) *work.unit = Uint8Unit::of(sums[0], sums[1], most, n);
  work.bucket_sums[threadIdx.x] = 0;
  work.bucket_counts[threadIdx.x] = 0;
}

/// Elements of a block of threads, whose buckets are added up in shared memory.
constexpr std::size_t kCodesPiece = 32 * kThreads;

__global__ void codes_kernel(const float* x, std::size_t n, Uint8Work work, std::uint32_t* words) {
  __shared__ unsigned long long sums[kUint8Buckets];
  __shared__ unsigned counts[kUint8Buckets];
  const Uint8Unit unit = *work.unit;
  sums[threadIdx.x] = 0;
  counts[threadIdx.x] = 0;
  __syncthreads();
  const bool aligned = aligned_to(x, 16);
  const std::size_t quads = (n + 3) / 4;
  for (std::size_t q = thread_in_grid(); q < quads; q += threads_in_grid()) {
    const Four<float> four = four_at(x, 4 * q, n, aligned);
    std::uint32_t word = 0;
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
      if (unit.good == 0 || 4 * q + i >= n) continue;
      const std::uint32_t code = unit.code(four.value[i]);
      word |= code << (8 * i);
      atomicAdd(&sums[code], static_cast<unsigned long long>(std::int64_t{unit.integer(four.value[i])}));
      atomicAdd(&counts[code], 1u);
    }
    words[q] = word;
  }
  __syncthreads();
  if (counts[threadIdx.x] == 0) return;
  atomicAdd(&work.bucket_sums[threadIdx.x], sums[threadIdx.x]);
  atomicAdd(&work.bucket_counts[threadIdx.x], static_cast<unsigned long long>(counts[threadIdx.x]));
}

__global__ void codebook_kernel(Uint8Work work, float* codebook) {
  codebook[threadIdx.x] =
      work.unit->entry(static_cast<std::int64_t>(work.bucket_sums[threadIdx.x]), work.bucket_counts[threadIdx.x]);
}

/// Elements that a warp decodes before it takes the next piece.
constexpr std::size_t kDecodePiece = 1024;

__global__ void decode_kernel(const float* codebook, std::size_t n, float weight, float* out) {
  __shared__ float values[kUint8Buckets];
  values[threadIdx.x] = weight * codebook[threadIdx.x];
  __syncthreads();
  const auto* words = reinterpret_cast<const std::uint32_t*>(codebook + kUint8Buckets);
  const bool aligned = aligned_to(out, 16);
  for (std::size_t first = warp_in_grid() * kDecodePiece; first < n; first += warps_in_grid() * kDecodePiece) {
    const std::size_t count = n - first < kDecodePiece ? n - first : kDecodePiece;
    add_values(count, out + first, aligned, [&](std::size_t at) {
      const std::uint32_t codes = words[(first + at) / 4];
      Four<float> four;
      for (unsigned i = 0; i < 4; ++i) four.value[i] = values[codes >> (8 * i) & 0xffu];
      return four;
    });
  }
}

}  // namespace
}  // namespace cuda

namespace {

class GpuUint8 final : public GpuCodec {
 public:
  explicit GpuUint8(const Params& params) : GpuCodec{"uint8", params} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    return {.payload_bytes = format::uint8_bytes(n), .scratch_bytes = Workspace{n, {}}.bytes};
  }

  void encode(Queue<Space::cuda> queue, ConstFloats gradient, const EncodeContext& /*context*/, Bytes payload,
              Bytes scratch) const override {
    const std::size_t n = gradient.size();
    if (n == 0) return;
    const cuda::Uint8Work work = Workspace{n, Scratch<Space::cuda>{scratch}}.work;
    auto* words = reinterpret_cast<std::uint32_t*>(payload.data() + format::kUint8CodesOffset);
    const cuda::Grid by_chunk{cuda::blocks_for(format::sum_cut(n).count, cuda::kChunkWarps), cuda::kChunkThreads};
    cuda::launch(queue, "uint8 moments", cuda::moments_kernel, by_chunk, gradient.data(), n, work);
    cuda::launch(queue, "uint8 unit", cuda::unit_kernel, 1, n, work);
    cuda::launch(queue, "uint8 codes", cuda::codes_kernel, cuda::blocks_for(n, cuda::kCodesPiece), gradient.data(), n,
                 work, words);
    cuda::launch(queue, "uint8 codebook", cuda::codebook_kernel, 1, work, reinterpret_cast<float*>(payload.data()));
  }

  void decode_add(Queue<Space::cuda> queue, ConstBytes payload, float weight, Floats out,
                  Bytes /*scratch*/) const override {
    expect_length("uint8", payload.size(), format::uint8_bytes(out.size()));
    if (out.empty()) return;
    const unsigned blocks = cuda::blocks_for(out.size(), cuda::kDecodePiece * cuda::kThreads / cuda::kWarpSize);
    cuda::launch(queue, "uint8 decode", cuda::decode_kernel, blocks, reinterpret_cast<const float*>(payload.data()),
                 out.size(), weight, out.data());
  }

 private:
  struct Workspace {
    Workspace(std::size_t n, Scratch<Space::cuda> pieces) {
      const std::size_t chunks = format::sum_cut(n).count;
      work.sums = pieces.take<double>(2 * chunks).data();
      work.largest = pieces.take<std::uint32_t>(chunks).data();
      work.unit = pieces.take<format::Uint8Unit>(1).data();
      work.bucket_sums = pieces.take<unsigned long long>(format::kUint8Buckets).data();
      work.bucket_counts = pieces.take<unsigned long long>(format::kUint8Buckets).data();
      bytes = pieces.bytes();
    }
    cuda::Uint8Work work{};
    std::size_t bytes;
  };
};

std::unique_ptr<Codec<Space::cuda>> make_gpu_uint8(const Params& params, const Layout& /*layout*/) {
  return std::make_unique<GpuUint8>(params);
}

}  // namespace

extern constinit const GpuFactories uint8_gpu{.codec = make_gpu_uint8};

}  // namespace gradtool
