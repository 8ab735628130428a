#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/host/largest.hpp"
#include "lib/reduce/cuda_reducers.hpp"
#include "lib/reduce/lhc_reducer.hpp"
#include "lib/reduce/marks.hpp"
#include "lib/reduce/peeling.hpp"

namespace gradtool {
namespace {

class HostSide final : public LhcSide<Space::host> {
 public:
  HostSide(Queue<Space::host> queue, const LhcPlan& plan)
      : plan_{plan}, loads_(plan.lanes), table_{queue, plan.n, plan.lanes, plan.most_rows, plan.seed} {}

  [[nodiscard]] std::size_t scratch_bytes() const override { return host::Largest::scratch_bytes(plan_.n); }

  void keep(Queue<Space::host> queue, HostView<const float> u, HostView<float> residual,
            HostView<std::uint32_t> positions, HostView<float> values, HostView<std::uint32_t> marks,
            HostView<std::byte> scratch) override {
    host::Largest{queue, u, scratch}.select(positions, values.data());
    std::fill(marks.span().begin(), marks.span().end(), 0U);
    for (const std::uint32_t i : positions.span()) marks[i / 32] |= 1U << i % 32;
    if (residual.empty()) return;
    for (const std::uint32_t i : positions.span()) residual[i] = 0.0F;
  }

  void merge(Queue<Space::host> /*queue*/, HostView<const std::uint32_t> other,
             HostView<std::uint32_t> words) override {
    for (std::size_t w = 0; w < words.size(); ++w) words[w] |= other[w];
  }

  [[nodiscard]] std::size_t fullest_lane(Queue<Space::host> /*queue*/, HostView<const std::uint32_t> marks,
                                         HostView<std::byte> /*scratch*/) override {
    std::fill(loads_.begin(), loads_.end(), 0U);
    for_each_mark({}, marks, [&](std::size_t, std::size_t i) { ++loads_[i % plan_.lanes]; });
    return *std::max_element(loads_.begin(), loads_.end());
  }

  void set_rows(std::size_t rows) override { table_.set_rows(rows); }
  [[nodiscard]] std::size_t cells() const override { return table_.cells(); }
  void write(Queue<Space::host> /*queue*/, HostView<const std::uint32_t> positions, HostView<const float> values,
             HostView<float> table, HostView<std::byte> /*scratch*/) override {
    table_.write(positions, values, table);
  }
  void write_whole(Queue<Space::host> /*queue*/, HostView<const std::uint32_t> positions, HostView<const float> values,
                   HostView<float> out) override {
    std::fill(out.span().begin(), out.span().end(), 0.0F);
    for (std::size_t k = 0; k < positions.size(); ++k) out[positions[k]] = values[k];
  }
  std::size_t read(Queue<Space::host> queue, HostView<std::uint32_t> marks, HostView<float> table, float factor,
                   HostView<float> out, HostView<std::byte> /*scratch*/) override {
    return table_.read(queue, marks, table, factor, out);
  }

 private:
  LhcPlan plan_;
  std::vector<std::uint32_t> loads_;
  PeelingTable table_;
};

}  // namespace

std::unique_ptr<LhcSide<Space::host>> make_lhc_side(Queue<Space::host> queue, const LhcPlan& plan) {
  return std::make_unique<HostSide>(queue, plan);
}

void copy_floats(Queue<Space::host> /*queue*/, HostView<const float> in, HostView<float> out) {
  std::copy(in.span().begin(), in.span().end(), out.data());
}

extern constinit const OwnReducer lhc_reducer{
    .codec = "lhc",
    .make_host = [](const ReducerSetup<Space::host>& setup) -> std::unique_ptr<Reducer<Space::host>> {
      return std::make_unique<LhcReducer<Space::host>>(setup);
    },
    .make_cuda = GT_MAKE_CUDA(make_cuda_lhc),
};

}  // namespace gradtool
