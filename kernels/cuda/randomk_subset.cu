#include "kernels/cuda/randomk_subset.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <bit>

#include "kernels/cuda/block_ops.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/scratch_pieces.hpp"
#include "kernels/cuda/tile_scan.hpp"

namespace gradtool::cuda {
namespace {

using Entry = RandomKSubset::Entry;

constexpr Entry kFree = ~Entry{0};
constexpr std::size_t kTileWords = RandomKSubset::kTileWords;

__global__ void draw_kernel(RandomKSubset subset, const law::RandomKKey* key) {
  const law::DrawKey draws = key->draws();
  for (std::size_t i = thread_in_grid(); i < subset.drawn; i += threads_in_grid()) {
    const auto turn = static_cast<std::uint32_t>(i);
    const std::uint32_t place = subset.place(draws, turn);
    const Entry entry = static_cast<Entry>(place) << 32 | turn;
    for (std::size_t slot = subset.slot_of(place);; slot = subset.next(slot)) {
      const Entry was = atomicCAS(subset.table + slot, kFree, entry);
      if (was != kFree && was >> 32 != place) continue;
      if (was != kFree) atomicMin(subset.table + slot, entry);
      break;
    }
  }
}

__global__ void mark_kernel(RandomKSubset subset, const law::RandomKKey* key) {
  const law::DrawKey draws = key->draws();
  for (std::size_t i = thread_in_grid(); i < subset.drawn; i += threads_in_grid()) {
    const auto turn = static_cast<std::uint32_t>(i);
    const std::uint32_t mark = subset.taken(draws, turn) ? subset.n - subset.drawn + turn : subset.place(draws, turn);
    atomicOr(subset.marks + mark / 32, 1u << mark % 32);
  }
}

__global__ void count_kernel(RandomKSubset subset) {
  const unsigned lane = lane_in_warp();
  for (std::size_t t = warp_in_grid(); t < subset.tiles; t += warps_in_grid()) {
    unsigned count = 0;
    for (std::size_t w = lane; w < kTileWords; w += schedule::kLanes)
      count += static_cast<unsigned>(__popc(subset.sent(kTileWords * t + w)));
    count = __reduce_add_sync(kAllLanes, count);
    if (lane == 0) subset.before[t] = count;
  }
}

}  // namespace

RandomKWork::RandomKWork(const RandomKShape& shape, View<std::byte, Space::cuda> scratch) {
  const bool complement = shape.sent > shape.n / 2;
  const std::size_t drawn = complement ? shape.n - shape.sent : shape.sent;
  const std::size_t wanted = std::bit_ceil(std::max<std::size_t>(2 * drawn, 32));
  const std::size_t words = (shape.n + 31) / 32;
  subset = {.n = static_cast<std::uint32_t>(shape.n),
            .drawn = static_cast<std::uint32_t>(drawn),
            .complement = complement,
            .words = static_cast<std::uint32_t>(words),
            .table = nullptr,
            .slots = std::min(wanted, shape.n),
            .shift = static_cast<unsigned>(32 - std::bit_width(wanted - 1)),
            .marks = nullptr,
            .before = nullptr,
            .tiles = (words + kTileWords - 1) / kTileWords};
  ScratchPieces pieces{scratch};
  pieces.take(key, 1);
  pieces.take(subset.table, subset.slots);
  pieces.take(subset.marks, words);
  pieces.take(subset.before, subset.tiles);
  scan = pieces.take(scan_bytes<std::uint32_t>(subset.tiles));
  bytes = pieces.bytes();
}

void draw_subset(Queue<Space::cuda> queue, const RandomKWork& at) {
  const RandomKSubset& subset = at.subset;
  fill(queue, {reinterpret_cast<std::byte*>(subset.marks), 4 * std::size_t{subset.words}}, 0);
  if (subset.drawn > 0) {
    fill(queue, {reinterpret_cast<std::byte*>(subset.table), sizeof(Entry) * subset.slots}, 0xff);
    const unsigned grid = blocks_for(subset.drawn, kThreads);
    launch(queue, "randomk draw", draw_kernel, grid, subset, at.key);
    launch(queue, "randomk mark", mark_kernel, grid, subset, at.key);
  }
  launch(queue, "randomk count", count_kernel, blocks_for(subset.tiles, kBlockWarpCount), subset);
  scan_tiles(queue, subset.before, subset.tiles, at.scan);
}

}  // namespace gradtool::cuda
