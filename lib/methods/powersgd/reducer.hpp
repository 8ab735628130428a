#pragma once

#include <algorithm>
#include <vector>

#include "lib/codecs/low_rank_reducer.hpp"

namespace gradtool {

/// PowerSGD (Vogels et al., NeurIPS 2019, Algorithm 1): one step of a power iteration for each matrix and gradient,
/// spread over the ranks. `Steps` is HostLowRankSteps or CudaLowRankSteps.
template <Space S, class Steps>
class PowerSgdReducer final : public LowRankReducer<S, Steps> {
  using Base = LowRankReducer<S, Steps>;
  using Base::plan_, Base::state_, Base::steps_;

 public:
  explicit PowerSgdReducer(const ReducerSetup<S>& setup)
      : Base{setup, plan_of(setup), Base::residual_size(setup), setup.spec.params.integer("start_iteration")},
        warm_start_{setup.spec.params.is("warm_start", "on")} {
    PowerSgdReducer::reset(setup.queue);
  }

  [[nodiscard]] std::size_t workspace_bytes() const override { return planned<Workspace>(*this); }

  void reduce(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient, const SideInputs<S>& /*side*/,
              const EncodeContext& context, View<std::byte, S> workspace, PhaseClock<S>& clock) override {
    const Workspace work{*this, Scratch<S>{workspace}};
    if (this->reduce_dense(comm, queue, gradient, context, work.segment, clock)) return;
    in_phase(clock, Phase::encode, queue, [&] {
      steps_.first_product(work.steps, queue, state_, gradient, format::shared_by_ranks(context.key), !warm_start_);
    });
    this->sum(comm, queue, clock, state_.p, work.segment);
    in_phase(clock, Phase::encode, queue, [&] { steps_.second_product(work.steps, queue, state_, gradient); });
    this->sum(comm, queue, clock, state_.q, work.segment);
    in_phase(clock, Phase::decode, queue, [&] {
      scale(queue, state_.q, this->share());
      steps_.scatter(queue, state_.p, this->share(), gradient);
      steps_.rebuild(queue, state_, gradient, state_.q);
    });
    this->count_compressed(plan_.p_size + plan_.q_size);
  }

  void reset(Queue<S> queue) override {
    fill_zero(queue, state_.residual);
    fill_zero(queue, state_.q);
    steps_.forget();
    this->forget_steps();
  }
  void visit_state(StateVisitor& visitor) override {
    visitor.values("residual", state_.residual);
    visitor.values("Q", state_.q);
    this->visit_steps(visitor);
  }
  void settle(Queue<S> queue) override { steps_.settle(queue, state_); }
  [[nodiscard]] View<const float, S> residual() const override { return state_.residual; }
  [[nodiscard]] std::vector<Tally> tallies() const override { return this->tally_of_matrices("elements in factors"); }

 private:
  struct Workspace {
    Workspace(const PowerSgdReducer& reducer, Scratch<S> scratch)
        : segment{scratch.take_bytes(4 * reducer.longest_sum(reducer.plan_.p_size, reducer.plan_.q_size))},
          steps{reducer.steps_, scratch} {}
    View<std::byte, S> segment;  ///< of the all-reduces, of which the longest sum needs the most
    typename Steps::Workspace steps;
  };

  /// A tensor is compressed where its factors have at least min_compression_rate times fewer elements.
  static LowRankPlan plan_of(const ReducerSetup<S>& setup) {
    const auto rank = static_cast<std::size_t>(setup.spec.params.integer("rank"));
    const double least_rate = setup.spec.params.real("min_compression_rate");
    return {setup.layout, [&](const TensorShape& tensor) {
              const std::size_t rows = tensor.rows();
              const std::size_t columns = tensor.columns();
              const std::size_t r = std::min({rank, rows, columns});
              const bool pays =
                  static_cast<double>(rows * columns) >= least_rate * static_cast<double>(r * (rows + columns));
              return tensor.is_matrix() && pays ? r : std::size_t{0};
            }};
  }

  bool warm_start_;
};

}  // namespace gradtool
