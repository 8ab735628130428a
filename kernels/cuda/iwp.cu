#include "kernels/cuda/iwp.hpp"

#include <cuda_runtime.h>

#include "kernels/cuda/grid.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/ordered_sums.hpp"

namespace gradtool::cuda {
namespace {

/// A warp for each chunk. Sums lie in front of the sums of squares.
__device__ void add_chunks(const float* view, std::size_t n, double* sums) {
  alignas(16) __shared__ float room[kChunkWarps][kTileRoom];
  const unsigned lane = lane_in_warp();
  const law::SumCut cut = law::sum_cut(n);
  for (std::size_t c = warp_in_grid(); c < cut.count; c += warps_in_grid()) {
    const std::size_t left = n - c * cut.chunk;
    const int count = static_cast<int>(left < cut.chunk ? left : cut.chunk);
    const double sum =
        chunk_moments(view + c * cut.chunk, count, room[threadIdx.x / schedule::kLanes], [](float /*x*/) {});
    if (lane % law::kSumLanes == 0) sums[lane == 0 ? c : cut.count + c] = sum;
  }
}

__global__ void moments_kernel(const float* view, std::size_t n, double* sums) {
  add_chunks(view, n, sums);
}
/// Blocks (x, layer).
__global__ void layer_moments_kernel(IwpLayers layers, const float* values, double* sums) {
  const IwpLayer& layer = layers.layers[blockIdx.y];
  add_chunks(values + layer.first, layer.elements, sums + 2 * layer.chunk);
}

struct Sums {
  double sum, squares;
};
/// By a block of kThreads.
__device__ Sums sums_of(const double* sums, std::size_t n) {
  __shared__ SumRoom<2> room;
  const std::size_t chunks = law::sum_cut(n).count;
  double total[2];
  sums_of_chunks<2>(sums, chunks, 0, chunks, room, total);
  return {total[0], total[1]};
}

__global__ void clip_kernel(const double* sums, std::size_t n, double most, float* factor) {
  const Sums of = sums_of(sums, n);
  if (threadIdx.x == 0) *factor = law::clip_factor(of.squares, most);
}

/// Blocks take a layer each.
__global__ void prepare_kernel(IwpLayers layers, law::IwpPolicy policy, double eps, const double* sums) {
  IwpLayer& layer = layers.layers[blockIdx.x];
  if (layer.elements == 0) return;
  Sums of{};
  if (layers.weight != nullptr) of = sums_of(sums + 2 * layer.chunk, layer.elements);
  if (threadIdx.x != 0) return;
  if (layers.weight != nullptr)
    layer.floor = law::importance_floor(of.squares, eps, static_cast<double>(layer.elements));
  layer.used =
      policy.kind == law::IwpPolicy::Kind::fixed ? law::importance_threshold(policy, 0, 0, 1, 0) : layer.threshold;
}

__global__ void quantile_kernel(const std::uint32_t* quantile, bool keep, IwpLayer* layer) {
  if (threadIdx.x != 0) return;
  layer->used = quantile == nullptr ? -1.0f : __uint_as_float(*quantile & 0x7fffffffu);
  if (keep) layer->threshold = layer->used;
}

/// Blocks take a layer each.
__global__ void policy_kernel(IwpLayers layers, law::IwpPolicy policy, const double* sums) {
  IwpLayer& layer = layers.layers[blockIdx.x];
  if (layer.elements == 0) return;
  const Sums of = sums_of(sums + 2 * layer.chunk, layer.elements);
  if (threadIdx.x == 0)
    layer.used = law::importance_threshold(policy, of.sum, of.squares, static_cast<double>(layer.elements), layer.k);
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

__device__ float accumulated(float g, float c, float mu, float* u, float a) {
  float step = c * g;
  if (u != nullptr) {
    step = mu * *u + step;
    *u = step;
  }
  return a + step;
}

/// The first 4 * fours elements by fours, the rest one by one.
__global__ void accumulate_kernel(const float* g, const float* factor, float mu, float* u, float* a, std::size_t n,
                                  std::size_t fours) {
  const float c = factor == nullptr ? 1.0f : *factor;
  for (std::size_t i = thread_in_grid(); i < fours; i += threads_in_grid()) {
    const Four<float> gs = reinterpret_cast<const Four<float>*>(g)[i];
    Four<float> as = reinterpret_cast<Four<float>*>(a)[i];
    Four<float> us{};
    if (u != nullptr) us = reinterpret_cast<Four<float>*>(u)[i];
#pragma unroll
    for (int k = 0; k < 4; ++k)
      as.value[k] = accumulated(gs.value[k], c, mu, u == nullptr ? nullptr : &us.value[k], as.value[k]);
    reinterpret_cast<Four<float>*>(a)[i] = as;
    if (u != nullptr) reinterpret_cast<Four<float>*>(u)[i] = us;
  }
  for (std::size_t i = 4 * fours + thread_in_grid(); i < n; i += threads_in_grid())
    a[i] = accumulated(g[i], c, mu, u == nullptr ? nullptr : u + i, a[i]);
}

constexpr unsigned kOne = schedule::kLanes;  // threads of what one thread does

Grid chunk_blocks(std::size_t n) {
  return {blocks_for(law::sum_cut(n).count, kChunkWarps), kChunkThreads};
}

void moments_of_layers(Queue<Space::cuda> queue, const IwpLayers& layers, const float* values, double* sums) {
  Grid grid = chunk_blocks(layers.largest);
  grid.y = static_cast<unsigned>(layers.count);
  launch(queue, "moments of layers", layer_moments_kernel, grid, layers, values, sums);
}

}  // namespace

void moments_of_chunks(Queue<Space::cuda> queue, View<const float, Space::cuda> view, double* sums) {
  launch(queue, "moments of chunks", moments_kernel, chunk_blocks(view.size()), view.data(), view.size(), sums);
}

void clip_factor(Queue<Space::cuda> queue, const double* sums, std::size_t n, double most, float* factor) {
  launch(queue, "clip", clip_kernel, 1, sums, n, most, factor);
}

void accumulate(Queue<Space::cuda> queue, const float* g, const float* factor, float mu, float* u, float* a,
                std::size_t n) {
  if (n == 0) return;
  const bool aligned = aligned_to(g, 16) && aligned_to(a, 16) && aligned_to(u, 16);
  launch(queue, "accumulate", accumulate_kernel, blocks_for(n, 4 * kThreads), g, factor, mu, u, a, n,
         aligned ? n / 4 : 0);
}

void prepare_layers(Queue<Space::cuda> queue, const IwpLayers& layers, const law::IwpPolicy& policy, double eps,
                    double* sums) {
  if (layers.count == 0) return;
  if (layers.weight != nullptr) moments_of_layers(queue, layers, layers.weight, sums);
  launch(queue, "floors", prepare_kernel, static_cast<unsigned>(layers.count), layers, policy, eps, sums);
}

void use_quantile(Queue<Space::cuda> queue, const std::uint32_t* quantile, bool keep, IwpLayer* layer) {
  launch(queue, "quantile", quantile_kernel, {1, kOne}, quantile, keep, layer);
}
void use_policy(Queue<Space::cuda> queue, const IwpLayers& layers, const law::IwpPolicy& policy,
                const float* importances, double* sums) {
  if (layers.count == 0 || layers.largest == 0) return;
  moments_of_layers(queue, layers, importances, sums);
  launch(queue, "thresholds", policy_kernel, static_cast<unsigned>(layers.count), layers, policy, sums);
}

void steer(Queue<Space::cuda> queue, const IwpLayers& layers, const law::IwpPolicy& policy, bool still,
           std::uint64_t* positive) {
  if (layers.count == 0) return;
  launch(queue, "steer", steer_kernel, blocks_for(layers.count, kThreads), layers, policy, still, positive);
}

}  // namespace gradtool::cuda
