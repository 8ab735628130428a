#include <algorithm>

#include "kernels/cuda/marks.hpp"
#include "kernels/cuda/peeling.hpp"
#include "kernels/cuda/select.hpp"
#include "kernels/cuda/vector.hpp"
#include "lib/reduce/cuda_reducers.hpp"
#include "lib/reduce/lhc_reducer.hpp"

namespace gradtool {
namespace {

using Bytes = View<std::byte, Space::cuda>;
template <class T>
using DeviceView = View<T, Space::cuda>;

class CudaSide final : public LhcSide<Space::cuda> {
 public:
  explicit CudaSide(const LhcPlan& plan)
      : plan_{plan},
        most_{std::min(plan.n, plan.ranks * plan.kept)},
        table_{plan.n, plan.lanes, plan.most_rows, most_, plan.seed},
        table_bytes_{table_.scratch_bytes()},
        select_bytes_{plan.n == 0 ? 0 : cuda::Select::scratch_bytes(plan.n)},
        mark_bytes_{cuda::mark_scratch_bytes(plan.n)},
        numbers_{sizeof(cuda::PeelingTable::Progress) / sizeof(std::uint64_t)} {}

  [[nodiscard]] std::size_t scratch_bytes() const override {
    const std::size_t reading =
        padded(table_bytes_) + padded(mark_bytes_) + padded(4 * most_) + padded(sizeof(std::uint32_t));
    return std::max({padded(select_bytes_), reading, padded(4 * plan_.lanes) + padded(8)});
  }

  void keep(Queue<Space::cuda> queue, DeviceView<const float> u, DeviceView<float> residual,
            DeviceView<std::uint32_t> positions, DeviceView<float> values, DeviceView<std::uint32_t> marks,
            Bytes scratch) override {
    cuda::fill(queue, as_writable_bytes(marks), 0);
    if (plan_.kept == 0) return;
    const cuda::Select select{queue, u, scratch.first(select_bytes_)};
    select.largest(plan_.kept);
    select.write(positions.data(), values.data());
    cuda::set_marks(queue, positions.data(), nullptr, positions.size(), marks.data());
    if (!residual.empty()) cuda::zero_at(queue, positions.data(), nullptr, positions.size(), residual.data());
  }

  void merge(Queue<Space::cuda> queue, DeviceView<const std::uint32_t> other,
             DeviceView<std::uint32_t> words) override {
    cuda::or_marks(queue, other, words);
  }

  [[nodiscard]] std::size_t fullest_lane(Queue<Space::cuda> queue, DeviceView<const std::uint32_t> marks,
                                         Bytes scratch) override {
    Carver<Space::cuda> carve{scratch};
    const auto loads = take<std::uint32_t>(carve, plan_.lanes);
    const auto most = take<std::uint64_t>(carve, 1);
    cuda::count_lanes(queue, marks, plan_.lanes, loads.data(), most.data());
    numbers_.fetch(queue, as_bytes(most));
    return static_cast<std::size_t>(numbers_.wait(queue)[0]);
  }

  void set_rows(std::size_t rows) override { table_.set_rows(rows); }
  [[nodiscard]] std::size_t cells() const override { return table_.cells(); }

  void write(Queue<Space::cuda> queue, DeviceView<const std::uint32_t> positions, DeviceView<const float> values,
             DeviceView<float> table, Bytes scratch) override {
    table_.write(queue, positions, values.data(), table.data(), scratch);
  }
  void write_whole(Queue<Space::cuda> queue, DeviceView<const std::uint32_t> positions, DeviceView<const float> values,
                   DeviceView<float> out) override {
    fill_zero(queue, out);
    cuda::scatter_at(queue, positions, values.data(), out.data());
  }

  std::size_t read(Queue<Space::cuda> queue, DeviceView<std::uint32_t> marks, DeviceView<float> table, float factor,
                   DeviceView<float> out, Bytes scratch) override {
    Carver<Space::cuda> carve{scratch};
    const auto room = carve.take(table_bytes_);
    const auto scan = carve.take(mark_bytes_);
    const auto positions = take<std::uint32_t>(carve, most_);
    const auto count = take<std::uint32_t>(carve, 1);
    cuda::mark_positions(queue, cuda::scan_marks(queue, marks, plan_.n, scan), positions.data(), count.data());
    table_.begin(queue, positions.data(), count.data(), room);
    // Large tables that peel do so within some dozen rounds; only the GPU sees when nothing more comes.
    constexpr std::uint32_t kRounds = 16;
    std::uint64_t left = 0;
    for (bool more = true; more;) {
      table_.peel(queue, table.data(), kRounds, room);
      numbers_.fetch(queue, as_bytes(table_.progress(room)));
      const auto numbers = numbers_.wait(queue);  // peeled, in the last round, elements
      left = numbers[2] - numbers[0];
      more = left > 0 && numbers[1] > 0;
    }
    table_.finish(queue, table.data(), positions.data(), factor, out.data(), room);
    return static_cast<std::size_t>(left);
  }

 private:
  LhcPlan plan_;
  std::size_t most_;
  cuda::PeelingTable table_;
  std::size_t table_bytes_, select_bytes_, mark_bytes_;  ///< asked for once: `reduce` is in the timed region
  ReadBack<Space::cuda> numbers_;
};

}  // namespace

std::unique_ptr<LhcSide<Space::cuda>> make_lhc_side(Queue<Space::cuda> /*queue*/, const LhcPlan& plan) {
  return std::make_unique<CudaSide>(plan);
}

void copy_floats(Queue<Space::cuda> queue, View<const float, Space::cuda> in, View<float, Space::cuda> out) {
  cuda::copy_elements(queue, out, in);
}

std::unique_ptr<Reducer<Space::cuda>> make_cuda_lhc(const ReducerSetup<Space::cuda>& setup) {
  return std::make_unique<LhcReducer<Space::cuda>>(setup);
}

}  // namespace gradtool
