#include "kernels/cuda/randomk.hpp"

#include <cuda_runtime.h>

#include "kernels/cuda/block_ops.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/randomk_subset.hpp"
#include "kernels/law/keep_nan.hpp"

namespace gradtool::cuda {
namespace {

__global__ void write_key(law::DrawKey key, float* trailer, law::RandomKKey* out) {
  if (threadIdx.x == 0) *out = law::RandomKKey::written(key, trailer);
}

__global__ void read_key(const float* trailer, law::RandomKKey* out) {
  if (threadIdx.x == 0) *out = law::RandomKKey::read(trailer);
}

/// body(place among the values, element) for all elements that are sent; a word's by its own lane each.
template <class Body>
__device__ void each_sent(const RandomKSubset& subset, const Body& body) {
  const unsigned lane = lane_in_warp();
  for (std::size_t t = warp_in_grid(); t < subset.tiles; t += warps_in_grid()) {
    std::uint32_t before = subset.before[t];
    for (std::size_t first = RandomKSubset::kTileWords * t; first < RandomKSubset::kTileWords * (t + 1);
         first += schedule::kLanes) {
      const std::uint32_t word = subset.sent(first + lane);
      const auto count = static_cast<std::uint32_t>(__popc(word));
      const std::uint32_t through = warp_sum_through(count);
      const std::uint32_t own = before + through - count;
      for (unsigned rest = __ballot_sync(kAllLanes, word != 0 ? 1 : 0); rest != 0; rest &= rest - 1) {
        const int w = __ffs(static_cast<int>(rest)) - 1;
        const std::uint32_t bits = __shfl_sync(kAllLanes, word, w);
        const std::uint32_t at = __shfl_sync(kAllLanes, own, w);
        if ((bits >> lane & 1u) != 0)
          body(at + static_cast<std::uint32_t>(__popc(bits & schedule::lanes_below(lane))),
               32 * (first + static_cast<std::size_t>(w)) + lane);
      }
      before += __shfl_sync(kAllLanes, through, schedule::kLanes - 1);
    }
  }
}

__global__ void gather_kernel(RandomKSubset subset, const float* gradient, float factor, float* values) {
  each_sent(subset, [&](std::uint32_t at, std::size_t i) { values[at] = law::times(gradient[i], factor); });
}

__global__ void scatter_kernel(RandomKSubset subset, const law::RandomKKey* key, const float* values, float weight,
                               float* out) {
  const float factor = key->valid ? weight : law::float_of(0x7fc00000u);
  each_sent(subset, [&](std::uint32_t at, std::size_t i) { out[i] += factor * values[at]; });
}

unsigned tile_grid(const RandomKWork& at) {
  return blocks_for(at.subset.tiles, kBlockWarpCount);
}

}  // namespace

std::size_t randomk_scratch_bytes(const RandomKShape& shape) {
  return shape.n == 0 ? 0 : RandomKWork{shape, {}}.bytes;
}

void randomk_encode(Queue<Space::cuda> queue, const RandomKShape& shape, const float* gradient, float factor,
                    const law::DrawKey& key, float* values, View<std::byte, Space::cuda> scratch) {
  if (shape.n == 0) return;
  const RandomKWork at{shape, scratch};
  launch(queue, "randomk key", write_key, {1, schedule::kLanes}, key, values + shape.sent, at.key);
  draw_subset(queue, at);
  launch(queue, "randomk gather", gather_kernel, tile_grid(at), at.subset, gradient, factor, values);
}

void randomk_decode_add(Queue<Space::cuda> queue, const RandomKShape& shape, const float* values, float weight,
                        float* out, View<std::byte, Space::cuda> scratch) {
  if (shape.n == 0) return;
  const RandomKWork at{shape, scratch};
  launch(queue, "randomk key", read_key, {1, schedule::kLanes}, values + shape.sent, at.key);
  draw_subset(queue, at);
  launch(queue, "randomk scatter", scatter_kernel, tile_grid(at), at.subset, at.key, values, weight, out);
}

}  // namespace gradtool::cuda
