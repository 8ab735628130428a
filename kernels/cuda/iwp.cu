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

/// A warp for each part. Lanes 0 to 7 add elements, lanes 8 to 15 squares, each to a sum of its own, in order.
__global__ void moments_kernel(const float* view, std::size_t n, std::size_t parts, PartialMoments* out) {
  constexpr std::size_t kTile = 256;
  __shared__ float tile[kTile];
  const unsigned lane = threadIdx.x;
  const std::size_t part = blockIdx.x;
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

__global__ void floor_kernel(const PartialMoments* moments, double eps, double elements, IwpLayer* layer) {
  if (threadIdx.x == 0) layer->floor = law::importance_floor(sums_of(*moments).squares, eps, elements);
}

__global__ void importances_kernel(const float* held, const float* weight, const IwpLayer* layer, float* out,
                                   std::size_t n) {
  const float floor = layer->floor;
  for (std::size_t i = thread_in_grid(); i < n; i += threads_in_grid())
    out[i] = weight == nullptr ? law::importance(held[i], 0.0f, 1.0f) : law::importance(held[i], weight[i], floor);
}

__global__ void kept_kernel(IwpLayer* layer) {
  if (threadIdx.x == 0) layer->used = layer->threshold;
}

__global__ void quantile_kernel(const std::uint32_t* quantile, bool all, bool keep, IwpLayer* layer) {
  if (threadIdx.x != 0) return;
  layer->used = all ? -1.0f : __uint_as_float(*quantile & 0x7fffffffu);
  if (keep) layer->threshold = layer->used;
}

__global__ void policy_kernel(law::IwpPolicy policy, const PartialMoments* moments, double elements, IwpLayer* layer) {
  if (threadIdx.x != 0) return;
  Sums sums;
  if (moments != nullptr) sums = sums_of(*moments);
  layer->used = law::importance_threshold(policy, sums.sum, sums.squares, elements, layer->k);
}

/// A warp for each word that has elements of the layer.
__global__ void mark_kernel(const float* all, std::size_t first, std::size_t last, float bernoulli, law::DrawKey key,
                            IwpLayer* layer, std::uint32_t* words) {
  const float threshold = layer->used;
  const unsigned lane = threadIdx.x % schedule::kLanes;
  std::uint32_t marked = 0;
  for (std::size_t word = first / 32 + warp_in_grid(); 32 * word < last; word += warps_in_grid()) {
    const std::size_t i = 32 * word + lane;
    bool sent = false;
    if (i >= first && i < last) {
      sent = law::is_important(all[i], threshold);
      if (!sent && bernoulli > 0.0f)
        sent = law::uniform(law::draw4(key, i / 4).bits[i % 4]) * threshold < bernoulli * all[i];
    }
    const std::uint32_t bits = __ballot_sync(kAll, sent);
    marked += static_cast<std::uint32_t>(__popc(bits));
    if (lane == 0 && bits != 0) words[word] |= bits;  // layers follow each other, so nobody else has the word
  }
  if (lane == 0 && marked != 0) atomicAdd(&layer->marked, marked);
}

__global__ void steer_kernel(law::IwpPolicy policy, double elements, bool still, IwpLayer* layer,
                             std::uint64_t* positive) {
  if (threadIdx.x != 0) return;
  if (!still) law::steer_importance(policy, static_cast<double>(layer->marked) / elements, layer->threshold, layer->k);
  layer->marked = 0;
  *positive = layer->threshold > 0.0f ? 1 : 0;
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
  const std::size_t parts = view.size() < kSmall ? 1 : PartialMoments::kParts;
  launch(queue, "ordered moments", moments_kernel, {unsigned{PartialMoments::kParts}, schedule::kLanes}, view.data(),
         view.size(), parts, out);
}

void clip_factor(Queue<Space::cuda> queue, const PartialMoments* moments, double most, float* factor) {
  launch(queue, "clip", clip_kernel, {1, kOne}, moments, most, factor);
}

void accumulate(Queue<Space::cuda> queue, const float* g, const float* factor, float mu, float* u, float* a,
                std::size_t n) {
  if (n == 0) return;
  launch(queue, "accumulate", accumulate_kernel, blocks_for(n, 4 * kThreads), g, factor, mu, u, a, n);
}

void layer_floor(Queue<Space::cuda> queue, const PartialMoments* moments, double eps, std::size_t elements,
                 IwpLayer* layer) {
  launch(queue, "importance floor", floor_kernel, {1, kOne}, moments, eps, static_cast<double>(elements), layer);
}

void importances(Queue<Space::cuda> queue, const float* held, const float* weight, const IwpLayer* layer, float* out,
                 std::size_t n) {
  launch(queue, "importances", importances_kernel, blocks_for(n, 4 * kThreads), held, weight, layer, out, n);
}

void use_kept(Queue<Space::cuda> queue, IwpLayer* layer) {
  launch(queue, "kept threshold", kept_kernel, {1, kOne}, layer);
}
void use_quantile(Queue<Space::cuda> queue, const std::uint32_t* quantile, bool all, bool keep, IwpLayer* layer) {
  launch(queue, "quantile", quantile_kernel, {1, kOne}, quantile, all, keep, layer);
}
void use_policy(Queue<Space::cuda> queue, const law::IwpPolicy& policy, const PartialMoments* moments,
                std::size_t elements, IwpLayer* layer) {
  launch(queue, "threshold", policy_kernel, {1, kOne}, policy, moments, static_cast<double>(elements), layer);
}

void mark_important(Queue<Space::cuda> queue, const float* all, std::size_t first, std::size_t count, float bernoulli,
                    const law::DrawKey& key, IwpLayer* layer, std::uint32_t* words) {
  launch(queue, "mark", mark_kernel, blocks_for(count + 31, 4 * kThreads, 1024), all, first, first + count, bernoulli,
         key, layer, words);
}

void steer(Queue<Space::cuda> queue, const law::IwpPolicy& policy, std::size_t elements, bool still, IwpLayer* layer,
           std::uint64_t* positive) {
  launch(queue, "steer", steer_kernel, {1, kOne}, policy, static_cast<double>(elements), still, layer, positive);
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
