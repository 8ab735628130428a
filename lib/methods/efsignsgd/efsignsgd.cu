#include "lib/codecs/registry.hpp"
#include "lib/codecs/sign_codec.hpp"

namespace gradtool {
namespace {

std::unique_ptr<Codec<Space::cuda>> make_gpu_efsignsgd(const Params& params, const Layout& layout) {
  return make_gpu_sign_codec("efsignsgd", params, layout, true);
}

}  // namespace

extern constinit const GpuFactories efsignsgd_gpu{.codec = make_gpu_efsignsgd};

}  // namespace gradtool
