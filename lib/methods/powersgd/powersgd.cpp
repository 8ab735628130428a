// PowerSGD: its parameters and description, and its reducer on the CPU.
#include "lib/codecs/registry.hpp"
#include "lib/methods/powersgd/reducer.hpp"

namespace gradtool {

namespace {

constexpr ParamInfo kParams[] = {
    integer_param("rank", "2", {1, 256}, "columns of the factors P and Q, r").searched("1|2|4|8|16|32"),
    real_param("min_compression_rate", "2", {0.0, 1e6},
               "a matrix is sent as it is unless its factors have so many times fewer elements"),
    choice_param("warm_start", "on", "on|off",
                 "whether a step begins with the Q of the last step, or with a random one"),
    integer_param("start_iteration", "0", {0, 1e9},
                  "gradients of earlier training iterations are sent as they are; 0 because a replay does not train")};

}  // namespace

extern constinit const CodecDescriptor powersgd_codec{
    .name = "powersgd",
    .summary = "sends low-rank factors from one power iteration a step, which an all-reduce adds, with error feedback",
    .reference = "Vogels et al., PowerSGD, NeurIPS 2019, arXiv 1905.13727",
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
    .make_host_reducer = make_method_reducer<Space::host, PowerSgdReducer<Space::host, HostLowRankSteps>>,
};

}  // namespace gradtool
