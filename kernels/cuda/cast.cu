#include "kernels/cuda/cast.hpp"

#include <cuda_runtime.h>

#include "kernels/cuda/unit_launch.hpp"
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

std::size_t blocks_for_floats(std::size_t n) {
  return blocks_for(n, 4 * kThreads);
}

/// Elements that are taken by fours, of n.
__device__ std::size_t fours_of(const void* floats, const void* halves, std::size_t n) {
  return aligned_to(floats, 16) && aligned_to(halves, 8) ? n / 4 : 0;
}

template <class Type>
struct Encode {
  float scale;

  static std::size_t blocks(std::size_t n) { return blocks_for_floats(n); }
  __device__ void run(const Unit& unit, std::uint32_t /*index*/, const Place& place) const {
    const auto* in = static_cast<const float*>(unit.from);
    auto* out = static_cast<std::uint16_t*>(unit.to);
    const std::size_t fours = fours_of(in, out, unit.n);
    for (std::size_t i = place.thread(); i < fours; i += place.threads()) {
      const auto four = reinterpret_cast<const Four<float>*>(in)[i];
      FourHalves halves;
#pragma unroll
      for (int k = 0; k < 4; ++k) halves.value[k] = Type::encode(four.value[k], scale);
      reinterpret_cast<FourHalves*>(out)[i] = halves;
    }
    for (std::size_t i = 4 * fours + place.thread(); i < unit.n; i += place.threads())
      out[i] = Type::encode(in[i], scale);
  }
};

template <class Type>
struct Add {
  float factor;

  static std::size_t blocks(std::size_t n) { return blocks_for_floats(n); }
  __device__ void run(const Unit& unit, std::uint32_t /*index*/, const Place& place) const {
    const auto* in = static_cast<const std::uint16_t*>(unit.from);
    auto* out = static_cast<float*>(unit.to);
    const std::size_t fours = fours_of(out, in, unit.n);
    for (std::size_t i = place.thread(); i < fours; i += place.threads()) {
      const auto halves = reinterpret_cast<const FourHalves*>(in)[i];
      auto four = reinterpret_cast<Four<float>*>(out)[i];
#pragma unroll
      for (int k = 0; k < 4; ++k) four.value[k] += factor * Type::decode(halves.value[k]);
      reinterpret_cast<Four<float>*>(out)[i] = four;
    }
    for (std::size_t i = 4 * fours + place.thread(); i < unit.n; i += place.threads())
      out[i] += factor * Type::decode(in[i]);
  }
};

}  // namespace

void to_half(Queue<Space::cuda> queue, std::span<const Unit> units, float scale) {
  launch_units(queue, "to_half", Encode<Half>{scale}, units);
}
void add_half(Queue<Space::cuda> queue, std::span<const Unit> units, float factor) {
  launch_units(queue, "add_half", Add<Half>{factor}, units);
}
void to_bfloat(Queue<Space::cuda> queue, std::span<const Unit> units) {
  launch_units(queue, "to_bfloat", Encode<Bfloat>{1.0F}, units);
}
void add_bfloat(Queue<Space::cuda> queue, std::span<const Unit> units, float factor) {
  launch_units(queue, "add_bfloat", Add<Bfloat>{factor}, units);
}

}  // namespace gradtool::cuda
