#include "kernels/cuda/strom.hpp"

#include <cuda_runtime.h>

#include "kernels/cuda/block_ops.hpp"
#include "kernels/cuda/launch.hpp"

namespace gradtool::cuda {
namespace {

constexpr std::size_t kPerWord = law::Strom::kCodesPerWord;
constexpr unsigned kFours = 4;  // loads of 16 bytes that a thread has under way

/// A thread makes a byte of four codes, so that a warp reads and writes without gaps.
__global__ void encode_kernel(const float* x, std::size_t n, bool aligned, law::Strom law, std::uint8_t* codes) {
  const std::size_t bytes = (n + kPerWord - 1) / kPerWord * 4;
  for (std::size_t first = std::size_t{blockIdx.x} * (kFours * kThreads) + threadIdx.x; first < bytes;
       first += std::size_t{gridDim.x} * (kFours * kThreads)) {
    uint4 loaded[kFours];
#pragma unroll
    for (unsigned j = 0; j < kFours; ++j) loaded[j] = four_patterns(x, first + j * kThreads, n, aligned);
#pragma unroll
    for (unsigned j = 0; j < kFours; ++j) {
      const auto code = [&](std::uint32_t pattern) { return law.code(__uint_as_float(pattern)); };
      const std::uint32_t all =
          code(loaded[j].x) | code(loaded[j].y) << 2 | code(loaded[j].z) << 4 | code(loaded[j].w) << 6;
      if (first + j * kThreads < bytes) codes[first + j * kThreads] = static_cast<std::uint8_t>(all);
    }
  }
}

__global__ void decode_kernel(const std::uint32_t* words, std::size_t n, bool aligned, float size, float* out) {
  for (std::size_t i = thread_in_grid(); 4 * i < n; i += threads_in_grid()) {
    const std::uint32_t word = words[i / 4];
    if (word == 0) continue;  // as the CPU: nothing is added, not even 0
    const std::uint32_t codes = word >> 8 * (i % 4);
    const auto value = [&](std::uint32_t j) { return law::Strom::value_of(codes >> 2 * j & 3u, size); };
    if (aligned && 4 * i + 4 <= n) {
      float4 sum = reinterpret_cast<const float4*>(out)[i];
      sum.x += value(0);
      sum.y += value(1);
      sum.z += value(2);
      sum.w += value(3);
      reinterpret_cast<float4*>(out)[i] = sum;
    } else {
      for (std::uint32_t j = 0; j < 4 && 4 * i + j < n; ++j) out[4 * i + j] += value(j);
    }
  }
}

__global__ void check_kernel(const float* values, const std::uint32_t* count, std::uint32_t* not_finite) {
  const std::size_t k = *count;
  bool found = false;
  for (std::size_t i = thread_in_grid(); i < k; i += threads_in_grid()) found = found || !law::Strom::finite(values[i]);
  if (found) atomicOr(not_finite, 1u);
}

}  // namespace

void strom_encode(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, law::Strom law,
                  std::byte* payload) {
  if (gradient.empty()) return;
  launch(queue, "strom encode", encode_kernel, blocks_for(gradient.size(), 4 * kFours * kThreads), gradient.data(),
         gradient.size(), aligned_to(gradient.data(), 16), law, reinterpret_cast<std::uint8_t*>(payload));
}

void strom_decode_add(Queue<Space::cuda> queue, const std::byte* payload, law::Strom law, float weight,
                      View<float, Space::cuda> out) {
  if (out.empty()) return;
  launch(queue, "strom decode", decode_kernel, blocks_for(out.size(), 16 * kThreads),
         reinterpret_cast<const std::uint32_t*>(payload), out.size(), aligned_to(out.data(), 16), weight * law.tau,
         out.data());
}

void strom_check(Queue<Space::cuda> queue, const float* values, const std::uint32_t* count, std::size_t most,
                 std::uint32_t* not_finite) {
  fill(queue, {reinterpret_cast<std::byte*>(not_finite), sizeof *not_finite}, 0);
  launch(queue, "strom check", check_kernel, blocks_for(most, 4 * kThreads, 1024), values, count, not_finite);
}

}  // namespace gradtool::cuda
