#include "lib/codecs/gpu_block_codec.hpp"
#include "lib/methods/int8/format.hpp"

namespace gradtool {
namespace {

std::unique_ptr<Codec<Space::cuda>> make_gpu_int8(const Params& params, const Layout& /*layout*/) {
  return make_gpu_block_codec<format::Int8Format>("int8", params, static_cast<std::size_t>(params.integer("block")));
}

}  // namespace

extern constinit const GpuFactories int8_gpu{.codec = make_gpu_int8};

}  // namespace gradtool
