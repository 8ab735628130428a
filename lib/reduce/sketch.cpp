#include <memory>

#include "kernels/host/largest.hpp"
#include "kernels/law/hd.hpp"
#include "kernels/law/keep_nan.hpp"
#include "lib/core/task_pool.hpp"
#include "lib/reduce/count_sketch.hpp"
#include "lib/reduce/cuda_reducers.hpp"
#include "lib/reduce/sketch_reducer.hpp"

namespace gradtool {
namespace {

GT_SIMD_CLONES void momentum_range(float mu, float* g, float* v, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) v[i] = mu * v[i] + g[i];
  for (std::size_t i = 0; i < count; ++i) g[i] = v[i];
}

class HostSide final : public SketchSide<Space::host> {
 public:
  HostSide(Queue<Space::host> queue, const SketchPlan& plan)
      : plan_{plan}, sketch_{queue, plan.n, plan.rows, plan.columns, plan.seed} {}

  [[nodiscard]] std::size_t scratch_bytes() const override {
    return padded(4 * sketch_.scratch()) + padded(4 * plan_.n) + padded(4 * plan_.kept) + largest_bytes();
  }

  void add_up(Queue<Space::host> queue, HostView<const float> u, HostView<float> cells,
              HostView<std::byte> scratch) override {
    Carver<Space::host> carve{scratch};
    sketch_.add_up(queue, u, cells, take<float>(carve, sketch_.scratch()));
  }

  void find(Queue<Space::host> queue, HostView<const float> cells, HostView<const float> u,
            HostView<std::uint32_t> positions, HostView<float> values, HostView<std::byte> scratch) override {
    Carver<Space::host> carve{scratch};
    const auto rows = take<float>(carve, sketch_.scratch());
    const auto estimates = take<float>(carve, plan_.n);
    sketch_.estimate(queue, cells, estimates, rows);
    host::Largest{queue, estimates, carve.take(largest_bytes())}.select(positions, nullptr);
    for (std::size_t i = 0; i < positions.size(); ++i) values[i] = law::one_nan(u[positions[i]]);
  }

  void place(Queue<Space::host> queue, HostView<const std::uint32_t> positions, HostView<const float> values,
             const SketchTargets<Space::host>& to, HostView<std::byte> scratch) override {
    Carver<Space::host> carve{scratch};
    const auto kept = take<std::uint32_t>(carve, plan_.kept);
    host::Largest{queue, values, carve.take(largest_bytes())}.select(kept, nullptr);
    for (const std::uint32_t at : kept.span()) {
      const std::uint32_t i = positions[at];
      to.out[i] = values[at] * to.share;
      if (!to.residual.empty()) to.residual[i] = 0.0F;
      if (!to.momentum.empty()) to.momentum[i] = 0.0F;
    }
  }

 private:
  static std::size_t padded(std::size_t bytes) { return Arena<Space::host>::padded_size(bytes); }
  [[nodiscard]] std::size_t largest_bytes() const { return padded(host::Largest::scratch_bytes(plan_.n)); }

  SketchPlan plan_;
  CountSketch sketch_;
};

}  // namespace

std::unique_ptr<SketchSide<Space::host>> make_sketch_side(Queue<Space::host> queue, const SketchPlan& plan) {
  return std::make_unique<HostSide>(queue, plan);
}

void take_momentum(Queue<Space::host> queue, float mu, HostView<float> g, HostView<float> v) {
  parallel_for(queue, g.size(), 16, 1 << 14, [&](std::size_t first, std::size_t last) {
    momentum_range(mu, g.data() + first, v.data() + first, last - first);
  });
}

extern constinit const OwnReducer sketch_reducer{
    .codec = "sketch",
    .make_host = [](const ReducerSetup<Space::host>& setup) -> std::unique_ptr<Reducer<Space::host>> {
      return std::make_unique<SketchReducer<Space::host>>(setup);
    },
    .make_cuda = GT_MAKE_CUDA(make_cuda_sketch),
};

}  // namespace gradtool
