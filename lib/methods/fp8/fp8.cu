#include "lib/codecs/gpu_block_codec.hpp"
#include "lib/methods/fp8/format.hpp"

namespace gradtool {
namespace {

std::unique_ptr<Codec<Space::cuda>> make_gpu_fp8(const Params& params, const Layout& /*layout*/) {
  const auto block = static_cast<std::size_t>(params.integer("block"));
  if (params.is("format", "e5m2")) return make_gpu_block_codec<format::Fp8Format<format::kE5M2>>("fp8", params, block);
  return make_gpu_block_codec<format::Fp8Format<format::kE4M3>>("fp8", params, block);
}

}  // namespace

extern constinit const GpuFactories fp8_gpu{.codec = make_gpu_fp8};

}  // namespace gradtool
