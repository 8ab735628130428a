#include <cuda_runtime.h>

#include "kernels/cuda/block_ops.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/select_chosen.hpp"
#include "kernels/cuda/select_digits.hpp"
#include "kernels/cuda/select_steps.hpp"
#include "kernels/law/keep_nan.hpp"

namespace gradtool::cuda {
namespace {

__global__ void count_kernel(SelectTiles tiles, const std::uint32_t* low, SelectState* state, std::uint64_t* before) {
  const std::uint32_t threshold = low == nullptr ? state->threshold : (*low == 0 ? 1u : *low) - 1;
  const unsigned lane = threadIdx.x % schedule::kLanes;
  for (std::size_t tile = warp_in_grid(); tile < tiles.size; tile += warps_in_grid()) {
    const std::uint32_t count = tiles.counts[tile];
    std::uint32_t above = 0;
    std::uint32_t equal = 0;
    for (std::uint32_t i = lane; i < count; i += schedule::kLanes) {
      const std::uint32_t magnitude = tiles.patterns[tile * SelectTiles::kTile + i] & kMagnitude;
      above += magnitude > threshold ? 1u : 0u;
      equal += magnitude == threshold ? 1u : 0u;
    }
    above = __reduce_add_sync(kAllLanes, above);
    equal = __reduce_add_sync(kAllLanes, equal);
    if (lane == 0) before[tile] = std::uint64_t{above} << 32 | equal;
  }
  if (thread_in_grid() != 0) return;
  before[tiles.size] = 0;
  if (low != nullptr) state->threshold = threshold;
}

__global__ void write_kernel(SelectChosen chosen, SelectState* state, std::uint32_t* positions, float* values) {
  const std::uint32_t threshold = state->threshold;
  const std::uint32_t ties = state->ties;
  for (std::size_t tile = warp_in_grid(); tile < chosen.tiles.size; tile += warps_in_grid()) {
    const std::size_t first = tile * SelectTiles::kTile;
    each_chosen(chosen, tile, threshold, ties, [&](std::size_t to, std::uint32_t i, std::uint32_t pattern) {
      positions[to] = static_cast<std::uint32_t>(first + chosen.tiles.places[first + i]);
      values[to] = law::one_nan(__uint_as_float(pattern));
    });
  }
  if (thread_in_grid() == 0) {
    const std::uint64_t all = chosen.before[chosen.tiles.size];
    const auto equal = static_cast<std::uint32_t>(all);
    state->count = static_cast<std::uint32_t>(all >> 32) + (equal < ties ? equal : ties);
    state->retry = 0;  // whoever reads the count back reads eight bytes
  }
}

}  // namespace

void select_count(Queue<Space::cuda> queue, const SelectTiles& tiles, const std::uint32_t* low, std::uint64_t* before,
                  SelectState* state) {
  launch(queue, "select count", count_kernel, blocks_for(tiles.size, kBlockWarpCount), tiles, low, state, before);
}

void select_write(Queue<Space::cuda> queue, const SelectChosen& chosen, std::uint32_t* positions, float* values,
                  SelectState* state) {
  launch(queue, "select write", write_kernel, blocks_for(chosen.tiles.size, kBlockWarpCount), chosen, state, positions,
         values);
}

}  // namespace gradtool::cuda
