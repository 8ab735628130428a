#include "lib/codecs/gpu_block_codec.hpp"
#include "lib/methods/mx/format.hpp"

namespace gradtool {
namespace {

template <auto Type>
std::unique_ptr<Codec<Space::cuda>> make_gpu(const Params& params) {
  using Format = format::MxFormat<Type>;
  if (params.is("scale", "unit"))
    return make_gpu_block_codec<format::MxWideFormat<Type>>("mx", params, format::kWholeUnit);
  return make_gpu_block_codec<Format>("mx", params, Format::kBlock);
}

std::unique_ptr<Codec<Space::cuda>> make_gpu_mx(const Params& params, const Layout& /*layout*/) {
  if (params.is("format", "e5m2")) return make_gpu<format::kE5M2>(params);
  if (params.is("format", "e3m2")) return make_gpu<format::kE3M2>(params);
  if (params.is("format", "e2m3")) return make_gpu<format::kE2M3>(params);
  if (params.is("format", "e2m1")) return make_gpu<format::kE2M1>(params);
  if (params.is("format", "e3m0")) return make_gpu<format::kE3M0>(params);
  if (params.is("format", "int8")) return make_gpu<format::SmallFixed{}>(params);
  return make_gpu<format::kE4M3>(params);
}

}  // namespace

extern constinit const GpuFactories mx_gpu{.codec = make_gpu_mx};

}  // namespace gradtool
