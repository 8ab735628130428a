#include "kernels/float_bits.hpp"
#include "lib/codecs/gpu_half_codec.hpp"

namespace gradtool {
namespace {

struct Bfloat16 {
  static __device__ std::uint16_t encode(float x, float /*scale*/) { return format::bf16_from_f32(x); }
  static __device__ float decode(std::uint16_t bits) { return format::f32_from_bf16(bits); }
};

std::unique_ptr<Codec<Space::cuda>> make_gpu_bf16(const Params& params, const Layout& /*layout*/) {
  return std::make_unique<GpuHalfCodec<Bfloat16>>("bf16", params, 1.0F);
}

}  // namespace

extern constinit const GpuFactories bf16_gpu{.codec = make_gpu_bf16};

}  // namespace gradtool
