#include <memory>

#include "kernels/float_bits.hpp"
#include "kernels/select.hpp"
#include "lib/core/task_pool.hpp"
#include "lib/methods/sketch/count_sketch.hpp"
#include "lib/methods/sketch/reducer.hpp"

namespace gradtool {
namespace {

constexpr ParamInfo kParams[] = {
    real_param("ratio", "0.01", {0.0, 1.0}, "k / n, the share of elements in the result; at least one")
        .searched("0.001|0.004|0.016|0.064"),
    choice_param("rows", "5", "1|3|5|7", "tables"),
    real_param("compression", "40", {1.0, 1e6}, "n / cells of all tables; a table has at least 256 cells")
        .searched("5|20|80"),
    real_param("candidates", "4", {1.0, 1e6}, "P: exact values are fetched for the P k largest estimates"),
    real_param("mu", "0", {0.0, 0.9999}, "local momentum; 0.9 in training, where the optimiser then has none"),
    integer_param("seed", "42", {0, 9007199254740992.0}, "of the hash functions, the same on all ranks")};

GT_SIMD_CLONES void momentum_range(float mu, float* gradient, float* momentum, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) momentum[i] = mu * momentum[i] + gradient[i];
  for (std::size_t i = 0; i < count; ++i) gradient[i] = momentum[i];
}

/// The steps of a rank by itself, on a CPU; see SketchReducer.
class HostSteps {
 public:
  HostSteps(Queue<Space::host> queue, const SketchPlan& plan)
      : plan_{plan}, sketch_{queue, plan.n, plan.rows, plan.columns, plan.seed} {}

  [[nodiscard]] std::size_t scratch_bytes() const { return planned<Workspace>(*this); }

  void take_momentum(Queue<Space::host> queue, float mu, HostView<float> gradient, HostView<float> momentum) const {
    parallel_for(queue, gradient.size(), 16, 1 << 14, [&](std::size_t first, std::size_t last) {
      momentum_range(mu, gradient.data() + first, momentum.data() + first, last - first);
    });
  }
  void sketch(Queue<Space::host> queue, HostView<const float> u, HostView<float> cells,
              HostView<std::byte> scratch) const {
    sketch_.add_up(queue, u, cells, Workspace{*this, Scratch<Space::host>{scratch}}.rows);
  }
  void find(Queue<Space::host> queue, HostView<const float> cells, HostView<const float> u,
            HostView<std::uint32_t> positions, HostView<float> values, HostView<std::byte> scratch) const {
    const Workspace work{*this, Scratch<Space::host>{scratch}};
    sketch_.estimate(queue, cells, work.estimates, work.rows);
    host::Largest{queue, work.estimates, work.largest}.select(positions, nullptr);
    for (std::size_t i = 0; i < positions.size(); ++i) values[i] = format::one_nan(u[positions[i]]);
  }
  void place(Queue<Space::host> queue, HostView<const std::uint32_t> positions, HostView<const float> values,
             const SketchTargets<Space::host>& targets, HostView<std::byte> scratch) const {
    const Workspace work{*this, Scratch<Space::host>{scratch}};
    host::Largest{queue, values, work.largest}.select(work.kept, nullptr);
    for (const std::uint32_t candidate : work.kept.span()) {
      const std::uint32_t i = positions[candidate];
      targets.out[i] = values[candidate] * targets.share;
      if (!targets.residual.empty()) targets.residual[i] = 0.0F;
      if (!targets.momentum.empty()) targets.momentum[i] = 0.0F;
    }
  }

 private:
  struct Workspace {
    Workspace(const HostSteps& steps, Scratch<Space::host> scratch)
        : rows{scratch.take<float>(steps.sketch_.scratch())},
          estimates{scratch.take<float>(steps.plan_.n)},
          kept{scratch.take<std::uint32_t>(steps.plan_.kept)},
          largest{scratch.take_bytes(host::Largest::scratch_bytes(steps.plan_.n, steps.plan_.candidates))} {}
    HostView<float> rows;  ///< scratch of the sketch
    HostView<float> estimates;
    HostView<std::uint32_t> kept;  ///< which candidates are kept
    HostView<std::byte> largest;   ///< scratch of host::Largest
  };

  SketchPlan plan_;
  CountSketch sketch_;
};

}  // namespace

extern constinit const CodecDescriptor sketch_codec{
    .name = "sketch",
    .summary = "sends count sketches, whose sum tells which elements are large, and then these exactly",
    .reference = "Ivkin et al., Sketched-SGD, NeurIPS 2019, arXiv 1903.04488",
    .params = kParams,
    .aggregation = Aggregation::own,
    .error_feedback = true,
    .momentum = "mu",
    .payload = "32 n / compression + 32 P k bits, k = round(ratio n); 32 n where that is no less",
    .passes = [](const Params& p) { return MemoryPasses{.kept = p.real("mu") > 0.0 ? 1 : 0}; },
    .make_host_reducer = make_method_reducer<Space::host, SketchReducer<Space::host, HostSteps>>,
};

}  // namespace gradtool
