#include "kernels/cuda/qsgd_elias.hpp"

#include <cuda_runtime.h>

#include "kernels/cuda/device_warp.hpp"
#include "kernels/cuda/grid.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/qsgd.hpp"
#include "kernels/cuda/qsgd_bits.hpp"
#include "kernels/cuda/runtime.hpp"
#include "kernels/cuda/tile_scan.hpp"
#include "kernels/law/qsgd.hpp"
#include "kernels/schedule/block_codes.hpp"

namespace gradtool::cuda {
namespace {

constexpr std::uint32_t kAll = 0xffffffffu;
constexpr unsigned kWarps = kThreads / schedule::kLanes;
constexpr std::uint32_t kEach = 8;  // neighbours that a thread codes; of one bucket, as those are multiples of 32
constexpr std::uint32_t kChunk = kEach * kThreads;
constexpr std::uint32_t kMostBits = 13;  // of an element after another: gap, sign, level 127
constexpr std::uint32_t kRoomWords = (kChunk * kMostBits + law::kEliasLongest + 31) / 32 + 3;

struct Plus {
  __device__ std::uint32_t operator()(std::uint32_t a, std::uint32_t b) const { return a + b; }
};
struct Larger {
  __device__ std::uint32_t operator()(std::uint32_t a, std::uint32_t b) const { return a > b ? a : b; }
};

/// `own` of the threads before this one joined, 0 for the first; `all`: of all threads. Every thread calls it.
template <class Join>
__device__ std::uint32_t before_in_block(std::uint32_t own, const Join& join, std::uint32_t& all) {
  __shared__ std::uint32_t warps[kWarps];
  const unsigned lane = threadIdx.x % schedule::kLanes, warp = threadIdx.x / schedule::kLanes;
  std::uint32_t through = own;
#pragma unroll
  for (unsigned distance = 1; distance < schedule::kLanes; distance *= 2) {
    const std::uint32_t below = __shfl_up_sync(kAll, through, distance);
    if (lane >= distance) through = join(below, through);
  }
  std::uint32_t before = __shfl_up_sync(kAll, through, 1);
  if (lane == 0) before = 0;
  if (lane == schedule::kLanes - 1) warps[warp] = through;
  __syncthreads();
  all = 0;
  for (unsigned w = 0; w < kWarps; ++w) {
    if (w < warp) before = join(warps[w], before);
    all = join(all, warps[w]);
  }
  __syncthreads();
  return before;
}

__device__ void put(std::uint32_t* room, std::uint32_t bit, const law::EliasCode& code) {
  const std::uint32_t shift = bit % 32;
  const std::uint64_t low = code.bits << shift;
  const std::uint64_t high = shift == 0 ? 0 : code.bits >> (64 - shift);
  atomicOr(&room[bit / 32], static_cast<std::uint32_t>(low));
  if (low >> 32 != 0) atomicOr(&room[bit / 32 + 1], static_cast<std::uint32_t>(low >> 32));
  if (high != 0) atomicOr(&room[bit / 32 + 2], static_cast<std::uint32_t>(high));
}

/// Gap, sign and level behind each other.
__device__ law::EliasCode code_of(std::uint32_t gap, std::uint32_t sign, std::uint32_t level) {
  law::EliasCode code = law::elias_delta(gap);
  const law::EliasCode high = law::elias_delta(level);
  code.bits |= std::uint64_t{sign} << code.count | high.bits << (code.count + 1);
  code.count += 1 + high.count;
  return code;
}

/// A block writes the stream of a part to its slot, and the bytes that it takes to `bytes`.
template <std::uint32_t Bits>
__global__ void encode_kernel(law::QsgdStreams layout, const float* gradient, bool aligned, law::DrawKey key,
                              const float* norms, std::byte* slots, std::uint32_t* bits, std::uint64_t* bytes) {
  __shared__ std::uint32_t room[kRoomWords];
  constexpr std::uint32_t kLevels = (1u << (Bits - 1)) - 1u;
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
      std::uint32_t codes[kEach] = {};
      std::uint32_t last = 0;
      if (mine < count) {
        const float factor = law::Qsgd::with_bits(Bits).encode_factor(norms[(first + mine) / layout.bucket]);
        for (std::uint32_t group = 0; group < kEach; group += 4) {
          const auto x = schedule::four_at(gradient + first, mine + group, count, aligned);
          const law::Draws draws = law::draw4(key, (first + mine + group) / 4);
          for (std::uint32_t i = 0; i < 4; ++i) {
            if (mine + group + i >= count) continue;
            codes[group + i] = law::QsgdElement<Bits>::encode(factor, x.value[i], draws.bits[i]);
            if ((codes[group + i] & kLevels) != 0) last = static_cast<std::uint32_t>(mine + group + i) + 1;
          }
        }
      }
      std::uint32_t last_of_all = 0, bits_of_all = 0, own = 0;
      const std::uint32_t nearest = before_in_block(last, Larger{}, last_of_all);
      const std::uint32_t before = nearest > previous ? nearest : previous;
      const auto each = [&](const auto& visit) {
        std::uint32_t from = before;
        for (std::uint32_t i = 0; i < kEach; ++i) {
          const std::uint32_t level = codes[i] & kLevels;
          if (level == 0) continue;
          const std::uint32_t here = static_cast<std::uint32_t>(mine) + i + 1;
          visit(here - from, codes[i] >> (Bits - 1), level);
          from = here;
        }
      };
      each([&](std::uint32_t gap, std::uint32_t, std::uint32_t level) {
        own += law::elias_delta_bits(gap) + 1 + law::elias_delta_bits(level);
      });
      std::uint32_t bit = before_in_block(own, Plus{}, bits_of_all) + written % 32;
      each([&](std::uint32_t gap, std::uint32_t sign, std::uint32_t level) {
        const law::EliasCode code = code_of(gap, sign, level);
        put(room, bit, code);
        bit += code.count;
      });
      __syncthreads();
      const std::uint32_t whole = (written % 32 + bits_of_all) / 32;
      for (std::uint32_t word = threadIdx.x; word < whole; word += kThreads) stream[written / 32 + word] = room[word];
      carry = room[whole];
      written += bits_of_all;
      previous = last_of_all > previous ? last_of_all : previous;
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

/// bytes[part] := what the part's stream takes by its bits, if that can be.
__global__ void sizes_kernel(law::QsgdStreams layout, const std::byte* payload, std::uint64_t* bytes) {
  const auto* bits = reinterpret_cast<const std::uint32_t*>(payload + layout.bits_offset());
  const std::size_t slot = layout.slot_bytes(), parts = layout.parts();
  for (std::size_t part = thread_in_grid(); part <= parts; part += threads_in_grid()) {
    const std::size_t wanted = part < parts ? law::QsgdStreams::stream_bytes(bits[part]) : 0;
    bytes[part] = wanted <= slot ? wanted : layout.most_bytes();  // too much for any view
  }
}

/// 64 bits of a stream; zeros behind its end.
__device__ std::uint64_t window_at(const std::uint32_t* words, std::size_t count, std::size_t bit) {
  const std::size_t word = bit / 32;
  const std::uint32_t a = word < count ? words[word] : 0, b = word + 1 < count ? words[word + 1] : 0,
                      c = word + 2 < count ? words[word + 2] : 0;
  const auto shift = static_cast<unsigned>(bit % 32);
  return std::uint64_t{__funnelshift_r(b, c, shift)} << 32 | __funnelshift_r(a, b, shift);
}

/// A code that may start at a bit.
struct Found {
  std::uint32_t bits = 0;  ///< 0: none does
  std::uint32_t gap = 0, level = 0;
  bool negative = false;
};

__device__ Found code_at(std::uint64_t window, std::uint32_t levels, std::size_t most) {
  constexpr unsigned kLongestGap = 40;  // what is left has room for sign and level
  const law::EliasFront gap = law::elias_delta_front(window);
  if (gap.value == 0 || gap.value > most || gap.count > kLongestGap) return {};
  const law::EliasFront level = law::elias_delta_front(window >> (gap.count + 1));
  if (level.value == 0 || level.value > levels) return {};
  return {gap.count + 1 + level.count, gap.value, level.value, (window >> gap.count & 1) != 0};
}

/// A warp reads a part's stream, 32 bits at a time: each lane takes a bit for the first of a code, and those that are
/// follow from the first one, code by code. Their elements follow from a sum of the gaps.
__device__ void decode_stream(const law::QsgdStreams& layout, const std::uint32_t* words, std::uint32_t size,
                              const float* norms, std::size_t count, float weight, float* out) {
  const std::uint32_t lane = threadIdx.x % schedule::kLanes;
  const law::Qsgd law{0, layout.levels};
  const std::size_t word_count = law::QsgdStreams::stream_bytes(size) / 4;
  std::uint32_t next = 0;  // one more than the last element
  for (std::uint32_t used = 0; used < size;) {
    const std::uint32_t bit = used + lane;
    Found found;
    if (bit < size) found = code_at(window_at(words, word_count, bit), layout.levels, count);
    if (found.bits > size - bit) found.bits = 0;
    std::uint32_t starts = 0, at = 0;
    bool damaged = false;
    while (at < schedule::kLanes && used + at < size) {
      const std::uint32_t bits = __shfl_sync(kAll, found.bits, at);
      damaged = bits == 0;
      if (damaged) break;
      starts |= 1u << at;
      at += bits;
    }
    const bool mine = (starts >> lane & 1u) != 0;
    std::uint32_t through = mine ? found.gap : 0;
#pragma unroll
    for (unsigned distance = 1; distance < schedule::kLanes; distance *= 2) {
      const std::uint32_t below = __shfl_up_sync(kAll, through, distance);
      if (lane >= distance) through += below;
    }
    const std::size_t element = std::size_t{next} + through;  // one more than it
    if (mine && element <= count) {
      const std::size_t i = element - 1;
      const float unit = weight * law.decode_factor(norms[i / layout.bucket]);
      const float value = static_cast<float>(static_cast<std::int32_t>(found.level)) * unit;
      out[i] += found.negative ? -value : value;
    }
    const std::uint32_t total = __shfl_sync(kAll, through, schedule::kLanes - 1);
    if (damaged || next + total > count) return;
    next += total;
    used += at;
  }
}

__global__ void decode_kernel(law::QsgdStreams layout, const std::byte* payload, std::size_t size,
                              const std::uint64_t* offsets, float weight, float* out) {
  const std::size_t parts = layout.parts();
  const std::uint64_t end = layout.streams_offset() + offsets[parts];
  const bool damaged = end > size || end != *reinterpret_cast<const std::uint64_t*>(payload);
  const auto* norms = reinterpret_cast<const float*>(payload + law::QsgdStreams::norms_offset());
  const auto* bits = reinterpret_cast<const std::uint32_t*>(payload + layout.bits_offset());
  const std::uint32_t lane = threadIdx.x % schedule::kLanes;
  for (std::size_t part = warp_in_grid(); part < parts; part += warps_in_grid()) {
    const std::size_t first = part * layout.part();
    const std::size_t count = layout.n - first < layout.part() ? layout.n - first : layout.part();
    float* to = out + first;
    if (damaged) {
      for (std::size_t i = lane; i < count; i += schedule::kLanes) to[i] = law::float_of(0x7fc00000u);
      continue;
    }
    const float* of_part = norms + first / layout.bucket;
    // A bucket whose norm is NaN has no levels to carry it.
    for (std::size_t b = 0; b * layout.bucket < count; ++b) {
      const float norm = of_part[b];
      if (norm == norm) continue;
      const std::size_t last = (b + 1) * layout.bucket < count ? (b + 1) * layout.bucket : count;
      for (std::size_t i = b * layout.bucket + lane; i < last; i += schedule::kLanes) to[i] += weight * norm;
    }
    __syncwarp();
    const auto* words = reinterpret_cast<const std::uint32_t*>(payload + layout.streams_offset() + offsets[part]);
    decode_stream(layout, words, bits[part], of_part, count, weight, to);
  }
}

/// Pieces of the scratch: offsets of the streams, what their scan needs, slots.
struct Scratch {
  Scratch(const law::QsgdStreams& layout, View<std::byte, Space::cuda> view) {
    const std::size_t first = offsets_bytes(layout), second = scan_room(layout);
    offsets = reinterpret_cast<std::uint64_t*>(view.data());
    scan = view.part(first, second);
    slots = view.data() + first + second;
  }
  static std::size_t padded(std::size_t bytes) { return Arena<Space::cuda>::padded_size(bytes); }
  static std::size_t offsets_bytes(const law::QsgdStreams& layout) { return padded(8 * (layout.parts() + 1)); }
  static std::size_t scan_room(const law::QsgdStreams& layout) {
    return padded(scan_bytes<std::uint64_t>(layout.parts() + 1));
  }
  std::uint64_t* offsets;
  View<std::byte, Space::cuda> scan;
  std::byte* slots;
};

}  // namespace

std::size_t qsgd_elias_scratch_bytes(const law::QsgdStreams& layout) {
  return Scratch::offsets_bytes(layout) + Scratch::scan_room(layout) + layout.parts() * layout.slot_bytes();
}

void qsgd_elias_encode(Queue<Space::cuda> queue, const law::QsgdStreams& layout, std::uint32_t bits,
                       const float* gradient, bool l2, const law::DrawKey& key, std::byte* payload,
                       View<std::byte, Space::cuda> scratch) {
  const unsigned blocks = blocks_for(layout.parts(), 1);
  const Scratch at{layout, scratch};
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

void qsgd_elias_decode_add(Queue<Space::cuda> queue, const law::QsgdStreams& layout,
                           View<const std::byte, Space::cuda> payload, float weight, float* out,
                           View<std::byte, Space::cuda> scratch) {
  if (layout.n == 0) return;
  const Scratch at{layout, scratch};
  launch(queue, "qsgd elias sizes", sizes_kernel, blocks_for(layout.parts() + 1, kThreads), layout, payload.data(),
         at.offsets);
  scan_tiles(queue, at.offsets, layout.parts() + 1, at.scan);
  constexpr unsigned kFew = 64;  // of a block: parts are long, and few of them should wait for each other
  launch(queue, "qsgd elias decode", decode_kernel, {blocks_for(layout.parts(), kFew / schedule::kLanes), kFew}, layout,
         payload.data(), payload.size(), at.offsets, weight, out);
}

}  // namespace gradtool::cuda
