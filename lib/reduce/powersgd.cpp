// PowerSGD on the host.
#include <cmath>

#include "kernels/law/normal.hpp"
#include "lib/core/task_pool.hpp"
#include "lib/reduce/cuda_reducers.hpp"
#include "lib/reduce/powersgd_products.hpp"
#include "lib/reduce/powersgd_reducer.hpp"

namespace gradtool {
namespace {

bool is_alive(HostView<const float> column) {
  double squares = 0.0;
  for (const float x : column.span()) squares += static_cast<double>(x) * static_cast<double>(x);
  return squares > 0.0 && std::isfinite(squares);
}

class HostSteps {
 public:
  using State = PowerSgdState<Space::host>;

  HostSteps(const PowerSgdPlan& plan, Queue<Space::host> /*queue*/) : plan_{plan} {}

  [[nodiscard]] std::size_t workspace_bytes() const {
    const auto padded = [](std::size_t bytes) { return Arena<Space::host>::padded_size(bytes); };
    return padded(4 * plan_.p_sums) + padded(4 * plan_.q_sums) + padded(8 * plan_.scratch);
  }
  void begin(Carver<Space::host>& carve) {
    p_sums_ = take<float>(carve, plan_.p_sums);
    q_sums_ = take<float>(carve, plan_.q_sums);
    scratch_ = take<double>(carve, plan_.scratch);
  }

  /// The draws are the same on every rank.
  void revive(Queue<Space::host> queue, const State& kept, const law::DrawKey& key, bool all) const {
    parallel_parts(queue, plan_.matrices.size(), plan_.matrices.size(), 1,
                   [&](std::size_t m, std::size_t, std::size_t) {
                     const PowerSgdPlan::Matrix& matrix = plan_.matrices[m];
                     for (std::size_t j = 0; j < matrix.rank; ++j) {
                       const std::size_t at = matrix.q_at + j * matrix.columns;
                       const auto column = kept.q.part(at, matrix.columns);
                       if (!all && is_alive(column)) continue;
                       for (std::size_t k = 0; k < matrix.columns; ++k) column[k] = law::normal(key, at + k);
                     }
                   });
  }
  void first_product(Queue<Space::host> queue, const State& kept, HostView<float> gradient,
                     HostView<float> message) const {
    powersgd_first_product(plan_, kept, queue, gradient, message, p_sums_);
  }
  void second_product(Queue<Space::host> queue, const State& kept, HostView<float> gradient,
                      HostView<float> message) const {
    powersgd_second_product(plan_, kept, queue, gradient, message, q_sums_, scratch_);
  }
  void rebuild(Queue<Space::host> queue, const State& kept, HostView<float> gradient, HostView<float> message,
               float share) const {
    powersgd_rebuild(plan_, kept, queue, gradient, message, share);
  }
  static void settle(Queue<Space::host> /*queue*/, const State& /*kept*/) {}
  static void forget(Queue<Space::host> /*queue*/) {}

 private:
  const PowerSgdPlan& plan_;
  HostView<float> p_sums_, q_sums_;
  HostView<double> scratch_;
};

}  // namespace

extern constinit const OwnReducer powersgd_reducer{
    .codec = "powersgd",
    .make_host = [](const ReducerSetup<Space::host>& setup) -> std::unique_ptr<Reducer<Space::host>> {
      return std::make_unique<PowerSgdReducer<Space::host, HostSteps>>(setup);
    },
    .make_cuda = GT_MAKE_CUDA(make_cuda_powersgd),
};

}  // namespace gradtool
