#include "lib/codecs/gpu_block_codec.hpp"
#include "lib/methods/qsgd/format.hpp"
#include "lib/methods/qsgd/qsgd.hpp"

namespace gradtool {
namespace {

std::unique_ptr<Codec<Space::cuda>> make_gpu_qsgd(const Params& params, const Layout& layout) {
  if (params.is("code", "elias")) return make_gpu_qsgd_elias(params);
  const QsgdOptions options{params};
  std::unique_ptr<Codec<Space::cuda>> codec;
  format::with_qsgd_bits(options.bits, [&]<std::uint32_t Bits>() {
    codec = std::make_unique<GpuBlockCodec<format::QsgdFormat<Bits>>>(
        "qsgd", find_codec("qsgd").make_host(params, layout), format::QsgdFormat<Bits>{options.l2}, options.bucket,
        true);
  });
  return codec;
}

}  // namespace

extern constinit const GpuFactories qsgd_gpu{.codec = make_gpu_qsgd};

}  // namespace gradtool
