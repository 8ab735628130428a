// The row selection of Dion2: parameters and description, and what rows are chosen by on the CPU.
#include "lib/codecs/registry.hpp"
#include "lib/core/task_pool.hpp"
#include "lib/methods/dion2/reducer.hpp"

namespace gradtool {
namespace {

constexpr ParamInfo kParams[] = {
    real_param("ratio", "0.25", {0.0, 1.0}, "share of the rows of a matrix that is sent, rounded up; at least one is")
        .searched("0.03125|0.0625|0.125|0.25|0.5"),
    real_param("mu", "0.95", {0.0, 0.9999}, "share of a row that stays in the momentum when it is sent"),
    choice_param("select", "l1", "l1|random",
                 "rows with the largest l1 norms, summed over ranks, or rows that all ranks draw alike")};

}  // namespace

void row_keys(Queue<Space::host> queue, HostView<const float> norms, HostView<std::uint32_t> keys) {
  parallel_for(queue, keys.size(), 16, 1 << 14, [&](std::size_t first, std::size_t last) {
    for (std::size_t i = first; i < last; ++i) keys[i] = format::row_key(norms[i]);
  });
}
void row_keys(Queue<Space::host> queue, const format::DrawKey& key, HostView<std::uint32_t> keys) {
  parallel_for(queue, keys.size(), 16, 1 << 12, [&](std::size_t first, std::size_t last) {
    for (std::size_t i = first; i < last; ++i) keys[i] = format::drawn_row_key(key, i);
  });
}

extern constinit const CodecDescriptor dion2_codec{
    .name = "dion2",
    .summary =
        "sends the same rows on all ranks of a momentum that every rank keeps for itself; other rows wait and grow",
    .reference = "Ahn, Amsel, Langford, Dion2: a simple method to shrink matrix in Muon, arXiv 2512.16928",
    .params = kParams,
    .aggregation = Aggregation::own,
    .memory = true,
    .by_layout = true,
    .target = "the momentum",
    .momentum = "mu",
    .payload =
        "32 (sum over matrices of k columns + rows, + other elements) bits, k = ceil(ratio rows); select=random: "
        "without the rows",
    .make_host_reducer = make_method_reducer<Space::host, Dion2Reducer<Space::host>>,
};

}  // namespace gradtool
