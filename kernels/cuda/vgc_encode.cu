#include <cuda_runtime.h>

#include "kernels/cuda/block_ops.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/tile_scan.hpp"
#include "kernels/cuda/vgc.hpp"
#include "kernels/cuda/vgc_work.hpp"

namespace gradtool::cuda {
namespace {

using law::Vgc;

constexpr std::uint32_t kBatch = 4;  // words of marks whose elements a warp has under way

/// Loads of several words' elements go out before the first is needed: the stores behind them would hold them up.
template <bool Hybrid>
__global__ void accumulate_kernel(VgcCut cut, VgcStep step, std::uint32_t* marks, std::uint32_t* largest) {
  const unsigned lane = threadIdx.x % schedule::kLanes;
  for (std::size_t t = warp_in_grid(); t < cut.tile_count; t += warps_in_grid()) {
    const VgcTile tile = cut.tiles[t];
    std::uint32_t most = 0;
    for (std::uint32_t half = 0; half < kVgcTileWords && 32 * half < tile.count; half += schedule::kLanes) {
      std::uint32_t mine = 0;  // lane w keeps word w
      for (std::uint32_t word = 0; word < schedule::kLanes; word += kBatch) {
        float x[kBatch], square[kBatch], sum[kBatch], variance[kBatch];
#pragma unroll
        for (std::uint32_t b = 0; b < kBatch; ++b) {
          const std::uint32_t j = 32 * (half + word + b) + lane;
          const bool in = j < tile.count;
          const std::size_t i = tile.first + j;
          x[b] = in ? step.gradient[i] : 0.0F;
          sum[b] = in ? step.r[i] : 0.0F;
          variance[b] = in ? step.v[i] : 0.0F;
          square[b] = in && step.moment != nullptr ? step.moment[i] : x[b] * x[b];
        }
#pragma unroll
        for (std::uint32_t b = 0; b < kBatch; ++b) {
          const std::uint32_t j = 32 * (half + word + b) + lane;
          const bool in = j < tile.count;
          const Vgc::Taken taken = step.law.template take<Hybrid>(sum[b] + x[b], variance[b] + square[b]);
          if (in) {
            step.r[tile.first + j] = taken.r;
            step.v[tile.first + j] = taken.v;
          }
          const bool sent = in && taken.sent;
          const std::uint32_t all = __ballot_sync(kAllLanes, sent);
          if (lane == word + b) mine = all;
          if (in && (sent || step.over_all)) most = taken.size > most ? taken.size : most;
        }
      }
      marks[t * kVgcTileWords + half + lane] = mine;
    }
    most = __reduce_max_sync(kAllLanes, most);
    if (lane == 0 && most != 0) atomicMax(&largest[tile.group], most);
  }
}

/// The places of a tile's marked elements, in order; how many they are.
__device__ std::uint32_t list_marked(const std::uint32_t* marks, std::uint32_t elements, std::uint16_t* places) {
  const unsigned lane = lane_in_warp();
  std::uint32_t count = 0;
  for (std::uint32_t half = 0; half < kVgcTileWords && 32 * half < elements; half += schedule::kLanes) {
    const std::uint32_t word = half + lane;
    std::uint32_t rest = marks[word];
    const auto own = static_cast<std::uint32_t>(__popc(rest));
    const std::uint32_t through = warp_sum_through(own);
    for (std::uint32_t at = count + through - own; rest != 0; rest &= rest - 1)
      places[at++] =
          static_cast<std::uint16_t>(32 * word + static_cast<std::uint32_t>(__ffs(static_cast<int>(rest)) - 1));
    count += __shfl_sync(kAllLanes, through, schedule::kLanes - 1);
  }
  __syncwarp();
  return count;
}

/// The words of marked elements, and the state behind them.
template <bool Hybrid>
__global__ void settle_kernel(VgcCut cut, VgcStep step, VgcWork work) {
  __shared__ std::uint16_t room[kBlockWarpCount][kVgcTile];
  std::uint16_t* places = room[threadIdx.x / schedule::kLanes];
  const unsigned lane = lane_in_warp();
  const std::uint32_t below = schedule::lanes_below(lane);
  for (std::size_t t = warp_in_grid(); t < cut.tile_count; t += warps_in_grid()) {
    const VgcTile tile = cut.tiles[t];
    const std::uint32_t exponent = Vgc::exponent(work.largest[tile.group]);
    const bool finite = exponent != Vgc::kNotFinite;
    const bool settled = Hybrid && finite;  // by the first pass
    const std::uint32_t marked = list_marked(work.marks + t * kVgcTileWords, tile.count, places);
    std::uint32_t found = 0;
    for (std::uint32_t first = 0; first < marked; first += schedule::kLanes) {
      const bool is = first + lane < marked;
      const std::uint32_t j = is ? places[first + lane] : 0u;
      const std::size_t i = tile.first + j;
      float value = 0.0F;
      std::uint32_t steps = 0;
      if (is) {
        value = step.values[i];
        steps = !Hybrid && finite ? Vgc::steps_down(value, exponent) : 0u;
        if (!settled) {
          const Vgc::State left =
              step.law.template settle<Hybrid>({step.r[i], step.v[i]}, steps < Vgc::kSteps, step.keeps_dropped);
          step.r[i] = left.r;
          step.v[i] = left.v;
        }
      }
      const std::uint32_t kept = __ballot_sync(kAllLanes, is && steps < Vgc::kSteps);
      if ((kept >> lane & 1u) != 0)
        work.words[t * kVgcTile + found + static_cast<std::uint32_t>(__popc(kept & below))] =
            Vgc::word(value, steps, tile.first_index + j);
      found += static_cast<std::uint32_t>(__popc(kept));
    }
    if (lane == 0) work.before[t] = found;
    __syncwarp();  // before the next tile's places take these
  }
  if (thread_in_grid() == 0) work.before[cut.tile_count] = 0;
}

/// Words to their place, and the sections in front of them.
template <bool Hybrid>
__global__ void write_kernel(VgcCut cut, VgcWork work, std::byte* payload) {
  auto* counts = reinterpret_cast<std::uint32_t*>(payload + cut.counts_offset);
  auto* exponents = reinterpret_cast<std::uint8_t*>(payload + cut.exponents_offset);
  auto* words = reinterpret_cast<std::uint32_t*>(payload + cut.words_offset);
  for (std::size_t k = thread_in_grid(); k < cut.words_offset - cut.exponents_offset; k += threads_in_grid()) {
    std::uint32_t exponent = k < cut.group_count ? Vgc::exponent(work.largest[k]) : 0u;
    if (Hybrid && exponent != Vgc::kNotFinite) exponent = 0;  // the sign is all that a word says
    exponents[k] = static_cast<std::uint8_t>(exponent);
    if (k < cut.group_count) {
      const std::uint64_t end = work.before[cut.groups[k + 1].first_tile];
      counts[k] = static_cast<std::uint32_t>(end - work.before[cut.groups[k].first_tile]);
    }
  }
  if (thread_in_grid() == 0)
    *reinterpret_cast<std::uint64_t*>(payload) = cut.words_offset + 4 * work.before[cut.tile_count];
  for (std::size_t t = warp_in_grid(); t < cut.tile_count; t += warps_in_grid()) {
    const std::uint64_t to = work.before[t];
    const auto count = static_cast<std::uint32_t>(work.before[t + 1] - to);
    for (std::uint32_t i = lane_in_warp(); i < count; i += schedule::kLanes)
      words[to + i] = work.words[t * kVgcTile + i];
  }
}

template <bool Hybrid>
void encode(Queue<Space::cuda> queue, const VgcCut& cut, const VgcStep& step, std::byte* payload,
            View<std::byte, Space::cuda> scratch) {
  const VgcWork work{cut.tile_count, cut.group_count, scratch};
  const unsigned blocks = blocks_for(cut.tile_count, kBlockWarpCount);
  fill(queue, {reinterpret_cast<std::byte*>(work.largest), 4 * cut.group_count}, 0);
  launch(queue, "vgc accumulate", accumulate_kernel<Hybrid>, blocks, cut, step, work.marks, work.largest);
  launch(queue, "vgc settle", settle_kernel<Hybrid>, blocks, cut, step, work);
  scan_tiles(queue, work.before, cut.tile_count + 1, work.scan);
  launch(queue, "vgc write", write_kernel<Hybrid>, blocks, cut, work, payload);
}

}  // namespace

std::size_t vgc_scratch_bytes(std::size_t tiles, std::size_t groups) {
  return VgcWork{tiles, groups, {}}.bytes;
}

void vgc_encode(Queue<Space::cuda> queue, const VgcCut& cut, const VgcStep& step, std::byte* payload,
                View<std::byte, Space::cuda> scratch) {
  (step.law.tau > 0.0F ? encode<true> : encode<false>)(queue, cut, step, payload, scratch);
}

}  // namespace gradtool::cuda
