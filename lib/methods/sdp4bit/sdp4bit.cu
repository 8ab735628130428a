#include "lib/codecs/gpu_block_codec.hpp"
#include "lib/methods/sdp4bit/format.hpp"

namespace gradtool {
namespace {

template <std::uint32_t Bits>
std::unique_ptr<Codec<Space::cuda>> make_gpu(const Params& params) {
  return make_gpu_block_codec("sdp4bit", params, static_cast<std::size_t>(params.integer("block")),
                              format::Sdp4bitFormat<Bits>::of(params));
}

std::unique_ptr<Codec<Space::cuda>> make_gpu_sdp4bit(const Params& params, const Layout& /*layout*/) {
  return params.is("bits", "8") ? make_gpu<8>(params) : make_gpu<4>(params);
}

}  // namespace

extern constinit const GpuFactories sdp4bit_gpu{.codec = make_gpu_sdp4bit};

}  // namespace gradtool
