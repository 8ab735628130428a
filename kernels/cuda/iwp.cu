#include "kernels/cuda/iwp.hpp"

#include <cuda_runtime.h>

#include "kernels/cuda/device_warp.hpp"
#include "kernels/cuda/grid.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/runtime.hpp"
#include "kernels/law/sparse.hpp"

namespace gradtool::cuda {
namespace {

constexpr std::uint32_t kAll = 0xffffffffu;
constexpr std::size_t kSumLanes = 8;  // running sums of a part
constexpr std::size_t kSmall = 1 << 15;

/// A warp adds part `part` of n elements: lanes 0 to 7 elements, lanes 8 to 15 squares, each to a sum of its own, in
/// order.
__device__ void add_part(const float* view, std::size_t n, std::size_t part, PartialMoments* out) {
  constexpr std::size_t kTile = 256;
  __shared__ float tile[kTile];
  const unsigned lane = threadIdx.x;
  const std::size_t parts = n < kSmall ? 1 : PartialMoments::kParts;
  const std::size_t units = (n + 7) / 8;
  const std::size_t begin = units * part / parts * 8, end = units * (part + 1) / parts * 8;
  const std::size_t first = begin < n ? begin : n, last = part < parts ? (end < n ? end : n) : first;
  double sum = 0.0;
  for (std::size_t at = first; at < last; at += kTile) {
    const std::size_t here = last - at < kTile ? last - at : kTile;
    for (std::size_t i = lane; i < here; i += schedule::kLanes) tile[i] = view[at + i];
    __syncwarp();
    if (lane < 2 * kSumLanes) {
#pragma unroll 8
      for (std::size_t i = lane % kSumLanes; i < here; i += kSumLanes) {
        const auto x = static_cast<double>(tile[i]);
        sum += lane < kSumLanes ? x : x * x;
      }
    }
    __syncwarp();
  }
  double total = 0.0;
  for (unsigned j = 0; j < kSumLanes; ++j) {
    const double other = __shfl_sync(kAll, sum, (lane / kSumLanes * kSumLanes + j) % schedule::kLanes);
    total += other;
  }
  if (lane == 0) out->sum[part] = total;
  if (lane == kSumLanes) out->squares[part] = total;
}

__global__ void moments_kernel(const float* view, std::size_t n, PartialMoments* out) {
  add_part(view, n, blockIdx.x, out);
}
__global__ void layer_moments_kernel(IwpLayers layers, PartialMoments* out) {
  const IwpLayer& layer = layers.layers[blockIdx.y];
  if (layer.elements > 0) add_part(layers.weight + layer.first, layer.elements, blockIdx.x, out + blockIdx.y);
}

struct Sums {
  double sum = 0.0, squares = 0.0;
};
/// Parts that are empty add nothing but 0.
__device__ Sums sums_of(const PartialMoments& moments) {
  Sums sums;
  for (std::size_t p = 0; p < PartialMoments::kParts; ++p) {
    sums.sum += moments.sum[p];
    sums.squares += moments.squares[p];
  }
  return sums;
}

__global__ void clip_kernel(const PartialMoments* moments, double most, float* factor) {
  if (threadIdx.x == 0) *factor = law::clip_factor(sums_of(*moments).squares, most);
}

__global__ void accumulate_kernel(const float* g, const float* factor, float mu, float* u, float* a, std::size_t n) {
  const float c = factor == nullptr ? 1.0f : *factor;
  for (std::size_t i = thread_in_grid(); i < n; i += threads_in_grid()) {
    float step = c * g[i];
    if (u != nullptr) {
      step = mu * u[i] + step;
      u[i] = step;
    }
    a[i] += step;
  }
}

__global__ void prepare_kernel(IwpLayers layers, law::IwpPolicy policy, double eps, const PartialMoments* moments) {
  for (std::size_t l = thread_in_grid(); l < layers.count; l += threads_in_grid()) {
    IwpLayer& layer = layers.layers[l];
    if (layer.elements == 0) continue;
    if (layers.weight != nullptr)
      layer.floor = law::importance_floor(sums_of(moments[l]).squares, eps, static_cast<double>(layer.elements));
    layer.used =
        policy.kind == law::IwpPolicy::Kind::fixed ? law::importance_threshold(policy, 0, 0, 1, 0) : layer.threshold;
  }
}

__device__ float importance_at(const IwpLayers& layers, const IwpLayer& layer, std::size_t i) {
  return layers.weight == nullptr ? law::importance(layers.held[i], 0.0f, 1.0f)
                                  : law::importance(layers.held[i], layers.weight[i], layer.floor);
}

__global__ void importances_kernel(IwpLayers layers, std::size_t l, float* out) {
  const IwpLayer layer = layers.layers[l];
  for (std::size_t i = thread_in_grid(); i < layer.elements; i += threads_in_grid())
    out[i] = importance_at(layers, layer, layer.first + i);
}

__global__ void quantile_kernel(const std::uint32_t* quantile, bool keep, IwpLayer* layer) {
  if (threadIdx.x != 0) return;
  layer->used = quantile == nullptr ? -1.0f : __uint_as_float(*quantile & 0x7fffffffu);
  if (keep) layer->threshold = layer->used;
}

__global__ void policy_kernel(law::IwpPolicy policy, const PartialMoments* moments, IwpLayer* layer) {
  if (threadIdx.x != 0) return;
  const Sums sums = sums_of(*moments);
  layer->used =
      law::importance_threshold(policy, sums.sum, sums.squares, static_cast<double>(layer->elements), layer->k);
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
    const std::uint32_t bits = __ballot_sync(kAll, sent);
    marked += static_cast<std::uint32_t>(__popc(bits));
    if (lane == 0 && bits != 0) atomicOr(&words[word], bits);
  }
  if (lane == 0 && marked != 0) atomicAdd(&layers.layers[blockIdx.y].marked, marked);
}

__global__ void steer_kernel(IwpLayers layers, law::IwpPolicy policy, bool still, std::uint64_t* positive) {
  for (std::size_t l = thread_in_grid(); l < layers.count; l += threads_in_grid()) {
    IwpLayer& layer = layers.layers[l];
    positive[l] = 0;
    if (layer.elements == 0) continue;
    const double reached = static_cast<double>(layer.marked) / static_cast<double>(layer.elements);
    if (!still) law::steer_importance(policy, reached, layer.threshold, layer.k);
    layer.marked = 0;
    positive[l] = layer.threshold > 0.0f ? 1 : 0;
  }
}

__global__ void mask_header_kernel(const SparseHeader* slot, MaskHeader* header) {
  if (threadIdx.x == 0) *header = {slot->bytes - sizeof(SparseHeader), slot->count, slot->code};
}
__global__ void slot_header_kernel(const MaskHeader* header, SparseHeader* slot) {
  if (threadIdx.x == 0) *slot = {header->bytes + sizeof(SparseHeader), header->count, header->code};
}

__global__ void non_zero_kernel(float* numbers, std::size_t n, std::uint32_t* words) {
  const unsigned lane = threadIdx.x % schedule::kLanes;
  for (std::size_t word = warp_in_grid(); 32 * word < n; word += warps_in_grid()) {
    const std::size_t i = 32 * word + lane;
    const bool marked = i < n && numbers[i] != 0.0f;
    if (marked) numbers[i] = 0.0f;
    const std::uint32_t bits = __ballot_sync(kAll, marked);
    if (lane == 0 && bits != 0) words[word] |= bits;
  }
}

constexpr unsigned kOne = schedule::kLanes;  // threads of what one thread does

}  // namespace

void partial_moments(Queue<Space::cuda> queue, View<const float, Space::cuda> view, PartialMoments* out) {
  launch(queue, "ordered moments", moments_kernel, {unsigned{PartialMoments::kParts}, schedule::kLanes}, view.data(),
         view.size(), out);
}

void clip_factor(Queue<Space::cuda> queue, const PartialMoments* moments, double most, float* factor) {
  launch(queue, "clip", clip_kernel, {1, kOne}, moments, most, factor);
}

void accumulate(Queue<Space::cuda> queue, const float* g, const float* factor, float mu, float* u, float* a,
                std::size_t n) {
  if (n == 0) return;
  launch(queue, "accumulate", accumulate_kernel, blocks_for(n, 4 * kThreads), g, factor, mu, u, a, n);
}

void prepare_layers(Queue<Space::cuda> queue, const IwpLayers& layers, const law::IwpPolicy& policy, double eps,
                    PartialMoments* moments) {
  if (layers.count == 0) return;
  if (layers.weight != nullptr) {
    Grid grid{unsigned{PartialMoments::kParts}, schedule::kLanes};
    grid.y = static_cast<unsigned>(layers.count);
    launch(queue, "moments of weights", layer_moments_kernel, grid, layers, moments);
  }
  launch(queue, "floors", prepare_kernel, blocks_for(layers.count, kThreads), layers, policy, eps, moments);
}

void importances(Queue<Space::cuda> queue, const IwpLayers& layers, std::size_t l, std::size_t n, float* out) {
  launch(queue, "importances", importances_kernel, blocks_for(n, 4 * kThreads), layers, l, out);
}
void use_quantile(Queue<Space::cuda> queue, const std::uint32_t* quantile, bool keep, IwpLayer* layer) {
  launch(queue, "quantile", quantile_kernel, {1, kOne}, quantile, keep, layer);
}
void use_policy(Queue<Space::cuda> queue, const law::IwpPolicy& policy, const PartialMoments* moments,
                IwpLayer* layer) {
  launch(queue, "threshold", policy_kernel, {1, kOne}, policy, moments, layer);
}

void mark_important(Queue<Space::cuda> queue, const IwpLayers& layers, float bernoulli, const law::DrawKey& key,
                    std::uint32_t* words) {
  if (layers.count == 0 || layers.largest == 0) return;
  const std::size_t most = 4096 / layers.count + 64;  // of blocks for a layer: most are small
  Grid grid{blocks_for(layers.largest + 31, 4 * kThreads, most)};
  grid.y = static_cast<unsigned>(layers.count);
  launch(queue, "mark", mark_kernel, grid, layers, bernoulli, key, words);
}

void steer(Queue<Space::cuda> queue, const IwpLayers& layers, const law::IwpPolicy& policy, bool still,
           std::uint64_t* positive) {
  if (layers.count == 0) return;
  launch(queue, "steer", steer_kernel, blocks_for(layers.count, kThreads), layers, policy, still, positive);
}

void header_of_mask(Queue<Space::cuda> queue, const std::byte* slot, MaskHeader* header) {
  launch(queue, "header of a mask", mask_header_kernel, {1, kOne}, reinterpret_cast<const SparseHeader*>(slot), header);
}
void header_of_slot(Queue<Space::cuda> queue, const MaskHeader* header, std::byte* slot) {
  launch(queue, "header of a slot", slot_header_kernel, {1, kOne}, header, reinterpret_cast<SparseHeader*>(slot));
}

void mark_non_zero(Queue<Space::cuda> queue, float* numbers, std::size_t n, std::uint32_t* words) {
  launch(queue, "mark what is not zero", non_zero_kernel, blocks_for(n, 4 * kThreads), numbers, n, words);
}

}  // namespace gradtool::cuda
