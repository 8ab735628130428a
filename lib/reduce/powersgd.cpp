// PowerSGD (Vogels et al., NeurIPS 2019): one step of a power iteration for each matrix and gradient, between ranks.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "lib/core/task_pool.hpp"
#include "lib/reduce/host_reducer.hpp"
#include "lib/reduce/ops.hpp"
#include "lib/reduce/powersgd_plan.hpp"
#include "lib/reduce/powersgd_products.hpp"

namespace gradtool {
namespace {

/// Element `index` of a standard normal row: Box-Muller on pairs of uniform draws.
float normal(const law::DrawKey& key, std::uint64_t index) {
  const law::Draws draws = law::draw4(key, index / 4);
  const std::size_t pair = index / 2 % 2 * 2;
  const double u = 1.0 - static_cast<double>(law::uniform(draws.bits[pair]));
  const double angle = 2.0 * std::numbers::pi * static_cast<double>(law::uniform(draws.bits[pair + 1]));
  return static_cast<float>(std::sqrt(-2.0 * std::log(u)) * (index % 2 == 0 ? std::cos(angle) : std::sin(angle)));
}

bool is_alive(HostView<const float> column) {
  double squares = 0.0;
  for (const float x : column.span()) squares += static_cast<double>(x) * static_cast<double>(x);
  return squares > 0.0 && std::isfinite(squares);
}

class PowerSgdReducer final : public HostReducer {
 public:
  explicit PowerSgdReducer(const ReducerSetup<Space::host>& setup)
      : HostReducer{setup.layout.elements, setup.ranks},
        start_{setup.spec.params.integer("start_iteration")},
        warm_{setup.spec.params.is("warm_start", "on")},
        plan_{setup.layout, static_cast<std::size_t>(setup.spec.params.integer("rank")),
              setup.spec.params.real("min_compression_rate")},
        arena_{padded(4 * held(setup)) + padded(4 * plan_.q_size)},
        kept_{arena_.take<float>(held(setup)), arena_.take<float>(plan_.q_size)} {
    PowerSgdReducer::reset(setup.queue);
  }

  [[nodiscard]] std::size_t workspace_bytes() const override {
    return padded(4 * plan_.p_size) + padded(4 * std::max(n_, std::max(plan_.p_size, plan_.q_size))) +
           padded(4 * plan_.p_sums) + padded(4 * plan_.q_sums) + padded(8 * plan_.scratch) + 256;
  }

  void reduce(Communicator<Space::host>& comm, Queue<Space::host> queue, HostView<float> gradient,
              const SideInputs<Space::host>& /*side*/, const EncodeContext& context, HostView<std::byte> workspace,
              PhaseClock<Space::host>& clock) override {
    Carver<Space::host> carve{workspace};
    const auto message = take<float>(carve, plan_.p_size);
    const auto segment = carve.take(4 * std::max(n_, std::max(plan_.p_size, plan_.q_size)));
    const auto p_sums = take<float>(carve, plan_.p_sums);
    const auto q_sums = take<float>(carve, plan_.q_sums);
    const auto scratch = take<double>(carve, plan_.scratch);
    const float share = 1.0F / static_cast<float>(comm.size());
    const auto sum = [&](HostView<float> values) {
      in_phase(clock, Phase::communicate, queue, [&] {
        if (!values.empty()) comm.all_reduce_sum(queue, as_writable_bytes(values), Dtype::f32, segment);
      });
    };
    if (context.iteration < start_ || plan_.matrices.empty()) {
      in_phase(clock, Phase::encode, queue, [] {});
      sum(gradient);
      in_phase(clock, Phase::decode, queue, [&] { scale(queue, gradient, share); });
      payload_bytes_ = 4 * n_;
      values_sent_ = n_;
      dense_steps_ += context.iteration < start_ ? 1 : 0;
      return;
    }
    in_phase(clock, Phase::encode, queue, [&] {
      revive(queue, context.key);
      powersgd_first_product(plan_, kept_, queue, gradient, message, p_sums);
    });
    sum(message);
    in_phase(clock, Phase::encode, queue,
             [&] { powersgd_second_product(plan_, kept_, queue, gradient, message, q_sums, scratch); });
    sum(kept_.q);
    in_phase(clock, Phase::decode, queue, [&] { powersgd_rebuild(plan_, kept_, queue, gradient, message, share); });
    payload_bytes_ = 4 * (plan_.p_size + plan_.q_size);
    values_sent_ = plan_.p_size + plan_.q_size;
    ++steps_;
  }

  void reset(Queue<Space::host> queue) override {
    fill_zero(queue, kept_.residual);
    fill_zero(queue, kept_.q);
    steps_ = dense_steps_ = 0;
  }
  [[nodiscard]] View<const float, Space::host> residual() const override { return kept_.residual; }
  [[nodiscard]] std::string note() const override {
    if (dense_steps_ == 0) return {};
    return fmt::format("{} of {} steps compressed, the others before iteration {}", steps_, steps_ + dense_steps_,
                       start_);
  }
  [[nodiscard]] std::vector<Tally> tallies() const override {
    double factored = 0.0;
    for (const PowerSgdPlan::Matrix& matrix : plan_.matrices)
      factored += static_cast<double>(matrix.rows * matrix.columns);
    return {{"elements in factors", factored, static_cast<double>(n_)}};
  }

 private:
  /// Elements of the residual.
  static std::size_t held(const ReducerSetup<Space::host>& setup) {
    return setup.spec.error_feedback ? setup.layout.elements : 0;
  }

  /// Columns of Q that cannot start a power iteration, in the first step all of them, are drawn from a standard normal
  /// distribution, the same on every rank.
  void revive(Queue<Space::host> queue, const law::DrawKey& context) {
    const law::DrawKey key = law::shared_by_ranks(context);
    parallel_parts(queue, plan_.matrices.size(), plan_.matrices.size(), 1,
                   [&](std::size_t m, std::size_t, std::size_t) {
                     const PowerSgdPlan::Matrix& matrix = plan_.matrices[m];
                     for (std::size_t j = 0; j < matrix.rank; ++j) {
                       const std::size_t at = matrix.q_at + j * matrix.columns;
                       const auto column = kept_.q.part(at, matrix.columns);
                       if (warm_ && is_alive(column)) continue;
                       for (std::size_t k = 0; k < matrix.columns; ++k) column[k] = normal(key, at + k);
                     }
                   });
  }

  std::int64_t start_;
  bool warm_;
  PowerSgdPlan plan_;
  Arena<Space::host> arena_;
  PowerSgdState kept_;
  std::size_t steps_ = 0, dense_steps_ = 0;
};

}  // namespace

extern constinit const OwnReducer powersgd_reducer{
    .codec = "powersgd",
    .make_host = [](const ReducerSetup<Space::host>& setup) -> std::unique_ptr<Reducer<Space::host>> {
      return std::make_unique<PowerSgdReducer>(setup);
    },
};

}  // namespace gradtool
