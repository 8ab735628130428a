#include "kernels/cuda/cast.hpp"

#include <cuda_runtime.h>

#include "kernels/cuda/grid.hpp"
#include "kernels/cuda/runtime.hpp"
#include "kernels/law/half.hpp"
#include "kernels/law/keep_nan.hpp"
#include "kernels/schedule/warp.hpp"

namespace gradtool::cuda {
namespace {

using schedule::Four;

struct alignas(8) FourHalves {
  std::uint16_t value[4];
};

__global__ void to_half_kernel(const float* in, float scale, std::uint16_t* out, std::size_t count, std::size_t fours) {
  const std::size_t thread = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const std::size_t stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = thread; i < fours; i += stride) {
    const auto four = reinterpret_cast<const Four<float>*>(in)[i];
    FourHalves halves;
#pragma unroll
    for (int k = 0; k < 4; ++k) halves.value[k] = law::f16_from_f32(law::times(four.value[k], scale));
    reinterpret_cast<FourHalves*>(out)[i] = halves;
  }
  for (std::size_t i = 4 * fours + thread; i < count; i += stride) out[i] = law::f16_from_f32(law::times(in[i], scale));
}

__global__ void add_half_kernel(const std::uint16_t* in, float factor, float* out, std::size_t count,
                                std::size_t fours) {
  const std::size_t thread = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const std::size_t stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = thread; i < fours; i += stride) {
    const auto halves = reinterpret_cast<const FourHalves*>(in)[i];
    auto four = reinterpret_cast<Four<float>*>(out)[i];
#pragma unroll
    for (int k = 0; k < 4; ++k) four.value[k] += factor * law::f32_from_f16(halves.value[k]);
    reinterpret_cast<Four<float>*>(out)[i] = four;
  }
  for (std::size_t i = 4 * fours + thread; i < count; i += stride) out[i] += factor * law::f32_from_f16(in[i]);
}

std::size_t fours_of(const void* floats, const void* halves, std::size_t count) {
  return aligned_to(floats, 16) && aligned_to(halves, 8) ? count / 4 : 0;
}

}  // namespace

void to_half(Queue<Space::cuda> queue, View<const float, Space::cuda> in, float scale,
             View<std::uint16_t, Space::cuda> out) {
  expects(in.size() == out.size(), "a cast needs two views of the same size");
  if (out.empty()) return;
  to_half_kernel<<<blocks_for(out.size(), 4 * kThreads), kThreads, 0, queue.stream>>>(
      in.data(), scale, out.data(), out.size(), fours_of(in.data(), out.data(), out.size()));
  check_launch("to_half");
}

void add_half(Queue<Space::cuda> queue, View<const std::uint16_t, Space::cuda> in, float factor,
              View<float, Space::cuda> out) {
  expects(in.size() == out.size(), "a cast needs two views of the same size");
  if (out.empty()) return;
  add_half_kernel<<<blocks_for(out.size(), 4 * kThreads), kThreads, 0, queue.stream>>>(
      in.data(), factor, out.data(), out.size(), fours_of(out.data(), in.data(), out.size()));
  check_launch("add_half");
}

}  // namespace gradtool::cuda
