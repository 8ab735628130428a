#include "lib/codecs/cuda_factories.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/codecs/strom_forms.hpp"

namespace gradtool {
namespace {

constexpr ParamInfo kParams[] = {
    {.name = "tau",
     .default_value = "0.01",
     .min = 1e-30,
     .max = 1e30,
     .meaning = "what is sent, and the magnitude above which it is; in the units of the gradient"},
    {.name = "form",
     .kind = ParamInfo::Kind::choice,
     .default_value = "sparse",
     .choices = "sparse|dense",
     .meaning = "sparse: positions and signs; dense: two bits for every element, as MXNet's 2-bit compression"},
    {.name = "index",
     .kind = ParamInfo::Kind::choice,
     .default_value = "auto",
     .choices = "auto|words|u32|bitmap|elias",
     .meaning = "how sparse positions are written: words are 31 bits and the sign, as in the paper; the others have "
                "a bitmap of signs besides; auto takes the smallest"}};

}  // namespace

extern constinit const CodecDescriptor strom_codec{
    .name = "strom",
    .summary = "sends +-tau for what has grown beyond tau and keeps the rest, with error feedback",
    .reference = "Strom, Scalable Distributed DNN Training Using Commodity GPU Cloud Computing, Interspeech 2015",
    .description =
        "Adds the gradient to what was kept; where the sum is larger in magnitude than tau, tau with its sign is "
        "sent and taken off, so that an element moves by at most tau a step and large ones drain over several (error "
        "feedback, on by default, does exactly this). The paper sends 32-bit words of index and sign and notes that "
        "gaps compress further; here index=auto takes the smallest of words, bitmap and Elias codes. form=dense is "
        "the 2-bit compression of MXNet, whose threshold is 0.5 by default. tau is absolute, in the units of the "
        "gradient, as in the paper: take the magnitude that the wanted share of elements exceeds, say the 99 % "
        "quantile of |g|; too small a tau sends much and lags behind large gradients, too large a tau delays "
        "everything, and the paper and its successors find results very sensitive to it. Our decision: a value that "
        "is not finite is sent at once and makes the whole sparse payload decode to NaN.",
    .params = kParams,
    .aggregation = Aggregation::gather,
    .error_feedback = true,
    .payload = "128 + min(32 k, k + n, k + Elias) bits, k elements above tau; dense: 2 n bits",
    .make_host = [](const Params& p, const Layout&) -> std::unique_ptr<Codec<Space::host>> {
      const law::Strom law{static_cast<float>(p.real("tau"))};
      if (p.is("form", "dense")) return make_dense_strom(law);
      return make_sparse_strom(law, p.word("index"));
    },
    .make_cuda = GT_MAKE_CUDA(make_cuda_strom),
};

}  // namespace gradtool
