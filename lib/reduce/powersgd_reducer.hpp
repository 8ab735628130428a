#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "lib/reduce/host_reducer.hpp"
#include "lib/reduce/ops.hpp"
#include "lib/reduce/powersgd_plan.hpp"

namespace gradtool {

/// What a rank keeps from step to step.
template <Space S>
struct PowerSgdState {
  View<float, S> residual;  ///< e, empty without error feedback
  View<float, S> q;         ///< Q of all matrices

  /// M: the gradient plus what was held back, in the residual; without error feedback the gradient itself.
  [[nodiscard]] float* held(View<float, S> gradient) const {
    return residual.empty() ? gradient.data() : residual.data();
  }
};

/// PowerSGD (Vogels et al., NeurIPS 2019, Algorithm 1): one step of a power iteration for each matrix and gradient,
/// between ranks. `Steps`, of either space, is what happens between two collectives:
///   Steps(plan, queue)
///   workspace_bytes()
///   begin(workspace carver)       takes what the following calls work in
///   revive(queue, state, key, all)  columns of Q that cannot start a power iteration are drawn anew
///   first_product(...)            M = gradient + e; message := P = M Q, and the tensors that go as they are
///   second_product(...)           P orthonormal; Q = Mᵀ P
///   rebuild(..., share)           Q and what went as it is times share; gradient := P Qᵀ; e = M - P Qᵀ, which may be
///                                 left to the next first_product
///   settle(queue, state)          e is in the residual
///   forget(queue)                 there was no step before
template <Space S, class Steps>
class PowerSgdReducer final : public CountingReducer<S> {
 public:
  explicit PowerSgdReducer(const ReducerSetup<S>& setup)
      : CountingReducer<S>{setup.layout.elements, setup.ranks},
        start_{setup.spec.params.integer("start_iteration")},
        warm_{setup.spec.params.is("warm_start", "on")},
        plan_{setup.layout, static_cast<std::size_t>(setup.spec.params.integer("rank")),
              setup.spec.params.real("min_compression_rate")},
        steps_of_{plan_, setup.queue},
        arena_{this->padded(4 * held(setup)) + this->padded(4 * plan_.q_size)},
        kept_{arena_.template take<float>(held(setup)), arena_.template take<float>(plan_.q_size)} {
    PowerSgdReducer::reset(setup.queue);
  }

  [[nodiscard]] std::size_t workspace_bytes() const override {
    return this->padded(4 * plan_.p_size) + this->padded(4 * longest()) + steps_of_.workspace_bytes() + 256;
  }

  void reduce(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient, const SideInputs<S>& /*side*/,
              const EncodeContext& context, View<std::byte, S> workspace, PhaseClock<S>& clock) override {
    Carver<S> carve{workspace};
    const auto message = take<float>(carve, plan_.p_size);
    const auto segment = carve.take(4 * longest());
    steps_of_.begin(carve);
    const float share = 1.0F / static_cast<float>(comm.size());
    const auto sum = [&](View<float, S> values) {
      in_phase(clock, Phase::communicate, queue, [&] {
        if (!values.empty()) comm.all_reduce_sum(queue, as_writable_bytes(values), Dtype::f32, segment);
      });
    };
    if (context.iteration < start_ || plan_.matrices.empty()) {
      in_phase(clock, Phase::encode, queue, [] {});
      sum(gradient);
      in_phase(clock, Phase::decode, queue, [&] { scale(queue, gradient, share); });
      this->payload_bytes_ = 4 * this->n_;
      this->values_sent_ = this->n_;
      dense_steps_ += context.iteration < start_ ? 1 : 0;
      return;
    }
    in_phase(clock, Phase::encode, queue, [&] {
      steps_of_.revive(queue, kept_, law::shared_by_ranks(context.key), !warm_);
      steps_of_.first_product(queue, kept_, gradient, message);
    });
    sum(message);
    in_phase(clock, Phase::encode, queue, [&] { steps_of_.second_product(queue, kept_, gradient, message); });
    sum(kept_.q);
    in_phase(clock, Phase::decode, queue, [&] { steps_of_.rebuild(queue, kept_, gradient, message, share); });
    this->values_sent_ = plan_.p_size + plan_.q_size;
    this->payload_bytes_ = 4 * this->values_sent_;
    ++steps_;
  }

  void reset(Queue<S> queue) override {
    fill_zero(queue, kept_.residual);
    fill_zero(queue, kept_.q);
    steps_of_.forget(queue);
    steps_ = dense_steps_ = 0;
  }
  void settle(Queue<S> queue) override { steps_of_.settle(queue, kept_); }
  [[nodiscard]] View<const float, S> residual() const override { return kept_.residual; }
  [[nodiscard]] std::string note() const override {
    if (dense_steps_ == 0) return {};
    return fmt::format("{} of {} steps compressed, the others before iteration {}", steps_, steps_ + dense_steps_,
                       start_);
  }
  [[nodiscard]] std::vector<Tally> tallies() const override {
    double factored = 0.0;
    for (const PowerSgdPlan::Matrix& matrix : plan_.matrices)
      factored += static_cast<double>(matrix.rows * matrix.columns);
    return {{"elements in factors", factored, static_cast<double>(this->n_)}};
  }

 private:
  /// Elements of the residual.
  static std::size_t held(const ReducerSetup<S>& setup) {
    return setup.spec.error_feedback ? setup.layout.elements : 0;
  }
  /// Floats of the longest sum.
  [[nodiscard]] std::size_t longest() const { return std::max({this->n_, plan_.p_size, plan_.q_size}); }

  std::int64_t start_;
  bool warm_;
  PowerSgdPlan plan_;
  Steps steps_of_;
  Arena<S> arena_;
  PowerSgdState<S> kept_;
  std::size_t steps_ = 0, dense_steps_ = 0;
};

}  // namespace gradtool
