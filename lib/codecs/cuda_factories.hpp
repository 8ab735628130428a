#pragma once

#include <memory>

#include "lib/codecs/codec.hpp"
#include "lib/codecs/layout.hpp"
#include "lib/codecs/params.hpp"

namespace gradtool {

// Factories of the codecs that have a CUDA version, defined in lib/codecs/cuda/. They exist only in builds with CUDA;
// GT_MAKE_CUDA in registry.hpp keeps them out of others.
std::unique_ptr<Codec<Space::cuda>> make_cuda_atomo(const Params& params, const Layout& layout);
std::unique_ptr<Codec<Space::cuda>> make_cuda_dct(const Params& params, const Layout& layout);
std::unique_ptr<Codec<Space::cuda>> make_cuda_none(const Params& params, const Layout& layout);
std::unique_ptr<Codec<Space::cuda>> make_cuda_noop(const Params& params, const Layout& layout);
std::unique_ptr<Codec<Space::cuda>> make_cuda_fp16(const Params& params, const Layout& layout);
std::unique_ptr<Codec<Space::cuda>> make_cuda_bf16(const Params& params, const Layout& layout);
std::unique_ptr<Codec<Space::cuda>> make_cuda_int8(const Params& params, const Layout& layout);
std::unique_ptr<Codec<Space::cuda>> make_cuda_fp8(const Params& params, const Layout& layout);
std::unique_ptr<Codec<Space::cuda>> make_cuda_mx(const Params& params, const Layout& layout);
std::unique_ptr<Codec<Space::cuda>> make_cuda_natural(const Params& params, const Layout& layout);
std::unique_ptr<Codec<Space::cuda>> make_cuda_qsgd(const Params& params, const Layout& layout);
std::unique_ptr<Codec<Space::cuda>> make_cuda_fft(const Params& params, const Layout& layout);
std::unique_ptr<Codec<Space::cuda>> make_cuda_terngrad(const Params& params, const Layout& layout);
std::unique_ptr<Codec<Space::cuda>> make_cuda_signsgd(const Params& params, const Layout& layout);
std::unique_ptr<Codec<Space::cuda>> make_cuda_efsignsgd(const Params& params, const Layout& layout);
std::unique_ptr<Codec<Space::cuda>> make_cuda_onebit(const Params& params, const Layout& layout);
std::unique_ptr<Codec<Space::cuda>> make_cuda_randomk(const Params& params, const Layout& layout);
std::unique_ptr<Codec<Space::cuda>> make_cuda_qgz(const Params& params, const Layout& layout);
std::unique_ptr<Codec<Space::cuda>> make_cuda_dlcp(const Params& params, const Layout& layout);
std::unique_ptr<Codec<Space::cuda>> make_cuda_adacomp(const Params& params, const Layout& layout);
std::unique_ptr<Codec<Space::cuda>> make_cuda_dgc(const Params& params, const Layout& layout);
std::unique_ptr<Codec<Space::cuda>> make_cuda_sidco(const Params& params, const Layout& layout);
std::unique_ptr<Codec<Space::cuda>> make_cuda_strom(const Params& params, const Layout& layout);
std::unique_ptr<Codec<Space::cuda>> make_cuda_topk(const Params& params, const Layout& layout);
std::unique_ptr<Codec<Space::cuda>> make_cuda_vgc(const Params& params, const Layout& layout);

}  // namespace gradtool
