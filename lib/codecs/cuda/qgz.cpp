#include "lib/codecs/cuda/block.hpp"
#include "lib/codecs/cuda_factories.hpp"
#include "lib/codecs/qgz_codec.hpp"

namespace gradtool {
namespace {

template <std::uint32_t Bits>
using CudaQgz = CudaBlock<law::FloatScaled<law::TwosComplement<Bits>>>;

}  // namespace

std::unique_ptr<Codec<Space::cuda>> make_cuda_qgz_codec(std::int64_t bits, std::size_t block) {
  auto host = make_qgz_codec(bits, block);
  if (bits == 8) return std::make_unique<CudaQgz<8>>("qgz", std::move(host), block);
  return std::make_unique<CudaQgz<4>>("qgz", std::move(host), block);
}

std::unique_ptr<Codec<Space::cuda>> make_cuda_qgz(const Params& params, const Layout& /*layout*/) {
  return make_cuda_qgz_codec(params.is("bits", "8") ? 8 : 4, static_cast<std::size_t>(params.integer("block")));
}

}  // namespace gradtool
