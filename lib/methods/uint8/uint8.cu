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
  // The first again, where a thread has no more, so that no load waits for a comparison.
  std::uint32_t largest[format::kMostChunks / kThreads], own = 0;
  for (std::size_t i = 0; std::uint32_t & each : largest) {
    const std::size_t c = threadIdx.x + i++ * kThreads;
    each = work.largest[c < chunks ? c : 0];
  }
  for (const std::uint32_t each : largest) own = each > own ? each : own;
  atomicMax(&most, own);
  double sums[2];
  sums_of_chunks<2>(work.sums, chunks, 0, chunks, room, sums);
  if (threadIdx.x == 0) *work.unit = Uint8Unit::of(sums[0], sums[1], most, n);
  work.bucket_sums[threadIdx.x] = 0;
  work.bucket_counts[threadIdx.x] = 0;
}

/// Elements that a block adds up in shared memory before it takes the next piece.
constexpr std::size_t kCodesPiece = 32 * kThreads;
constexpr unsigned kCodesWarps = kThreads / kWarpSize;

/// For each bucket, the sum of at most 1024 integers below 2^30 in magnitude, and how many they are. These are words of
/// their own, because only atomic additions of 32 bits to shared memory are single instructions, and two, because those
/// are what a GPU waits for. An integer is upper 2^22 + lower, with upper from -2^8 to 2^8 - 1 and lower from 0 to
/// 2^22 - 1. Lower parts add up to less than 2^32. Upper parts, each with 2^8 more so that it is not negative, add up
/// to less than 2^19; bits 20 and up count them.
struct BucketSums {
  static constexpr unsigned kLowerBits = 22, kCountBit = 20, kMost = 1024;
  std::uint32_t lower[kUint8Buckets], upper[kUint8Buckets];

  __device__ void add(std::uint32_t bucket, std::int32_t integer) {
    const auto low = static_cast<std::uint32_t>(integer) & ((1u << kLowerBits) - 1u);
    if (low != 0) atomicAdd(&lower[bucket], low);  // zeros, of which there may be many, meet in one bucket once
    atomicAdd(&upper[bucket], (1u << kCountBit) + static_cast<std::uint32_t>((integer >> kLowerBits) + (1 << 8)));
  }
  __device__ std::uint32_t count(std::uint32_t bucket) const { return upper[bucket] >> kCountBit; }
  __device__ std::int64_t sum(std::uint32_t bucket) const {
    const std::int64_t uppers =
        std::int64_t{upper[bucket] & ((1u << kCountBit) - 1u)} - (std::int64_t{count(bucket)} << 8);
    return uppers * (1 << kLowerBits) + lower[bucket];
  }
  __device__ void clear(std::uint32_t bucket) { lower[bucket] = upper[bucket] = 0; }
};
static_assert(kCodesPiece / kCodesWarps <= BucketSums::kMost);

__global__ void codes_kernel(const float* x, std::size_t n, Uint8Work work, std::uint32_t* words) {
  __shared__ BucketSums of_warps[kCodesWarps];
  const Uint8Unit unit = *work.unit;
  for (BucketSums& buckets : of_warps) buckets.clear(threadIdx.x);
  __syncthreads();
  BucketSums& own = of_warps[threadIdx.x / kWarpSize];
  const bool aligned = aligned_to(x, 16);
  std::int64_t sum = 0;
  std::uint64_t count = 0;
  for (std::size_t first = blockIdx.x * kCodesPiece; first < n; first += gridDim.x * kCodesPiece) {
    const auto left = static_cast<std::uint32_t>(n - first < kCodesPiece ? n - first : kCodesPiece);
    const std::uint32_t known = unit.good == 0 ? 0 : left;
    for (std::uint32_t at = 4 * threadIdx.x; at < left; at += 4 * kThreads) {
      const Four<float> four = four_at(x + first, at, left, aligned);
      std::uint32_t word = 0;
      const auto add = [&](unsigned i) {
        const std::uint32_t code = unit.code(four.value[i]);
        word |= code << (8 * i);
        own.add(code, unit.integer(four.value[i]));
      };
      if (at + 4 <= known) {
#pragma unroll
        for (unsigned i = 0; i < 4; ++i) add(i);
      } else {
        for (unsigned i = 0; i < 4 && at + i < known; ++i) add(i);
      }
      words[(first + at) / 4] = word;
    }
    __syncthreads();
    for (BucketSums& buckets : of_warps) {
      sum += buckets.sum(threadIdx.x);
      count += buckets.count(threadIdx.x);
      buckets.clear(threadIdx.x);
    }
    __syncthreads();
  }
  if (count == 0) return;
  atomicAdd(&work.bucket_sums[threadIdx.x], static_cast<unsigned long long>(sum));
  atomicAdd(&work.bucket_counts[threadIdx.x], static_cast<unsigned long long>(count));
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
    return {.payload_bytes = format::uint8_bytes(n), .scratch_bytes = planned<Workspace>(n)};
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
    }
    cuda::Uint8Work work{};
  };
};

}  // namespace

extern constinit const GpuFactories uint8_gpu{.codec = make_method_codec<Space::cuda, GpuUint8>};

}  // namespace gradtool
