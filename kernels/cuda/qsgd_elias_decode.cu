#include <cuda_runtime.h>

#include "kernels/cuda/block_ops.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/qsgd_elias.hpp"
#include "kernels/cuda/qsgd_elias_scratch.hpp"
#include "kernels/law/qsgd.hpp"

namespace gradtool::cuda {
namespace {

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
  const std::uint32_t lane = lane_in_warp();
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
      const std::uint32_t bits = __shfl_sync(kAllLanes, found.bits, at);
      damaged = bits == 0;
      if (damaged) break;
      starts |= 1u << at;
      at += bits;
    }
    const bool mine = (starts >> lane & 1u) != 0;
    const std::uint32_t through = warp_sum_through(mine ? found.gap : 0u);
    const std::size_t element = std::size_t{next} + through;  // one more than it
    if (mine && element <= count) {
      const std::size_t i = element - 1;
      const float unit = weight * law.decode_factor(norms[i / layout.bucket]);
      const float value = static_cast<float>(static_cast<std::int32_t>(found.level)) * unit;
      out[i] += found.negative ? -value : value;
    }
    const std::uint32_t total = __shfl_sync(kAllLanes, through, schedule::kLanes - 1);
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
  const std::uint32_t lane = lane_in_warp();
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

}  // namespace

void qsgd_elias_decode_add(Queue<Space::cuda> queue, const law::QsgdStreams& layout,
                           View<const std::byte, Space::cuda> payload, float weight, float* out,
                           View<std::byte, Space::cuda> scratch) {
  if (layout.n == 0) return;
  const QsgdEliasScratch at{layout, scratch};
  launch(queue, "qsgd elias sizes", sizes_kernel, blocks_for(layout.parts() + 1, kThreads), layout, payload.data(),
         at.offsets);
  scan_tiles(queue, at.offsets, layout.parts() + 1, at.scan);
  constexpr unsigned kFew = 64;  // of a block: parts are long, and few of them should wait for each other
  launch(queue, "qsgd elias decode", decode_kernel, {blocks_for(layout.parts(), kFew / schedule::kLanes), kFew}, layout,
         payload.data(), payload.size(), at.offsets, weight, out);
}

}  // namespace gradtool::cuda
