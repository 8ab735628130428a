#include "kernels/cuda/iwp.hpp"

#include <cuda_runtime.h>

#include "kernels/cuda/device_warp.hpp"
#include "kernels/cuda/grid.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/runtime.hpp"
#include "kernels/law/sparse.hpp"

namespace gradtool::cuda {
namespace {

__device__ float importance_at(const IwpLayers& layers, const IwpLayer& layer, std::size_t i) {
  return layers.weight == nullptr ? law::importance(layers.held[i], 0.0f, 1.0f)
                                  : law::importance(layers.held[i], layers.weight[i], layer.floor);
}

__global__ void importances_kernel(IwpLayers layers, std::size_t l, float* out) {
  const IwpLayer layer = layers.layers[l];
  for (std::size_t i = thread_in_grid(); i < layer.elements; i += threads_in_grid())
    out[i] = importance_at(layers, layer, layer.first + i);
}

/// Blocks (x, layer): a warp for each word that has elements of the layer. Layers may share a word at their borders.
__global__ void mark_kernel(IwpLayers layers, float bernoulli, law::DrawKey key, std::uint32_t* words) {
  const IwpLayer layer = layers.layers[blockIdx.y];
  const std::size_t first = layer.first, last = first + layer.elements;
  const unsigned lane = threadIdx.x % schedule::kLanes;
  std::uint32_t marked = 0;
  for (std::size_t word = first / 32 + warp_in_grid(); layer.elements > 0 && 32 * word < last;
       word += warps_in_grid()) {
    const std::size_t i = 32 * word + lane;
    bool sent = false;
    if (i >= first && i < last) {
      const float importance = importance_at(layers, layer, i);
      sent = law::is_important(importance, layer.used);
      if (!sent && bernoulli > 0.0f)
        sent = law::uniform(law::draw4(key, i / 4).bits[i % 4]) * layer.used < bernoulli * importance;
    }
    const std::uint32_t bits = __ballot_sync(DeviceWarp::kAll, sent);
    marked += static_cast<std::uint32_t>(__popc(bits));
    if (lane == 0 && bits != 0) atomicOr(&words[word], bits);
  }
  if (lane == 0 && marked != 0) atomicAdd(&layers.layers[blockIdx.y].marked, marked);
}

__global__ void mask_header_kernel(const SparseHeader* slot, MaskHeader* header) {
  if (threadIdx.x == 0) *header = {slot->bytes - sizeof(SparseHeader), slot->count, slot->code};
}
__global__ void slot_header_kernel(const MaskHeader* header, SparseHeader* slot) {
  if (threadIdx.x == 0) *slot = {header->bytes + sizeof(SparseHeader), header->count, header->code};
}

constexpr unsigned kOne = schedule::kLanes;  // threads of what one thread does

}  // namespace

void importances(Queue<Space::cuda> queue, const IwpLayers& layers, std::size_t l, std::size_t n, float* out) {
  launch(queue, "importances", importances_kernel, blocks_for(n, 4 * kThreads), layers, l, out);
}
void mark_important(Queue<Space::cuda> queue, const IwpLayers& layers, float bernoulli, const law::DrawKey& key,
                    std::uint32_t* words) {
  if (layers.count == 0 || layers.largest == 0) return;
  const std::size_t most = 4096 / layers.count + 64;  // of blocks for a layer: most are small
  Grid grid{blocks_for(layers.largest + 31, 4 * kThreads, most)};
  grid.y = static_cast<unsigned>(layers.count);
  launch(queue, "mark", mark_kernel, grid, layers, bernoulli, key, words);
}

void header_of_mask(Queue<Space::cuda> queue, const std::byte* slot, MaskHeader* header) {
  launch(queue, "header of a mask", mask_header_kernel, {1, kOne}, reinterpret_cast<const SparseHeader*>(slot), header);
}
void header_of_slot(Queue<Space::cuda> queue, const MaskHeader* header, std::byte* slot) {
  launch(queue, "header of a slot", slot_header_kernel, {1, kOne}, header, reinterpret_cast<SparseHeader*>(slot));
}

}  // namespace gradtool::cuda
