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
