#include "kernels/cuda/cast.hpp"

#include <cuda_runtime.h>

#include "kernels/cuda/device_warp.hpp"
#include "kernels/cuda/grid.hpp"
#include "kernels/cuda/launch.hpp"
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

/// 16-bit floats as a kernel sees them.
struct Half {
  static __device__ std::uint16_t encode(float x, float scale) { return law::f16_from_f32(law::times(x, scale)); }
  static __device__ float decode(std::uint16_t bits) { return law::f32_from_f16(bits); }
};
struct Bfloat {
  static __device__ std::uint16_t encode(float x, float /*scale*/) { return law::bf16_from_f32(x); }
  static __device__ float decode(std::uint16_t bits) { return law::f32_from_bf16(bits); }
};

template <class Type>
__global__ void encode_kernel(const float* in, float scale, std::uint16_t* out, std::size_t count, std::size_t fours) {
  for (std::size_t i = thread_in_grid(); i < fours; i += threads_in_grid()) {
    const auto four = reinterpret_cast<const Four<float>*>(in)[i];
    FourHalves halves;
#pragma unroll
    for (int k = 0; k < 4; ++k) halves.value[k] = Type::encode(four.value[k], scale);
    reinterpret_cast<FourHalves*>(out)[i] = halves;
  }
  for (std::size_t i = 4 * fours + thread_in_grid(); i < count; i += threads_in_grid())
    out[i] = Type::encode(in[i], scale);
}

template <class Type>
__global__ void add_kernel(const std::uint16_t* in, float factor, float* out, std::size_t count, std::size_t fours) {
  for (std::size_t i = thread_in_grid(); i < fours; i += threads_in_grid()) {
    const auto halves = reinterpret_cast<const FourHalves*>(in)[i];
    auto four = reinterpret_cast<Four<float>*>(out)[i];
#pragma unroll
    for (int k = 0; k < 4; ++k) four.value[k] += factor * Type::decode(halves.value[k]);
    reinterpret_cast<Four<float>*>(out)[i] = four;
  }
  for (std::size_t i = 4 * fours + thread_in_grid(); i < count; i += threads_in_grid())
    out[i] += factor * Type::decode(in[i]);
}

std::size_t fours_of(const void* floats, const void* halves, std::size_t count) {
  return aligned_to(floats, 16) && aligned_to(halves, 8) ? count / 4 : 0;
}

template <class Type>
void encode(Queue<Space::cuda> queue, View<const float, Space::cuda> in, float scale,
            View<std::uint16_t, Space::cuda> out, const char* name) {
  expects(in.size() == out.size(), "a cast needs two views of the same size");
  if (out.empty()) return;
  launch(queue, name, encode_kernel<Type>, blocks_for(out.size(), 4 * kThreads), in.data(), scale, out.data(),
         out.size(), fours_of(in.data(), out.data(), out.size()));
}

template <class Type>
void add(Queue<Space::cuda> queue, View<const std::uint16_t, Space::cuda> in, float factor,
         View<float, Space::cuda> out, const char* name) {
  expects(in.size() == out.size(), "a cast needs two views of the same size");
  if (out.empty()) return;
  launch(queue, name, add_kernel<Type>, blocks_for(out.size(), 4 * kThreads), in.data(), factor, out.data(), out.size(),
         fours_of(out.data(), in.data(), out.size()));
}

}  // namespace

void to_half(Queue<Space::cuda> queue, View<const float, Space::cuda> in, float scale,
             View<std::uint16_t, Space::cuda> out) {
  encode<Half>(queue, in, scale, out, "to_half");
}
void add_half(Queue<Space::cuda> queue, View<const std::uint16_t, Space::cuda> in, float factor,
              View<float, Space::cuda> out) {
  add<Half>(queue, in, factor, out, "add_half");
}
void to_bfloat(Queue<Space::cuda> queue, View<const float, Space::cuda> in, View<std::uint16_t, Space::cuda> out) {
  encode<Bfloat>(queue, in, 1.0F, out, "to_bfloat");
}
void add_bfloat(Queue<Space::cuda> queue, View<const std::uint16_t, Space::cuda> in, float factor,
                View<float, Space::cuda> out) {
  add<Bfloat>(queue, in, factor, out, "add_bfloat");
}

}  // namespace gradtool::cuda
