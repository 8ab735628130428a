#include "lib/codecs/cuda_factories.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/codecs/sign_codec.hpp"

namespace gradtool {
namespace {

constexpr ParamInfo kParams[] = {{.name = "momentum",
                                  .default_value = "0",
                                  .min = 0.0,
                                  .max = 0.9999,
                                  .meaning = "beta of m = beta m + (1 - beta) g, whose signs are sent: Signum has 0.9"},
                                 {.name = "scale",
                                  .kind = ParamInfo::Kind::choice,
                                  .default_value = "mean",
                                  .choices = "mean|none",
                                  .meaning = "magnitude of the result: the ranks' mean |m| of each tensor, or 1 as in "
                                             "the paper"}};

}  // namespace

extern constinit const CodecDescriptor signsgd_codec{
    .name = "signsgd",
    .summary = "signs, one bit each way, decided by the majority of ranks",
    .reference = "Bernstein et al., signSGD, ICML 2018, arXiv 1802.04434; with majority vote, ICLR 2019, 1810.05291",
    .description =
        "Every rank sends the signs of its gradient, or of its momentum (Signum), one bit an element: an all-to-all "
        "of shards, a majority vote by the owner of each shard, an all-gather of the votes, 1/32 of a dense ring. "
        "Zero counts as positive and a tie of an even number of ranks is positive. In the paper the result is +1 or "
        "-1 and the learning rate sets its size; so that an error can be measured, the default (scale=mean) "
        "multiplies by the mean over ranks of each tensor's mean magnitude, 4 bytes a tensor and all-reduced; "
        "scale=none is the paper's, has no meaningful NMSE, and hides a value that is not finite in its sign. There "
        "is no error feedback: see efsignsgd. On one rank momentum is ignored. It pays when ranks are many and the "
        "optimiser is made for signs.",
    .params = kParams,
    .aggregation = Aggregation::own,
    .memory = true,
    .by_layout = true,
    .payload = "n + 32 T bits, T tensors, each padded to 32 bits; scale=none: without the 32 T",
    .make_host = [](const Params& p, const Layout& layout) -> std::unique_ptr<Codec<Space::host>> {
      return std::make_unique<SignCodec>("signsgd", layout, p.is("scale", "mean"));
    },
    .make_cuda = GT_MAKE_CUDA(make_cuda_signsgd),
    .cuda_reducer = GT_CUDA_REDUCER,
};

}  // namespace gradtool
