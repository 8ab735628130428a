// ARC-Top-K: its parameters and description, and what its reducer does beside PowerSGD's first product on the CPU.
#include "lib/codecs/registry.hpp"
#include "lib/methods/arctopk/reducer.hpp"

namespace gradtool {
namespace {

class HostArcSteps : public HostLowRankSteps {
 public:
  using HostLowRankSteps::HostLowRankSteps;

  void keys(const RowSelection<Space::host>& rows, Queue<Space::host> queue, HostView<const float> p,
            HostView<std::uint32_t> keys) const {
    for_each_matrix(queue, [&](const LowRankMatrix& matrix) {
      std::uint32_t* own = keys.data() + rows.plan().matrices[place_of(matrix)].key_first;
      for (std::size_t row = 0; row < matrix.rows; ++row) own[row] = format::projected_key(matrix, p.data(), row);
    });
  }
};

constexpr ParamInfo kParams[] = {
    real_param("ratio", "0.2", {0.0, 1.0}, "share of the rows of a matrix that is sent, rounded up; at least one is")
        .searched("0.02|0.05|0.1|0.2|0.4"),
    integer_param("rank", "4", {1, 256}, "columns of the random projection that rows are chosen by, r"),
    integer_param("start_iteration", "0", {0, 1e9},
                  "gradients of earlier training iterations are sent as they are; 0 because a replay does not train")};

}  // namespace

extern constinit const CodecDescriptor arctopk_codec{
    .name = "arctopk",
    .summary =
        "sends the same rows on all ranks, chosen by a shared random projection, so that an all-reduce adds them",
    .reference = "ARC-Top-K, arXiv 2510.26709",
    .params = kParams,
    .aggregation = Aggregation::own,
    .error_feedback = true,
    .by_layout = true,
    .determinism = Determinism::run_to_run,
    .payload = "32 (sum over matrices of r rows + k columns, + other elements) bits, k = ceil(ratio rows)",
    .passes = [](const Params&) { return MemoryPasses{.again = ReadAgain::never, .why = "", .scatters = false}; },
    .make_host_reducer = make_method_reducer<Space::host, ArcTopKReducer<Space::host, HostArcSteps>>,
};

}  // namespace gradtool
