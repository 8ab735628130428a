#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/block_ops.hpp"
#include "kernels/cuda/select.hpp"
#include "kernels/cuda/select_digits.hpp"

/// What a selection chose, for .cu files that write it.
namespace gradtool::cuda {

/// chosen(to, i, pattern) for candidate i of the tile where it is chosen, as number `to` of all that are; by a warp,
/// whose other lanes may not take part.
template <class Write>
__device__ void each_chosen(const SelectChosen& of, std::size_t tile, std::uint32_t threshold, std::uint32_t ties,
                            const Write& chosen) {
  const unsigned lane = threadIdx.x % schedule::kLanes;
  const std::uint32_t below = schedule::lanes_below(lane);
  const std::uint32_t* patterns = of.tiles.patterns + tile * SelectTiles::kTile;
  const std::uint32_t count = of.tiles.counts[tile];
  auto above = static_cast<std::uint32_t>(of.before[tile] >> 32);
  auto equal = static_cast<std::uint32_t>(of.before[tile]);
  for (std::uint32_t first = 0; first < count; first += schedule::kLanes) {
    const std::uint32_t i = first + lane;
    const std::uint32_t pattern = i < count ? patterns[i] : 0u;
    const std::uint32_t magnitude = pattern & kMagnitude;
    const bool is_above = i < count && magnitude > threshold;
    const bool is_equal = i < count && magnitude == threshold;
    const std::uint32_t all_above = __ballot_sync(kAllLanes, is_above);
    const std::uint32_t all_equal = __ballot_sync(kAllLanes, is_equal);
    const std::uint32_t tie = equal + static_cast<std::uint32_t>(__popc(all_equal & below));
    if (is_above || (is_equal && tie < ties)) {
      const std::uint32_t stronger = above + static_cast<std::uint32_t>(__popc(all_above & below));
      chosen(std::size_t{stronger} + (tie < ties ? tie : ties), i, pattern);
    }
    above += static_cast<std::uint32_t>(__popc(all_above));
    equal += static_cast<std::uint32_t>(__popc(all_equal));
  }
}

}  // namespace gradtool::cuda
