#include "lib/codecs/gpu_block_codec.hpp"
#include "lib/methods/int8/format.hpp"

namespace gradtool {
namespace {

template <std::uint32_t Bits>
std::unique_ptr<Codec<Space::cuda>> make_gpu(const Params& params) {
  using Half = format::HalfScaledInt<Bits>;
  if (params.is("scale", "f16")) return make_gpu_block_codec<Half>("int8", params, Half::kBlock);
  return make_gpu_block_codec<format::FloatScaledInt<Bits>>("int8", params,
                                                            static_cast<std::size_t>(params.integer("block")));
}

std::unique_ptr<Codec<Space::cuda>> make_gpu_int8(const Params& params, const Layout& /*layout*/) {
  return params.is("bits", "8")   ? make_gpu<8>(params)
         : params.is("bits", "6") ? make_gpu<6>(params)
                                  : make_gpu<4>(params);
}

}  // namespace

extern constinit const GpuFactories int8_gpu{.codec = make_gpu_int8};

}  // namespace gradtool
