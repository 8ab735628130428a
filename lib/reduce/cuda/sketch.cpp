#include "kernels/cuda/count_sketch.hpp"
#include "kernels/cuda/select.hpp"
#include "lib/reduce/cuda_reducers.hpp"
#include "lib/reduce/sketch_reducer.hpp"

namespace gradtool {
namespace {

using Bytes = View<std::byte, Space::cuda>;

class CudaSide final : public SketchSide<Space::cuda> {
 public:
  CudaSide(Queue<Space::cuda> queue, const SketchPlan& plan)
      : plan_{plan},
        sketch_{queue, plan.n, plan.rows, plan.columns, plan.seed},
        select_bytes_{padded(cuda::Select::scratch_bytes(plan.n))} {}

  [[nodiscard]] std::size_t scratch_bytes() const override {
    return padded(4 * plan_.n) + padded(4 * plan_.kept) + padded(4 * plan_.candidates) + select_bytes_;
  }

  void add_up(Queue<Space::cuda> queue, View<const float, Space::cuda> u, View<float, Space::cuda> cells,
              Bytes /*scratch*/) override {
    sketch_.add_up(queue, u, cells);
  }

  void find(Queue<Space::cuda> queue, View<const float, Space::cuda> cells, View<const float, Space::cuda> u,
            View<std::uint32_t, Space::cuda> positions, View<float, Space::cuda> values, Bytes scratch) override {
    Carver<Space::cuda> carve{scratch};
    const auto estimates = take<float>(carve, plan_.n);
    sketch_.estimate(queue, cells, estimates);
    const cuda::Select select{queue, estimates, carve.take(select_bytes_)};
    select.largest(plan_.candidates);
    select.write(positions.data(), values.data());
    cuda::gather_at(queue, positions, u.data(), values.data());
  }

  void place(Queue<Space::cuda> queue, View<const std::uint32_t, Space::cuda> positions,
             View<const float, Space::cuda> values, const SketchTargets<Space::cuda>& to, Bytes scratch) override {
    Carver<Space::cuda> carve{scratch};
    const auto kept = take<std::uint32_t>(carve, plan_.kept);
    const auto chosen = take<float>(carve, plan_.kept);
    const cuda::Select select{queue, values, carve.take(select_bytes_)};
    select.largest(plan_.kept);
    select.write(kept.data(), chosen.data());
    cuda::place_result(queue, {kept, positions.data(), values.data(), to.share, to.out.data(),
                               to.residual.empty() ? nullptr : to.residual.data(),
                               to.momentum.empty() ? nullptr : to.momentum.data()});
  }

 private:
  SketchPlan plan_;
  cuda::CountSketch sketch_;
  std::size_t select_bytes_;
};

}  // namespace

std::unique_ptr<SketchSide<Space::cuda>> make_sketch_side(Queue<Space::cuda> queue, const SketchPlan& plan) {
  return std::make_unique<CudaSide>(queue, plan);
}

void take_momentum(Queue<Space::cuda> queue, float mu, View<float, Space::cuda> g, View<float, Space::cuda> v) {
  cuda::momentum_step(queue, mu, g, v);
}

std::unique_ptr<Reducer<Space::cuda>> make_cuda_sketch(const ReducerSetup<Space::cuda>& setup) {
  return std::make_unique<SketchReducer<Space::cuda>>(setup);
}

}  // namespace gradtool
