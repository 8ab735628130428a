// PowerSGD: its parameters and description, and its reducer on the CPU.
#include "lib/codecs/registry.hpp"
#include "lib/methods/powersgd/reducer.hpp"

namespace gradtool {

namespace {

constexpr ParamInfo kParams[] = {
    {.name = "rank",
     .kind = ParamInfo::Kind::integer,
     .default_value = "2",
     .min = 1,
     .max = 256,
     .search = "1|2|4|8|16|32",
     .meaning = "columns of the factors P and Q, r"},
    {.name = "min_compression_rate",
     .default_value = "2",
     .min = 0.0,
     .max = 1e6,
     .meaning = "a matrix is sent as it is unless its factors have so many times fewer elements"},
    {.name = "warm_start",
     .kind = ParamInfo::Kind::choice,
     .default_value = "on",
     .choices = "on|off",
     .meaning = "whether a step begins with the Q of the last step, or with a random one"},
    {.name = "start_iteration",
     .kind = ParamInfo::Kind::integer,
     .default_value = "0",
     .min = 0,
     .max = 1e9,
     .meaning = "gradients of earlier training iterations are sent as they are; 0 because a replay does not train"}};

}  // namespace

extern constinit const CodecDescriptor powersgd_codec{
    .name = "powersgd",
    .summary = "low-rank factors from one power iteration a step, summed by the all-reduce, with error feedback",
    .reference = "Vogels et al., PowerSGD, NeurIPS 2019, arXiv 1905.13727",
    .description =
        "Every tensor of two or more dimensions is a matrix M, its first dimension by all others, of the gradient "
        "plus the residual. A step of training is one step of a power iteration: P = M Q is summed over the ranks and "
        "made orthonormal, Q = M^T P is summed, and the result is P Q^T; the residual keeps M - P Q^T, and Q starts "
        "the next step. One message carries all P, together with tensors of one dimension and matrices that would not "
        "shrink by min_compression_rate; a second one carries all Q. Decided here, where the paper is silent: "
        "Gram-Schmidt runs twice in float64, with an epsilon relative to the norm of the column, so that the result "
        "scales with the gradient; columns of Q that are zero or not finite are drawn anew, where the authors' code "
        "would stay at zero; start_iteration is 0, because it protects an optimiser, which a replay does not have. It "
        "pays on slow networks, since an all-reduce carries it whatever the number of ranks is; the price is three "
        "passes over the gradient and the latency of two messages. A gradient that is not finite stays in the "
        "residual.",
    .params = kParams,
    .aggregation = Aggregation::own,
    .error_feedback = true,
    .by_layout = true,
    .determinism = Determinism::run_to_run,
    .payload = "32 (sum over matrices of r (rows + columns) + other elements) bits",
    .passes =
        [](const Params&) {
          return MemoryPasses{.again = ReadAgain::unit,
                              .why = "the second product needs the sum over ranks of the first"};
        },
    .make_host = nullptr,
    .make_host_reducer = [](const ReducerSetup<Space::host>& setup) -> std::unique_ptr<Reducer<Space::host>> {
      return std::make_unique<PowerSgdReducer<Space::host, HostLowRankSteps>>(setup);
    },
};

}  // namespace gradtool
