#include "lib/codecs/registry.hpp"

namespace gradtool {
namespace {

constexpr ParamInfo kParams[] = {
    {.name = "rank",
     .kind = ParamInfo::Kind::integer,
     .default_value = "2",
     .min = 1,
     .max = 256,
     .meaning = "columns of the factors, r"},
    {.name = "min_compression_rate",
     .default_value = "2",
     .min = 0.0,
     .max = 1e6,
     .meaning = "matrices whose factors are not so many times smaller are sent as they are"},
    {.name = "warm_start",
     .kind = ParamInfo::Kind::choice,
     .default_value = "on",
     .choices = "on|off",
     .meaning = "whether a step begins with the last one's factor Q, or with a random one"},
    {.name = "start_iteration",
     .kind = ParamInfo::Kind::integer,
     .default_value = "0",
     .min = 0,
     .max = 1e9,
     .meaning = "training iterations before it are sent as they are; 0 because a replay does not train"}};

}  // namespace

extern constinit const CodecDescriptor powersgd_codec{
    .name = "powersgd",
    .summary = "low-rank factors from one power iteration a step, summed by the all-reduce, with error feedback",
    .reference = "Vogels et al., PowerSGD, NeurIPS 2019, arXiv 1905.13727",
    .description =
        "Every tensor of two or more dimensions is a matrix M, first dimension by all others, of gradient plus what "
        "was held back. P = M Q is summed over ranks and orthonormalised, Q = M^T P is summed, and the result is P "
        "Q^T; what it lacks of M is held back, and Q starts the next step. All P travel in one message, together "
        "with tensors of one dimension and matrices that would not shrink by min_compression_rate, all Q in a second "
        "one. We decided, where the paper is silent: Gram-Schmidt runs twice in float64 and an epsilon relative to "
        "the column, so that the result scales with the gradient; columns of Q that are zero or not finite are drawn "
        "anew, where the reference would stay at zero; start_iteration is 0, for it protects an optimiser that a "
        "replay does not have. It pays on slow networks, since it rides the sum whatever the number of ranks, for "
        "the price of three passes over the gradient and two latencies. A gradient that is not finite stays in what "
        "is held back.",
    .params = kParams,
    .aggregation = Aggregation::own,
    .error_feedback = true,
    .by_layout = true,
    .determinism = Determinism::run_to_run,
    .payload = "32 (sum over matrices of r (rows + columns) + other elements) bits",
    .make_host = nullptr,
    .make_cuda = nullptr,
    .cuda_reducer = GT_CUDA_REDUCER,
};

}  // namespace gradtool
