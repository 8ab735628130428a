#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/select.hpp"
#include "lib/methods/lhc/peeling.hpp"
#include "lib/methods/lhc/reducer.hpp"

namespace gradtool {
namespace {

constexpr ParamInfo kParams[] = {
    real_param("density", "0.01", {0.0, 1.0},
               "share of the elements that a rank keeps, those with the largest magnitude; at least one")
        .searched("0.001|0.004|0.016|0.064"),
    real_param("ratio", "10", {1.0, 1e6},
               "elements for each cell of the table; auto takes what the ranks' elements together need")
        .or_words("auto"),
    integer_param("block", "auto", {1, 1024},
                  "neighbours that are hashed together, a power of two, 1024 in the paper; auto: fewer where they "
                  "would hold too few kept elements to peel")
        .or_words("auto"),
    integer_param("seed", "42", {0, 9007199254740992.0}, "of the hash functions, the same on all ranks")};

/// The steps of a rank by itself, on a CPU; see LhcReducer.
class HostSteps {
 public:
  HostSteps(Queue<Space::host> queue, const LhcPlan& plan)
      : plan_{plan}, loads_(plan.lanes), table_{queue, plan.n, plan.lanes, plan.most_rows, plan.seed} {}

  [[nodiscard]] std::size_t scratch_bytes() const { return host::Largest::scratch_bytes(plan_.n, plan_.kept); }

  void keep(Queue<Space::host> queue, HostView<const float> u, HostView<float> residual,
            HostView<std::uint32_t> positions, HostView<float> values, HostView<std::uint32_t> marks,
            HostView<std::byte> scratch) const {
    host::Largest{queue, u, scratch}.select(positions, values.data());
    std::fill(marks.span().begin(), marks.span().end(), 0U);
    for (const std::uint32_t i : positions.span()) marks[i / 32] |= 1U << i % 32;
    if (residual.empty()) return;
    for (const std::uint32_t i : positions.span()) residual[i] = 0.0F;
  }
  void merge(Queue<Space::host> /*queue*/, HostView<const std::uint32_t> other, HostView<std::uint32_t> marks) const {
    for (std::size_t w = 0; w < marks.size(); ++w) marks[w] |= other[w];
  }
  [[nodiscard]] std::size_t fullest_lane(Queue<Space::host> /*queue*/, HostView<const std::uint32_t> marks,
                                         HostView<std::byte> /*scratch*/) {
    std::fill(loads_.begin(), loads_.end(), 0U);
    for_each_mark({}, marks, [&](std::size_t, std::size_t i) { ++loads_[i % plan_.lanes]; });
    return *std::max_element(loads_.begin(), loads_.end());
  }

  void set_rows(std::size_t rows) { table_.set_rows(rows); }
  [[nodiscard]] std::size_t cells() const { return table_.cells(); }
  void write(Queue<Space::host> /*queue*/, HostView<const std::uint32_t> positions, HostView<const float> values,
             HostView<float> table, HostView<std::byte> /*scratch*/) const {
    table_.write(positions, values, table);
  }
  void write_whole(Queue<Space::host> queue, HostView<const std::uint32_t> positions, HostView<const float> values,
                   HostView<float> out) const {
    fill_zero(queue, out);
    for (std::size_t k = 0; k < positions.size(); ++k) out[positions[k]] = values[k];
  }
  std::size_t read(Queue<Space::host> queue, HostView<std::uint32_t> marks, HostView<float> table, float factor,
                   HostView<float> out, HostView<std::byte> /*scratch*/) {
    return table_.read(queue, marks, table, factor, out);
  }
  void copy(Queue<Space::host> /*queue*/, HostView<const float> in, HostView<float> out) const {
    std::copy(in.span().begin(), in.span().end(), out.data());
  }

 private:
  LhcPlan plan_;
  std::vector<std::uint32_t> loads_;  ///< marked elements of each lane
  PeelingTable table_;
};

}  // namespace

extern constinit const CodecDescriptor lhc_codec{
    .name = "lhc",
    .summary = "sends sparse gradients in hash tables that an all-reduce adds; peeling finds the sums exactly",
    .reference = "Li et al., lossless homomorphic compression, arXiv 2402.07529",
    .params = kParams,
    .aggregation = Aggregation::own,
    .error_feedback = true,
    .determinism = Determinism::run_to_run,
    .payload = "n + 32 n / ratio bits",
    .make_host_reducer = make_method_reducer<Space::host, LhcReducer<Space::host, HostSteps>>,
};

}  // namespace gradtool
