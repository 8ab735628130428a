// DynamiQ: its parameters and description, and its reducer on the CPU.
#include "lib/codecs/registry.hpp"
#include "lib/methods/dynamiq/quantiser.hpp"
#include "lib/methods/dynamiq/reducer.hpp"

namespace gradtool {
namespace {

constexpr ParamInfo kParams[] = {
    {.name = "bits",
     .default_value = "5",
     .min = 2.7,
     .max = 8.7,
     .search = "3|4|5|6|8",
     .meaning = "bits of an element on average, with all statistics and scales: widths are the largest within it"},
    {.name = "rounding",
     .kind = ParamInfo::Kind::choice,
     .default_value = "correlated",
     .choices = "correlated|independent",
     .meaning = "whether ranks round an element in different directions, or each by a draw of its own"},
    {.name = "levels",
     .kind = ParamInfo::Kind::choice,
     .default_value = "geometric",
     .choices = "geometric|uniform",
     .meaning = "levels whose distances grow by a factor, or evenly spaced ones"}};

}  // namespace

extern constinit const CodecDescriptor dynamiq_codec{
    .name = "dynamiq",
    .summary = "a ring that encodes partial sums again at every hop, with 2, 4 or 8 bits by what a super-group weighs",
    .reference = "Han et al., DynamiQ, SIGCOMM 2026, arXiv 2602.08923",
    .description =
        "Made for the hops of a ring all-reduce. A first, small all-reduce gives all ranks the mean and the sum of "
        "squares of every super-group of 256 elements; where the sum is larger, elements get 8 or 4 bits instead of 2, "
        "so that a bit more would take as much off the error everywhere, as far as the budget goes. The mean is "
        "subtracted, and at every hop partial sums are decoded, added and encoded again, in groups of 16 with levels "
        "that are denser near zero, a byte for the group's scale and a bfloat16 for the super-group's. Both roundings "
        "are random and without bias; correlated rounding lets ranks that share draws round in different directions, "
        "so that errors of the hops cancel, and gives up that later roundings are independent of earlier ones. Decided "
        "here, where the paper is silent: how non-uniform levels are (epsilon 0.3 with 4 bits, 0.0625 with 8, by the "
        "expected error of normal and Laplacian numbers), the search of thresholds among bfloat16 values instead of "
        "from step to step, one permutation of ranks a step, moved by a draw for each element. Payloads keep the order "
        "of super-groups, which the authors' kernels sort by width. It pays where links are slow and ranks have to "
        "meet on a ring; errors grow with the hops. A value that is not finite makes its super-group not a number.",
    .params = kParams,
    .aggregation = Aggregation::own,
    .memory = true,
    .determinism = Determinism::cross_backend,
    .payload = "at most bits n but for padding, and at least (2 + 0.6875) n bits",
    .passes =
        [](const Params&) {
          return MemoryPasses{.again = ReadAgain::unit, .why = "widths follow from sums over all ranks"};
        },
    .make_host = nullptr,
    .make_host_reducer = [](const ReducerSetup<Space::host>& setup) -> std::unique_ptr<Reducer<Space::host>> {
      return std::make_unique<DynamiqReducer<Space::host, HostDynamiq>>(setup);
    },
};

}  // namespace gradtool
