#include <cuda_runtime.h>

#include "kernels/cuda/block_ops.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/vgc.hpp"
#include "kernels/cuda/vgc_work.hpp"

namespace gradtool::cuda {
namespace {

using law::Vgc;

/// One block: where the words of each group start, and whether the counts fit each other and the view.
__global__ void starts_kernel(VgcCut cut, const std::byte* payload, std::size_t size, std::uint64_t* starts) {
  __shared__ std::uint32_t wrong;
  if (threadIdx.x == 0) wrong = 0;
  __syncthreads();
  const auto* counts = reinterpret_cast<const std::uint32_t*>(payload + cut.counts_offset);
  std::uint64_t before = 0;
  for (std::size_t first = 0; first < cut.group_count; first += kThreads) {
    const std::size_t k = first + threadIdx.x;
    std::uint64_t own = k < cut.group_count ? counts[k] : 0u;
    if (k < cut.group_count && own > cut.groups[k].elements) {
      own = 0;
      wrong = 1;
    }
    std::uint64_t total = 0;
    const std::uint64_t through = block_sum_through(own, total);
    if (k < cut.group_count) starts[k] = before + through - own;
    before += total;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  const std::uint64_t bytes = *reinterpret_cast<const std::uint64_t*>(payload);
  starts[cut.group_count] = before;
  starts[cut.group_count + 1] = wrong == 0 && bytes <= size && bytes == cut.words_offset + 4 * before ? 1 : 0;
}

__global__ void add_kernel(VgcCut cut, Vgc law, const std::byte* payload, const std::uint64_t* starts, float weight,
                           std::size_t elements, float* out) {
  const float nan = __uint_as_float(0x7fc00000u);
  if (starts[cut.group_count + 1] == 0) {
    for (std::size_t i = thread_in_grid(); i < elements; i += threads_in_grid()) out[i] = nan;
    return;
  }
  const bool hybrid = law.tau > 0.0F;
  const std::uint32_t mask = hybrid ? 0x7fffffffu : 0x0fffffffu;
  const std::uint32_t size = __float_as_uint(weight * law.tau);
  const auto* exponents = reinterpret_cast<const std::uint8_t*>(payload + cut.exponents_offset);
  const auto* words = reinterpret_cast<const std::uint32_t*>(payload + cut.words_offset);
  const std::uint64_t total = starts[cut.group_count];
  for (std::uint64_t i = thread_in_grid(); i < total; i += threads_in_grid()) {
    std::size_t group = 0;  // the last that starts at or before it
    for (std::size_t left = cut.group_count; left > 1;) {
      const std::size_t half = left / 2;
      if (starts[group + half] <= i) group += half;
      left -= half;
    }
    const std::uint32_t word = words[i];
    const std::uint32_t exponent = exponents[group];
    if ((word & mask) >= cut.groups[group].elements) continue;
    float& to = out[cut.groups[group].first + (word & mask)];
    if (exponent == Vgc::kNotFinite)
      to += nan;
    else if (hybrid)
      to += __uint_as_float(size ^ (word & ~mask));
    else if (Vgc::steps_of(word) < exponent)
      to += weight * Vgc::value_of(word, exponent);
  }
}

}  // namespace

void vgc_decode_add(Queue<Space::cuda> queue, const VgcCut& cut, const law::Vgc& law,
                    View<const std::byte, Space::cuda> payload, float weight, std::size_t elements, float* out,
                    View<std::byte, Space::cuda> scratch) {
  const VgcWork work{cut.tile_count, cut.group_count, scratch};
  launch(queue, "vgc starts", starts_kernel, 1, cut, payload.data(), payload.size(), work.starts);
  launch(queue, "vgc add", add_kernel, blocks_for(payload.size() / 4, kThreads, 2048), cut, law, payload.data(),
         work.starts, weight, elements, out);
}

}  // namespace gradtool::cuda
