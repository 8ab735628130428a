#include "lib/codecs/index_code.hpp"
#include "lib/codecs/registry.hpp"

namespace gradtool {
namespace {

constexpr ParamInfo kParams[] = {{.name = "ratio",
                                  .default_value = "0.01",
                                  .min = 0.0,
                                  .max = 1.0,
                                  .meaning = "k / n, on each rank and in the result; at least one element"},
                                 {.name = "period",
                                  .kind = ParamInfo::Kind::integer,
                                  .default_value = "32",
                                  .min = 1,
                                  .max = 1e6,
                                  .meaning = "steps after which both thresholds are computed exactly again"},
                                 {.name = "regions",
                                  .kind = ParamInfo::Kind::integer,
                                  .default_value = "64",
                                  .min = 1,
                                  .max = 1e6,
                                  .meaning = "steps after which the ranks agree on regions again"},
                                 {.name = "warmup",
                                  .kind = ParamInfo::Kind::integer,
                                  .default_value = "0",
                                  .min = 0,
                                  .max = 1e9,
                                  .meaning = "first steps that are not compressed; 512 in the authors' training"},
                                 kIndexParam};

}  // namespace

extern constinit const CodecDescriptor oktopk_codec{
    .name = "oktopk",
    .summary = "sparse all-reduce of the top k of the sum, in regions that ranks own, with error feedback",
    .reference = "Li and Hoefler, Ok-Topk, PPoPP 2022",
    .description =
        "Every rank picks what reaches its local threshold and sends each part to the rank that owns that region of "
        "the gradient; owners add, keep what reaches a global threshold, and all gather what is left, so that a rank "
        "sends about 4k values and indices, whatever the number of ranks, while thresholds fit. Thresholds are the "
        "exact k-th magnitude every `period` steps and drift by 1.2 % (local) and 0.8 % (global) in between when "
        "counts leave their bands; regions are cut so that the ranks' selections spread evenly. An element leaves "
        "the residual only where it was both sent by this rank and in the result. Decided here: parts travel with "
        "coded indices, sizes ahead of them; the step that evens out the parts before the last gather is left out, "
        "because on a ring every rank relays all parts but one anyway; the uncompressed start is off by default, as "
        "captures are short; zeros are never sent. While residuals still grow, thresholds of earlier steps let "
        "through more than k until they are exact again, on short captures several times k (the row says how many); "
        "a shorter period trades that for its gathers. Once residuals have settled it pays against topk from four "
        "ranks or so, and more with each rank.",
    .params = kParams,
    .aggregation = Aggregation::own,
    .error_feedback = true,
    .payload = "while thresholds hold, about 32 k for what others own + 32 k/p for what is kept, + coded indices",
    .make_host = nullptr,
    .make_cuda = nullptr,
    .cuda_reducer = GT_CUDA_REDUCER,
};

}  // namespace gradtool
