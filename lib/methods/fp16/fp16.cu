#include <cmath>

#include "kernels/float_bits.hpp"
#include "lib/codecs/gpu_half_codec.hpp"

namespace gradtool {
namespace {

struct Binary16 {
  static __device__ std::uint16_t encode(float x, float scale) { return format::f16_from_f32(format::times(x, scale)); }
  static __device__ float decode(std::uint16_t bits) { return format::f32_from_f16(bits); }
};

std::unique_ptr<Codec<Space::cuda>> make_gpu_fp16(const Params& params, const Layout& /*layout*/) {
  const float scale = std::ldexp(1.0F, static_cast<int>(params.integer("scale_log2")));
  return std::make_unique<GpuHalfCodec<Binary16>>("fp16", params, scale);
}

}  // namespace

extern constinit const GpuFactories fp16_gpu{.codec = make_gpu_fp16};

}  // namespace gradtool
