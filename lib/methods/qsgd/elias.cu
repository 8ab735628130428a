#include <cuda_runtime.h>

#include "kernels/cuda/block_kernels.hpp"
#include "kernels/cuda/block_ops.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/tile_scan.hpp"
#include "lib/codecs/gpu_codec.hpp"
#include "lib/core/scratch.hpp"
#include "lib/methods/qsgd/format.hpp"
#include "lib/methods/qsgd/qsgd.hpp"

/// qsgd with code=elias on the GPU: the payloads and sums of lib/methods/qsgd/elias.cpp. A block of threads writes the
/// stream of a part into a slot, because nobody knows its length before; the slots are then moved together. A warp
/// reads a stream.
namespace gradtool {
namespace cuda {
namespace {

/// norms := what is stored for each bucket.
template <std::uint32_t Bits>
__global__ void norms_kernel(format::QsgdStreams layout, format::QsgdFormat<Bits> block_format, const float* gradient,
                             bool aligned, float* norms) {
  for (std::size_t b = warp_in_grid(); b < layout.buckets(); b += warps_in_grid()) {
    const std::size_t first = b * layout.bucket;
    const std::size_t count = layout.n - first < layout.bucket ? layout.n - first : layout.bucket;
    const float norm = block_measure(block_format, gradient + first, count, aligned);
    if (lane_in_warp() == 0) norms[b] = format::Qsgd::stored_norm(norm);
  }
}

/// Neighbours that a thread encodes. They are of one bucket, as buckets are multiples of 32 elements.
constexpr std::uint32_t kNeighbours = 8;
/// Elements that a block of threads encodes at a time.
constexpr std::uint32_t kChunk = kNeighbours * kThreads;
/// Bits of an element that follows its predecessor at once: gap 1, sign, level 127.
constexpr std::uint32_t kMostBits = 13;
/// Words that the stream of a chunk may fill, the word that the chunk before began included.
constexpr std::uint32_t kChunkWords = (kChunk * kMostBits + format::kEliasLongest + 31) / 32 + 3;

/// The largest `own` of the threads before this one, 0 for the first thread; `all` becomes that of all threads. Every
/// thread of the block calls it.
__device__ std::uint32_t largest_before(std::uint32_t own, std::uint32_t& all) {
  __shared__ std::uint32_t warps[kBlockWarpCount];
  const unsigned lane = lane_in_warp(), warp = threadIdx.x / kWarpSize;
  std::uint32_t through = own;
#pragma unroll
  for (unsigned distance = 1; distance < kWarpSize; distance *= 2) {
    const std::uint32_t below = __shfl_up_sync(kAllLanes, through, distance);
    if (lane >= distance) through = max(through, below);
  }
  std::uint32_t before = __shfl_up_sync(kAllLanes, through, 1);
  if (lane == 0) before = 0;
  if (lane == kWarpSize - 1) warps[warp] = through;
  __syncthreads();
  all = 0;
  for (unsigned w = 0; w < kBlockWarpCount; ++w) {
    if (w < warp) before = max(before, warps[w]);
    all = max(all, warps[w]);
  }
  __syncthreads();
  return before;
}

/// Gap, sign and level behind each other.
__device__ format::EliasCode sent_code(std::uint32_t gap, std::uint32_t sign, std::uint32_t level) {
  format::EliasCode code = format::elias_delta(gap);
  const format::EliasCode high = format::elias_delta(level);
  code.bits |= std::uint64_t{sign} << code.count | high.bits << (code.count + 1);
  code.count += 1 + high.count;
  return code;
}

/// Neighbouring elements of a part that one thread encodes.
template <std::uint32_t Bits>
struct Neighbours {
  static constexpr std::uint32_t kLevels = (1u << (Bits - 1)) - 1u;
  std::uint32_t codes[kNeighbours] = {};
  std::uint32_t first = 0;  ///< index in the part of the first of them
  std::uint32_t last = 0;   ///< one more than the index of the last whose level is not zero; 0 where all are

  /// Quantises elements from `at` on of the part's `count` elements, which start at `gradient`. The part starts `front`
  /// elements into the whole gradient.
  __device__ void quantise(const float* gradient, std::size_t front, std::size_t at, std::size_t count, bool aligned,
                           const format::DrawKey& key, float factor) {
    first = static_cast<std::uint32_t>(at);
    for (std::uint32_t group = 0; group < kNeighbours; group += 4) {
      const auto x = four_at(gradient, at + group, count, aligned);
      const format::Draws draws = format::draw4(key, (front + at + group) / 4);
      for (std::uint32_t i = 0; i < 4; ++i) {
        if (at + group + i >= count) continue;
        codes[group + i] = format::QsgdFormat<Bits>::Element::encode(factor, x.value[i], draws.bits[i]);
        if ((codes[group + i] & kLevels) != 0) last = first + group + i + 1;
      }
    }
  }
  /// Calls visit(gap, sign, level) for those whose level is not zero; `from` is one more than the index of the last
  /// such element before them.
  template <class Visit>
  __device__ void each(std::uint32_t from, const Visit& visit) const {
    for (std::uint32_t i = 0; i < kNeighbours; ++i) {
      const std::uint32_t level = codes[i] & kLevels;
      if (level == 0) continue;
      visit(first + i + 1 - from, codes[i] >> (Bits - 1), level);
      from = first + i + 1;
    }
  }
};

/// Writes the stream of each part to its slot, its length in bits to `bits` and in bytes to `bytes`.
template <std::uint32_t Bits>
__global__ void encode_kernel(format::QsgdStreams layout, const float* gradient, bool aligned, format::DrawKey key,
                              const float* norms, std::byte* slots, std::uint32_t* bits, std::uint64_t* bytes) {
  __shared__ std::uint32_t chunk_words[kChunkWords];
  if (thread_in_grid() == 0) bytes[layout.parts()] = 0;
  for (std::size_t part = blockIdx.x; part < layout.parts(); part += gridDim.x) {
    const std::size_t first = part * layout.part();
    const std::size_t count = layout.n - first < layout.part() ? layout.n - first : layout.part();
    auto* stream = reinterpret_cast<std::uint32_t*>(slots + part * layout.slot_bytes());
    std::uint32_t carry = 0;     // the word that the chunk before began
    std::uint32_t written = 0;   // bits of the stream so far
    std::uint32_t previous = 0;  // one more than the index of the last element whose level was not zero
    for (std::size_t at = 0; at < count; at += kChunk) {
      for (std::uint32_t i = threadIdx.x; i < kChunkWords; i += kThreads) chunk_words[i] = i == 0 ? carry : 0;
      const std::size_t mine = at + kNeighbours * threadIdx.x;
      Neighbours<Bits> some;
      if (mine < count) {
        const float factor = format::Qsgd::with_bits(Bits).encode_factor(norms[(first + mine) / layout.bucket]);
        some.quantise(gradient + first, first, mine, count, aligned, key, factor);
      }
      std::uint32_t last_of_all = 0, bits_of_all = 0, own = 0;
      const std::uint32_t before = max(largest_before(some.last, last_of_all), previous);
      some.each(before, [&](std::uint32_t gap, std::uint32_t, std::uint32_t level) {
        own += format::elias_delta_bits(gap) + 1 + format::elias_delta_bits(level);
      });
      std::uint32_t bit = block_sum_through(own, bits_of_all) - own + written % 32;
      some.each(before, [&](std::uint32_t gap, std::uint32_t sign, std::uint32_t level) {
        const format::EliasCode code = sent_code(gap, sign, level);
        put_code(chunk_words, bit, code);
        bit += code.count;
      });
      __syncthreads();
      const std::uint32_t whole = (written % 32 + bits_of_all) / 32;
      for (std::uint32_t word = threadIdx.x; word < whole; word += kThreads)
        stream[written / 32 + word] = chunk_words[word];
      carry = chunk_words[whole];
      written += bits_of_all;
      previous = max(last_of_all, previous);
      __syncthreads();
    }
    if (threadIdx.x == 0) {
      if (written % 32 != 0) stream[written / 32] = carry;
      bits[part] = written;
      bytes[part] = format::QsgdStreams::stream_bytes(written);
    }
  }
}

/// Moves the streams together, one behind the other, and writes the payload's size. offsets[parts] is the length of all
/// streams.
__global__ void move_kernel(format::QsgdStreams layout, const std::byte* slots, const std::uint64_t* offsets,
                            std::byte* payload) {
  const std::size_t parts = layout.parts();
  for (std::size_t part = blockIdx.x; part < parts; part += gridDim.x) {
    const auto* from = reinterpret_cast<const std::uint32_t*>(slots + part * layout.slot_bytes());
    auto* to = reinterpret_cast<std::uint32_t*>(payload + layout.streams_offset() + offsets[part]);
    const std::size_t words = (offsets[part + 1] - offsets[part]) / 4;
    for (std::size_t i = threadIdx.x; i < words; i += kThreads) to[i] = from[i];
  }
  if (thread_in_grid() == 0)
    *reinterpret_cast<std::uint64_t*>(payload) = layout.streams_offset() + (parts == 0 ? 0 : offsets[parts]);
}

/// bytes[part] := the length of the part's stream by its number of bits, or more than fits into any payload where no
/// stream is that long.
__global__ void sizes_kernel(format::QsgdStreams layout, const std::byte* payload, std::uint64_t* bytes) {
  const auto* bits = reinterpret_cast<const std::uint32_t*>(payload + layout.bits_offset());
  const std::size_t slot = layout.slot_bytes(), parts = layout.parts();
  for (std::size_t part = thread_in_grid(); part <= parts; part += threads_in_grid()) {
    const std::size_t wanted = part < parts ? format::QsgdStreams::stream_bytes(bits[part]) : 0;
    bytes[part] = wanted <= slot ? wanted : layout.most_bytes();
  }
}

/// 64 bits of a stream of `count` words from bit `bit` on; zeros behind its end.
__device__ std::uint64_t window_at(const std::uint32_t* words, std::size_t count, std::size_t bit) {
  const std::size_t word = bit / 32;
  const std::uint32_t a = word < count ? words[word] : 0, b = word + 1 < count ? words[word + 1] : 0,
                      c = word + 2 < count ? words[word + 2] : 0;
  const auto shift = static_cast<unsigned>(bit % 32);
  return std::uint64_t{__funnelshift_r(b, c, shift)} << 32 | __funnelshift_r(a, b, shift);
}

/// The code that starts at one bit of a stream.
struct ReadCode {
  std::uint32_t bits = 0;  ///< length of the code; 0 where no code starts at this bit
  std::uint32_t gap = 0, level = 0;
  bool negative = false;
};

__device__ ReadCode read_code(std::uint64_t window, std::uint32_t levels, std::size_t most) {
  constexpr unsigned kLongestGap = 40;  // The rest of 64 bits holds the sign and the level.
  const format::EliasFront gap = format::elias_delta_front(window);
  if (gap.value == 0 || gap.value > most || gap.count > kLongestGap) return {};
  const format::EliasFront level = format::elias_delta_front(window >> (gap.count + 1));
  if (level.value == 0 || level.value > levels) return {};
  return {gap.count + 1 + level.count, gap.value, level.value, (window >> gap.count & 1) != 0};
}

/// Adds the stream of one part, of which `norms` and `out` are the part's own. A warp looks at 32 bits at a time: each
/// lane reads the code that would start at its bit, and which of these codes are real follows from the first one, code
/// by code. The elements follow from a sum over the gaps.
__device__ void decode_stream(const format::QsgdStreams& layout, const std::uint32_t* words, std::uint32_t size,
                              const float* norms, std::size_t count, float weight, float* out) {
  const std::uint32_t lane = lane_in_warp();
  const format::Qsgd quantiser{0, layout.levels};
  const std::size_t word_count = format::QsgdStreams::stream_bytes(size) / 4;
  std::uint32_t next = 0;  // one more than the index of the last element that was sent
  for (std::uint32_t used = 0; used < size;) {
    const std::uint32_t bit = used + lane;
    ReadCode read;
    if (bit < size) read = read_code(window_at(words, word_count, bit), layout.levels, count);
    if (read.bits > size - bit) read.bits = 0;
    std::uint32_t starts = 0, at = 0;
    bool damaged = false;
    while (at < kWarpSize && used + at < size) {
      const std::uint32_t bits = __shfl_sync(kAllLanes, read.bits, at);
      damaged = bits == 0;
      if (damaged) break;
      starts |= 1u << at;
      at += bits;
    }
    const bool mine = (starts >> lane & 1u) != 0;
    const std::uint32_t through = warp_sum_through(mine ? read.gap : 0u);
    const std::size_t end = std::size_t{next} + through;  // one more than the element's index
    if (mine && end <= count) {
      const std::size_t i = end - 1;
      const float unit = weight * quantiser.decode_factor(norms[i / layout.bucket]);
      const float value = static_cast<float>(static_cast<std::int32_t>(read.level)) * unit;
      out[i] += read.negative ? -value : value;
    }
    const std::uint32_t total = __shfl_sync(kAllLanes, through, kWarpSize - 1);
    if (damaged || next + total > count) return;
    next += total;
    used += at;
  }
}

__global__ void decode_kernel(format::QsgdStreams layout, const std::byte* payload, std::size_t size,
                              const std::uint64_t* offsets, float weight, float* out) {
  const std::size_t parts = layout.parts();
  const std::uint64_t end = layout.streams_offset() + offsets[parts];
  const bool damaged = end > size || end != *reinterpret_cast<const std::uint64_t*>(payload);
  const auto* norms = reinterpret_cast<const float*>(payload + format::QsgdStreams::norms_offset());
  const auto* bits = reinterpret_cast<const std::uint32_t*>(payload + layout.bits_offset());
  const std::uint32_t lane = lane_in_warp();
  for (std::size_t part = warp_in_grid(); part < parts; part += warps_in_grid()) {
    const std::size_t first = part * layout.part();
    const std::size_t count = layout.n - first < layout.part() ? layout.n - first : layout.part();
    float* to = out + first;
    if (damaged) {
      for (std::size_t i = lane; i < count; i += kWarpSize) to[i] = format::quiet_nan();
      continue;
    }
    const float* part_norms = norms + first / layout.bucket;
    // All levels of a bucket whose norm is NaN are zero, so the stream does not hold the NaN.
    for (std::size_t b = 0; b * layout.bucket < count; ++b) {
      const float norm = part_norms[b];
      if (norm == norm) continue;
      const std::size_t last = (b + 1) * layout.bucket < count ? (b + 1) * layout.bucket : count;
      for (std::size_t i = b * layout.bucket + lane; i < last; i += kWarpSize) to[i] += weight * norm;
    }
    __syncwarp();
    const auto* words = reinterpret_cast<const std::uint32_t*>(payload + layout.streams_offset() + offsets[part]);
    decode_stream(layout, words, bits[part], part_norms, count, weight, to);
  }
}

}  // namespace
}  // namespace cuda

namespace {

/// Working memory of encode and of decode_add.
struct Workspace {
  Workspace(const format::QsgdStreams& layout, Scratch<Space::cuda> scratch)
      : offsets{scratch.take<std::uint64_t>(layout.parts() + 1)},
        scan{scratch.take_bytes(cuda::scan_bytes<std::uint64_t>(layout.parts() + 1))},
        slots{scratch.take_bytes(layout.parts() * layout.slot_bytes())} {}

  View<std::uint64_t, Space::cuda> offsets;  ///< of each stream behind the first, and then the length of all
  View<std::byte, Space::cuda> scan;         ///< what the sum over the lengths needs
  View<std::byte, Space::cuda> slots;        ///< a stream each, until it is known where they go
};

class GpuQsgdElias final : public GpuCodec {
 public:
  explicit GpuQsgdElias(const Params& params) : GpuCodec{"qsgd", params}, options_{params} {}

  /// Asks the GPU library what its scan needs.
  [[nodiscard]] Footprint plan(std::size_t n) const override {
    return {.payload_bytes = layout(n).most_bytes(), .scratch_bytes = planned<Workspace>(layout(n)), .exact = false};
  }

  void encode(Queue<Space::cuda> queue, ConstFloats gradient, const EncodeContext& context, Bytes payload,
              Bytes scratch) const override {
    const format::QsgdStreams streams = layout(gradient.size());
    const Workspace work{streams, Scratch<Space::cuda>{scratch}};
    const unsigned blocks = cuda::blocks_for(streams.parts(), 1);
    if (!gradient.empty()) {
      auto* norms = reinterpret_cast<float*>(payload.data() + format::QsgdStreams::norms_offset());
      auto* sizes = reinterpret_cast<std::uint32_t*>(payload.data() + streams.bits_offset());
      const bool aligned = cuda::aligned_to(gradient.data(), 16);
      format::with_qsgd_bits(options_.bits, [&]<std::uint32_t Bits>() {
        cuda::launch(queue, "qsgd norms", cuda::norms_kernel<Bits>,
                     cuda::blocks_for(streams.buckets(), cuda::kBlockWarps), streams, {options_.l2}, gradient.data(),
                     aligned, norms);
        cuda::launch(queue, "qsgd elias encode", cuda::encode_kernel<Bits>, blocks, streams, gradient.data(), aligned,
                     context.key, norms, work.slots.data(), sizes, work.offsets.data());
      });
      cuda::scan_tiles(queue, work.offsets.data(), work.offsets.size(), work.scan);
    }
    cuda::launch(queue, "qsgd elias move", cuda::move_kernel, blocks, streams, work.slots.data(), work.offsets.data(),
                 payload.data());
  }

  /// Sizes in the payload that contradict each other or the view make all of `out` NaN; a stream ends at the first code
  /// that is none.
  void decode_add(Queue<Space::cuda> queue, ConstBytes payload, float weight, Floats out,
                  Bytes scratch) const override {
    const format::QsgdStreams streams = layout(out.size());
    expect_room("qsgd", payload.size(), streams.streams_offset(), streams.most_bytes());
    if (out.empty()) return;
    const Workspace work{streams, Scratch<Space::cuda>{scratch}};
    cuda::launch(queue, "qsgd elias sizes", cuda::sizes_kernel, cuda::blocks_for(streams.parts() + 1, cuda::kThreads),
                 streams, payload.data(), work.offsets.data());
    cuda::scan_tiles(queue, work.offsets.data(), work.offsets.size(), work.scan);
    // Small blocks of threads: parts are long, and few of them should wait for each other.
    constexpr unsigned kFewThreads = 64;
    const cuda::Grid grid{cuda::blocks_for(streams.parts(), kFewThreads / cuda::kWarpSize), kFewThreads};
    cuda::launch(queue, "qsgd elias decode", cuda::decode_kernel, grid, streams, payload.data(), payload.size(),
                 work.offsets.data(), weight, out.data());
  }

 private:
  [[nodiscard]] format::QsgdStreams layout(std::size_t n) const {
    return {n, options_.bucket, format::Qsgd::with_bits(options_.bits).levels};
  }

  QsgdOptions options_;
};

}  // namespace

std::unique_ptr<Codec<Space::cuda>> make_gpu_qsgd_elias(const Params& params) {
  return std::make_unique<GpuQsgdElias>(params);
}

}  // namespace gradtool
