#include <cmath>

#include "kernels/float_bits.hpp"
#include "lib/codecs/gpu_half_codec.hpp"

namespace gradtool {
namespace {

struct Binary16 {
  static __device__ std::uint16_t encode(float x, float scale) {
#if defined(__CUDA_ARCH__)
    // The GPU's own conversion gives the same bits in fewer instructions, but for NaNs, whose sign it drops.
    const std::uint32_t bits = format::bits_of(x);
    std::uint16_t half = 0;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(x * scale));
    return (bits & 0x7fffffffu) > 0x7f800000u ? static_cast<std::uint16_t>((bits >> 16 & 0x8000u) | 0x7e00u) : half;
#else
    return format::f16_from_f32(format::times(x, scale));
#endif
  }
  static __device__ float decode(std::uint16_t bits) {
    return format::f32_from_f16(bits);
  }
};

std::unique_ptr<Codec<Space::cuda>> make_gpu_fp16(const Params& params, const Layout& /*layout*/) {
  const float scale = std::ldexp(1.0F, static_cast<int>(params.integer("scale_log2")));
  return std::make_unique<GpuHalfCodec<Binary16>>("fp16", params, scale);
}

}  // namespace

extern constinit const GpuFactories fp16_gpu{.codec = make_gpu_fp16};

}  // namespace gradtool
