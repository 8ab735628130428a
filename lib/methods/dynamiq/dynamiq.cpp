// DynamiQ: its parameters and description, and its reducer on the CPU.
#include "lib/codecs/registry.hpp"
#include "lib/methods/dynamiq/quantiser.hpp"
#include "lib/methods/dynamiq/reducer.hpp"

namespace gradtool {
namespace {

constexpr ParamInfo kParams[] = {
    real_param("bits", "5", {2.7, 8.7},
               "bits of an element on average, with all statistics and scales: widths are the largest within it")
        .searched("3|4|5|6|8"),
    choice_param("rounding", "correlated", "correlated|independent",
                 "whether ranks round an element in different directions, or each by a draw of its own"),
    choice_param("levels", "geometric", "geometric|uniform",
                 "levels whose distances grow by a factor, or evenly spaced ones")};

}  // namespace

extern constinit const CodecDescriptor dynamiq_codec{
    .name = "dynamiq",
    .summary = "sends partial sums round a ring in 2, 4 or 8 bits, with more bits for what weighs more",
    .reference = "Han et al., DynamiQ, SIGCOMM 2026, arXiv 2602.08923",
    .params = kParams,
    .aggregation = Aggregation::own,
    .memory = true,
    .determinism = Determinism::cross_backend,
    .payload = "at most bits n but for padding, and at least (2 + 0.6875) n bits",
    .passes =
        [](const Params&) {
          return MemoryPasses{.again = ReadAgain::unit, .why = "widths follow from sums over all ranks"};
        },
    .make_host_reducer = make_method_reducer<Space::host, DynamiqReducer<Space::host, HostDynamiq>>,
};

}  // namespace gradtool
