#include "lib/codecs/gpu_block_codec.hpp"
#include "lib/methods/qgz/format.hpp"
#include "lib/methods/qgz/reducer.hpp"

namespace gradtool {
namespace {

template <std::uint32_t Bits>
std::unique_ptr<Codec<Space::cuda>> make_codec(std::size_t block) {
  using Format = format::QgzFormat<Bits>;
  return std::make_unique<GpuBlockCodec<Format>>("qgz", make_qgz_codec(Bits, block), Format{}, block, false);
}

std::unique_ptr<Codec<Space::cuda>> make_gpu_qgz_codec(std::int64_t bits, std::size_t block) {
  return bits == 8 ? make_codec<8>(block) : make_codec<4>(block);
}

std::unique_ptr<Codec<Space::cuda>> make_gpu_qgz(const Params& params, const Layout& /*layout*/) {
  return make_gpu_qgz_codec(params.is("bits", "8") ? 8 : 4, static_cast<std::size_t>(params.integer("block")));
}

std::unique_ptr<Reducer<Space::cuda>> make_gpu_qgz_reducer(const ReducerSetup<Space::cuda>& setup) {
  return std::make_unique<QgzReducer<Space::cuda>>(setup, make_gpu_qgz_codec);
}

}  // namespace

extern constinit const GpuFactories qgz_gpu{.codec = make_gpu_qgz, .reducer = make_gpu_qgz_reducer};

}  // namespace gradtool
