#include "kernels/cuda/fft_select.hpp"

#include <cuda_runtime.h>

#include "kernels/cuda/fft_largest.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/select_chosen.hpp"

namespace gradtool::cuda {
namespace {

using schedule::Pair;

/// Tiles of the selection by warps: their words of the bitmap, and their kept bins where they belong.
__global__ void keep_kernel(SelectChosen chosen, BinSelection at) {
  constexpr std::uint32_t kWords = SelectTiles::kTile / 32;
  __shared__ std::uint32_t room[kBlockWarpCount][kWords];
  std::uint32_t* words = room[threadIdx.x / schedule::kLanes];
  const unsigned lane = threadIdx.x % schedule::kLanes;
  const std::uint32_t threshold = chosen.state->threshold;
  const std::uint32_t ties = chosen.state->ties;
  std::uint32_t most = 0;
  for (std::size_t tile = warp_in_grid(); tile < chosen.tiles.size; tile += warps_in_grid()) {
    const std::size_t first = tile * SelectTiles::kTile;
    for (std::uint32_t w = lane; w < kWords; w += schedule::kLanes) words[w] = 0;
    __syncwarp();
    each_chosen(chosen, tile, threshold, ties, [&](std::size_t to, std::uint32_t i, std::uint32_t) {
      const std::uint32_t place = chosen.tiles.places[first + i];
      const Pair pair = reinterpret_cast<const Pair*>(at.spectrum)[first + place];
      reinterpret_cast<Pair*>(at.kept)[to] = pair;
      most = max(most, largest_of(pair));
      atomicOr(&words[place / 32], 1u << place % 32);
    });
    __syncwarp();
    for (std::uint32_t w = lane; w < kWords && first + 32 * w < at.bins; w += schedule::kLanes)
      at.bitmap[first / 32 + w] = words[w];
    __syncwarp();
  }
  block_largest(most, at.largest);
}

}  // namespace

std::size_t keep_work_bytes(std::size_t bins) {
  return Select::scratch_bytes(bins);
}

void keep_strongest(Queue<Space::cuda> queue, const BinSelection& of, std::size_t count,
                    View<std::byte, Space::cuda> work) {
  const Select select{queue, SelectSource{of.spectrum, of.bins, true}, work};
  select.largest(count);
  const SelectChosen chosen = select.chosen();
  launch(queue, "fft keep", keep_kernel, blocks_for(chosen.tiles.size, kBlockWarpCount), chosen, of);
}

}  // namespace gradtool::cuda
