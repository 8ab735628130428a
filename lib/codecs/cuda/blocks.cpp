// int8, fp8 and mx: one class, a format each.
#include "lib/codecs/cuda/block.hpp"
#include "lib/codecs/cuda_factories.hpp"

namespace gradtool {
namespace {

std::size_t block_of(const Params& params) {
  return static_cast<std::size_t>(params.integer("block"));
}

template <class Format>
std::unique_ptr<Codec<Space::cuda>> make_mx(const Params& params) {
  return std::make_unique<CudaBlock<Format>>("mx", params, Format::kBlock);
}

}  // namespace

std::unique_ptr<Codec<Space::cuda>> make_cuda_int8(const Params& params, const Layout& /*layout*/) {
  return std::make_unique<CudaBlock<law::FloatScaled<law::SymmetricInt<8>>>>("int8", params, block_of(params));
}

std::unique_ptr<Codec<Space::cuda>> make_cuda_fp8(const Params& params, const Layout& /*layout*/) {
  if (params.is("format", "e5m2"))
    return std::make_unique<CudaBlock<law::Fp8Format<law::kE5M2>>>("fp8", params, block_of(params));
  return std::make_unique<CudaBlock<law::Fp8Format<law::kE4M3>>>("fp8", params, block_of(params));
}

std::unique_ptr<Codec<Space::cuda>> make_cuda_mx(const Params& params, const Layout& /*layout*/) {
  if (params.is("format", "e5m2")) return make_mx<law::MxFormat<law::kE5M2>>(params);
  if (params.is("format", "e3m2")) return make_mx<law::MxFormat<law::kE3M2>>(params);
  if (params.is("format", "e2m3")) return make_mx<law::MxFormat<law::kE2M3>>(params);
  if (params.is("format", "e2m1")) return make_mx<law::MxFormat<law::kE2M1>>(params);
  if (params.is("format", "int8")) return make_mx<law::MxFormat<law::SmallFixed{}>>(params);
  return make_mx<law::MxFormat<law::kE4M3>>(params);
}

}  // namespace gradtool
