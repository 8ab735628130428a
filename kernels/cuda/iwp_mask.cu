#include "kernels/cuda/iwp.hpp"

#include <cuda_runtime.h>

#include "kernels/cuda/device_warp.hpp"
#include "kernels/cuda/grid.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/law/sparse.hpp"

namespace gradtool::cuda {
namespace {

__device__ float importance_at(const IwpLayers& layers, const IwpLayer& layer, std::size_t i) {
  return layers.weight == nullptr ? law::importance(layers.held[i], 0.0f, 1.0f)
                                  : law::importance(layers.held[i], layers.weight[i], layer.floor);
}

__device__ void write_importances(const IwpLayers& layers, const IwpLayer& layer, float* out) {
  for (std::size_t i = thread_in_grid(); i < layer.elements; i += threads_in_grid())
    out[i] = importance_at(layers, layer, layer.first + i);
}
__global__ void importances_kernel(IwpLayers layers, std::size_t l, float* out) {
  const IwpLayer layer = layers.layers[l];
  write_importances(layers, layer, out);
}
/// Blocks (x, layer).
__global__ void layer_importances_kernel(IwpLayers layers, float* out) {
  const IwpLayer layer = layers.layers[blockIdx.y];
  write_importances(layers, layer, out + layer.first);
}

constexpr std::uint32_t kBatch = 4;  // words of marks whose elements a warp has under way

/// Of element 32 word + lane: its group's draws lie in lane 8 word + lane / 4 of the warp's.
__device__ std::uint32_t draw_of(const law::Draws& draws, std::uint32_t word, unsigned lane) {
  std::uint32_t own = 0;
#pragma unroll
  for (unsigned d = 0; d < 4; ++d) {
    const std::uint32_t bits = __shfl_sync(kAllLanes, draws.bits[d], static_cast<int>(8 * word + lane / 4));
    if (lane % 4 == d) own = bits;
  }
  return own;
}

/// Blocks (x, layer): a warp for each batch of words. Layers may share a word at their borders: those are added to.
__global__ void mark_kernel(IwpLayers layers, float bernoulli, law::DrawKey key, std::uint32_t* words) {
  const IwpLayer layer = layers.layers[blockIdx.y];
  const std::size_t first = layer.first, last = first + layer.elements;
  const unsigned lane = threadIdx.x % schedule::kLanes;
  std::uint32_t marked = 0;
  for (std::size_t word = first / 32 + kBatch * warp_in_grid(); layer.elements > 0 && 32 * word < last;
       word += kBatch * warps_in_grid()) {
    float importance[kBatch];
#pragma unroll
    for (std::uint32_t b = 0; b < kBatch; ++b) {
      const std::size_t i = 32 * (word + b) + lane;
      importance[b] = i >= first && i < last ? importance_at(layers, layer, i) : 0.0f;
    }
    law::Draws draws{};
    if (bernoulli > 0.0f) draws = law::draw4(key, 8 * word + lane);  // a lane for every four elements of the batch
    std::uint32_t mine = 0;                                          // lane b keeps word b
#pragma unroll
    for (std::uint32_t b = 0; b < kBatch; ++b) {
      const std::size_t i = 32 * (word + b) + lane;
      bool sent = law::is_important(importance[b], layer.used);
      if (bernoulli > 0.0f)
        sent = law::uniform(draw_of(draws, b, lane)) * layer.used < bernoulli * importance[b] || sent;
      const std::uint32_t bits = __ballot_sync(kAllLanes, sent && i >= first && i < last);
      if (lane == b) mine = bits;
    }
    marked += static_cast<std::uint32_t>(__popc(mine));
    if (mine != 0) {
      const std::size_t own = word + lane;
      if (32 * own >= first && 32 * own + 32 <= last)
        words[own] = mine;
      else
        atomicOr(&words[own], mine);
    }
  }
  marked = __reduce_add_sync(kAllLanes, marked);
  if (lane == 0 && marked != 0) atomicAdd(&layers.layers[blockIdx.y].marked, marked);
}

__global__ void mask_header_kernel(const SparseHeader* slot, MaskHeader* header) {
  if (threadIdx.x == 0) *header = {slot->bytes - sizeof(SparseHeader), slot->count, slot->code};
}
__global__ void slot_header_kernel(const MaskHeader* header, SparseHeader* slot) {
  if (threadIdx.x == 0) *slot = {header->bytes + sizeof(SparseHeader), header->count, header->code};
}

constexpr unsigned kOne = schedule::kLanes;  // threads of what one thread does

/// Blocks (x, layer) that take this many elements each.
Grid grid_of(const IwpLayers& layers, std::size_t elements) {
  const std::size_t most = 4096 / layers.count + 64;  // of blocks for a layer: most are small
  Grid grid{blocks_for(layers.largest + 31, elements, most)};
  grid.y = static_cast<unsigned>(layers.count);
  return grid;
}

}  // namespace

void importances(Queue<Space::cuda> queue, const IwpLayers& layers, std::size_t l, std::size_t n, float* out) {
  launch(queue, "importances", importances_kernel, blocks_for(n, 4 * kThreads), layers, l, out);
}
void importances_of_layers(Queue<Space::cuda> queue, const IwpLayers& layers, float* out) {
  if (layers.count == 0 || layers.largest == 0) return;
  launch(queue, "importances of layers", layer_importances_kernel, grid_of(layers, 4 * kThreads), layers, out);
}
void mark_important(Queue<Space::cuda> queue, const IwpLayers& layers, float bernoulli, const law::DrawKey& key,
                    std::uint32_t* words) {
  if (layers.count == 0 || layers.largest == 0) return;
  launch(queue, "mark", mark_kernel, grid_of(layers, kBatch * kThreads), layers, bernoulli, key, words);
}

void header_of_mask(Queue<Space::cuda> queue, const std::byte* slot, MaskHeader* header) {
  launch(queue, "header of a mask", mask_header_kernel, {1, kOne}, reinterpret_cast<const SparseHeader*>(slot), header);
}
void header_of_slot(Queue<Space::cuda> queue, const MaskHeader* header, std::byte* slot) {
  launch(queue, "header of a slot", slot_header_kernel, {1, kOne}, header, reinterpret_cast<SparseHeader*>(slot));
}

}  // namespace gradtool::cuda
