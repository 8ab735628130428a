#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/unit_launch.hpp"
#include "kernels/float_bits.hpp"
#include "lib/codecs/gpu_codec.hpp"

namespace gradtool {

namespace cuda {

struct alignas(8) FourHalves {
  std::uint16_t value[4];
};

/// How many fours of n elements may be moved by whole accesses: none where an array does not start at a border of them.
__device__ inline std::size_t whole_fours(const void* floats, const void* halves, std::size_t n) {
  return aligned_to(floats, sizeof(Four<float>)) && aligned_to(halves, sizeof(FourHalves)) ? n / 4 : 0;
}

/// to[i] := Type::encode(from[i], scale).
template <class Type>
struct EncodeHalves {
  float scale;

  static std::size_t blocks(std::size_t n) { return blocks_for(n, 4 * kThreads); }
  __device__ void run(const Unit& unit, std::uint32_t /*index*/, const Place& place) const {
    const auto* in = static_cast<const float*>(unit.from);
    auto* out = static_cast<std::uint16_t*>(unit.to);
    const std::size_t fours = whole_fours(in, out, unit.n);
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

/// to[i] += factor * Type::decode(from[i]).
template <class Type>
struct AddHalves {
  float factor;

  static std::size_t blocks(std::size_t n) { return blocks_for(n, 4 * kThreads); }
  __device__ void run(const Unit& unit, std::uint32_t /*index*/, const Place& place) const {
    const auto* in = static_cast<const std::uint16_t*>(unit.from);
    auto* out = static_cast<float*>(unit.to);
    const std::size_t fours = whole_fours(out, in, unit.n);
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

}  // namespace cuda

/// The GPU side of a cast to a 16-bit floating-point type, for .cu files. Type has device functions
/// `encode(float x, float scale)`, which returns the bits of x * scale, and `decode(bits)`.
template <class Type>
class GpuHalfCodec final : public BatchedGpuCodec {
 public:
  GpuHalfCodec(std::string_view name, const Params& params, float scale)
      : BatchedGpuCodec{name, params}, scale_{scale} {}

 private:
  [[nodiscard]] std::size_t payload_bytes(std::size_t n) const override { return 2 * n; }
  void encode_units(Queue<Space::cuda> queue, std::span<const cuda::Unit> units,
                    const EncodeContext& /*context*/) const override {
    cuda::launch_units(queue, "encode halves", cuda::EncodeHalves<Type>{scale_}, units);
  }
  void decode_units(Queue<Space::cuda> queue, std::span<const cuda::Unit> units, float weight) const override {
    cuda::launch_units(queue, "add halves", cuda::AddHalves<Type>{weight / scale_}, units);
  }

  float scale_;
};

}  // namespace gradtool
