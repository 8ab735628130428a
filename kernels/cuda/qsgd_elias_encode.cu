#include <cuda_runtime.h>

#include "kernels/cuda/block_ops.hpp"
#include "kernels/cuda/elias_codes.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/qsgd.hpp"
#include "kernels/cuda/qsgd_bits.hpp"
#include "kernels/cuda/qsgd_elias.hpp"
#include "kernels/cuda/qsgd_elias_scratch.hpp"
#include "kernels/law/qsgd.hpp"
#include "kernels/schedule/windows.hpp"

namespace gradtool::cuda {
namespace {

constexpr std::uint32_t kEach = 8;  // neighbours that a thread codes; of one bucket, as those are multiples of 32
constexpr std::uint32_t kChunk = kEach * kThreads;
constexpr std::uint32_t kMostBits = 13;  // of an element after another: gap, sign, level 127
constexpr std::uint32_t kRoomWords = (kChunk * kMostBits + law::kEliasLongest + 31) / 32 + 3;

/// The largest number of the threads before this one, 0 for the first; `all`: of all threads. Every thread calls it.
__device__ std::uint32_t largest_before(std::uint32_t own, std::uint32_t& all) {
  __shared__ std::uint32_t warps[kBlockWarpCount];
  const unsigned lane = lane_in_warp(), warp = threadIdx.x / schedule::kLanes;
  std::uint32_t through = own;
#pragma unroll
  for (unsigned distance = 1; distance < schedule::kLanes; distance *= 2) {
    const std::uint32_t below = __shfl_up_sync(kAllLanes, through, distance);
    if (lane >= distance) through = max(through, below);
  }
  std::uint32_t before = __shfl_up_sync(kAllLanes, through, 1);
  if (lane == 0) before = 0;
  if (lane == schedule::kLanes - 1) warps[warp] = through;
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
__device__ law::EliasCode code_of(std::uint32_t gap, std::uint32_t sign, std::uint32_t level) {
  law::EliasCode code = law::elias_delta(gap);
  const law::EliasCode high = law::elias_delta(level);
  code.bits |= std::uint64_t{sign} << code.count | high.bits << (code.count + 1);
  code.count += 1 + high.count;
  return code;
}

/// Neighbours of a part that a thread codes.
template <std::uint32_t Bits>
struct Neighbours {
  static constexpr std::uint32_t kLevels = (1u << (Bits - 1)) - 1u;
  std::uint32_t codes[kEach] = {};
  std::uint32_t first = 0;  ///< in the part
  std::uint32_t last = 0;   ///< one more than the last that is not zero; 0 where all are

  /// From element `at` on, of the `count` of the part that starts at `gradient` and is `front` elements into the layer.
  __device__ void quantise(const float* gradient, std::size_t front, std::size_t at, std::size_t count, bool aligned,
                           const law::DrawKey& key, float factor) {
    first = static_cast<std::uint32_t>(at);
    for (std::uint32_t group = 0; group < kEach; group += 4) {
      const auto x = schedule::four_at(gradient, at + group, count, aligned);
      const law::Draws draws = law::draw4(key, (front + at + group) / 4);
      for (std::uint32_t i = 0; i < 4; ++i) {
        if (at + group + i >= count) continue;
        codes[group + i] = law::QsgdElement<Bits>::encode(factor, x.value[i], draws.bits[i]);
        if ((codes[group + i] & kLevels) != 0) last = first + group + i + 1;
      }
    }
  }
  /// visit(gap, sign, level) for those that are not zero; `from` is one more than the one before them.
  template <class Visit>
  __device__ void each(std::uint32_t from, const Visit& visit) const {
    for (std::uint32_t i = 0; i < kEach; ++i) {
      const std::uint32_t level = codes[i] & kLevels;
      if (level == 0) continue;
      visit(first + i + 1 - from, codes[i] >> (Bits - 1), level);
      from = first + i + 1;
    }
  }
};

/// A block writes the stream of a part to its slot, and the bytes that it takes to `bytes`.
template <std::uint32_t Bits>
__global__ void encode_kernel(law::QsgdStreams layout, const float* gradient, bool aligned, law::DrawKey key,
                              const float* norms, std::byte* slots, std::uint32_t* bits, std::uint64_t* bytes) {
  __shared__ std::uint32_t room[kRoomWords];
  if (thread_in_grid() == 0) bytes[layout.parts()] = 0;
  for (std::size_t part = blockIdx.x; part < layout.parts(); part += gridDim.x) {
    const std::size_t first = part * layout.part();
    const std::size_t count = layout.n - first < layout.part() ? layout.n - first : layout.part();
    auto* stream = reinterpret_cast<std::uint32_t*>(slots + part * layout.slot_bytes());
    std::uint32_t carry = 0;     // the word that the chunk before began
    std::uint32_t written = 0;   // bits
    std::uint32_t previous = 0;  // one more than the last element that was not zero
    for (std::size_t at = 0; at < count; at += kChunk) {
      for (std::uint32_t i = threadIdx.x; i < kRoomWords; i += kThreads) room[i] = i == 0 ? carry : 0;
      const std::size_t mine = at + kEach * threadIdx.x;
      Neighbours<Bits> some;
      if (mine < count) {
        const float factor = law::Qsgd::with_bits(Bits).encode_factor(norms[(first + mine) / layout.bucket]);
        some.quantise(gradient + first, first, mine, count, aligned, key, factor);
      }
      std::uint32_t last_of_all = 0, bits_of_all = 0, own = 0;
      const std::uint32_t before = max(largest_before(some.last, last_of_all), previous);
      some.each(before, [&](std::uint32_t gap, std::uint32_t, std::uint32_t level) {
        own += law::elias_delta_bits(gap) + 1 + law::elias_delta_bits(level);
      });
      std::uint32_t bit = block_sum_through(own, bits_of_all) - own + written % 32;
      some.each(before, [&](std::uint32_t gap, std::uint32_t sign, std::uint32_t level) {
        const law::EliasCode code = code_of(gap, sign, level);
        put_code(room, bit, code);
        bit += code.count;
      });
      __syncthreads();
      const std::uint32_t whole = (written % 32 + bits_of_all) / 32;
      for (std::uint32_t word = threadIdx.x; word < whole; word += kThreads) stream[written / 32 + word] = room[word];
      carry = room[whole];
      written += bits_of_all;
      previous = max(last_of_all, previous);
      __syncthreads();
    }
    if (threadIdx.x == 0) {
      if (written % 32 != 0) stream[written / 32] = carry;
      bits[part] = written;
      bytes[part] = law::QsgdStreams::stream_bytes(written);
    }
  }
}

/// Moves the streams together; offsets[parts] is their length.
__global__ void move_kernel(law::QsgdStreams layout, const std::byte* slots, const std::uint64_t* offsets,
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

}  // namespace

std::size_t qsgd_elias_scratch_bytes(const law::QsgdStreams& layout) {
  return QsgdEliasScratch{layout, {}}.bytes;
}

void qsgd_elias_encode(Queue<Space::cuda> queue, const law::QsgdStreams& layout, std::uint32_t bits,
                       const float* gradient, bool l2, const law::DrawKey& key, std::byte* payload,
                       View<std::byte, Space::cuda> scratch) {
  const unsigned blocks = blocks_for(layout.parts(), 1);
  const QsgdEliasScratch at{layout, scratch};
  if (layout.n > 0) {
    auto* norms = reinterpret_cast<float*>(payload + law::QsgdStreams::norms_offset());
    auto* sizes = reinterpret_cast<std::uint32_t*>(payload + layout.bits_offset());
    qsgd_norms(queue, {layout.n, layout.bucket, bits}, gradient, l2, norms);
    with_bits(bits, [&]<std::uint32_t Bits>() {
      launch(queue, "qsgd elias encode", encode_kernel<Bits>, blocks, layout, gradient, aligned_to(gradient, 16), key,
             norms, at.slots, sizes, at.offsets);
    });
    scan_tiles(queue, at.offsets, layout.parts() + 1, at.scan);
  }
  launch(queue, "qsgd elias move", move_kernel, blocks, layout, at.slots, at.offsets, payload);
}

}  // namespace gradtool::cuda
