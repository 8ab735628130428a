#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/vector.hpp"
#include "lib/codecs/low_rank_steps.hpp"
#include "lib/codecs/reducer.hpp"
#include "lib/core/scratch.hpp"

namespace gradtool {

/// PowerSGD (Vogels et al., NeurIPS 2019, Algorithm 1): one step of a power iteration for each matrix and gradient,
/// spread over the ranks. `Steps` is HostLowRankSteps or CudaLowRankSteps.
template <Space S, class Steps>
class PowerSgdReducer final : public CountingReducer<S> {
 public:
  explicit PowerSgdReducer(const ReducerSetup<S>& setup)
      : CountingReducer<S>{setup.layout.elements, setup.ranks},
        start_iteration_{setup.spec.params.integer("start_iteration")},
        warm_start_{setup.spec.params.is("warm_start", "on")},
        plan_{plan_of(setup)},
        steps_{plan_, setup.queue},
        arena_{this->padded(4 * residual_size(setup)) + this->padded(4 * plan_.p_size) +
               this->padded(4 * plan_.q_size)},
        state_{arena_.template take<float>(residual_size(setup)), arena_.template take<float>(plan_.p_size),
               arena_.template take<float>(plan_.q_size)} {
    PowerSgdReducer::reset(setup.queue);
  }

  [[nodiscard]] std::size_t workspace_bytes() const override { return planned<Workspace>(*this); }

  void reduce(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient, const SideInputs<S>& /*side*/,
              const EncodeContext& context, View<std::byte, S> workspace, PhaseClock<S>& clock) override {
    const Workspace work{*this, Scratch<S>{workspace}};
    const float share = 1.0F / static_cast<float>(comm.size());
    const auto sum = [&](View<float, S> values) {
      in_phase(clock, Phase::communicate, queue, [&] {
        if (!values.empty()) comm.all_reduce_sum(queue, as_writable_bytes(values), Dtype::f32, work.segment);
      });
    };
    if (context.iteration < start_iteration_ || plan_.matrices.empty()) {
      in_phase(clock, Phase::encode, queue, [] {});
      sum(gradient);
      in_phase(clock, Phase::decode, queue, [&] { scale(queue, gradient, share); });
      this->payload_bytes_ = 4 * this->n_;
      this->values_sent_ = this->n_;
      dense_steps_ += context.iteration < start_iteration_ ? 1 : 0;
      return;
    }
    in_phase(clock, Phase::encode, queue, [&] {
      steps_.first_product(work.steps, queue, state_, gradient, format::shared_by_ranks(context.key), !warm_start_);
    });
    sum(state_.p);
    in_phase(clock, Phase::encode, queue, [&] { steps_.second_product(work.steps, queue, state_, gradient); });
    sum(state_.q);
    in_phase(clock, Phase::decode, queue, [&] {
      scale(queue, state_.q, share);
      steps_.scatter(queue, state_.p, share, gradient);
      steps_.rebuild(queue, state_, gradient, state_.q);
    });
    this->values_sent_ = plan_.p_size + plan_.q_size;
    this->payload_bytes_ = 4 * this->values_sent_;
    ++compressed_steps_;
  }

  void reset(Queue<S> queue) override {
    fill_zero(queue, state_.residual);
    fill_zero(queue, state_.q);
    steps_.forget();
    compressed_steps_ = dense_steps_ = 0;
  }
  void visit_state(StateVisitor& visitor) override {
    visitor.values("residual", state_.residual);
    visitor.values("Q", state_.q);
    visitor.value("compressed steps", compressed_steps_);
    visitor.value("dense steps", dense_steps_);
  }
  void settle(Queue<S> queue) override { steps_.settle(queue, state_); }
  [[nodiscard]] View<const float, S> residual() const override { return state_.residual; }
  [[nodiscard]] bool reached() const override { return compressed_steps_ > 0; }
  [[nodiscard]] std::string note() const override {
    if (dense_steps_ == 0) return {};
    return std::to_string(compressed_steps_) + " of " + std::to_string(compressed_steps_ + dense_steps_) +
           " steps compressed, the others before iteration " + std::to_string(start_iteration_);
  }
  [[nodiscard]] std::vector<Tally> tallies() const override {
    double factored = 0.0;
    for (const LowRankMatrix& matrix : plan_.matrices) factored += static_cast<double>(matrix.rows * matrix.columns);
    return {{"elements in factors", factored, static_cast<double>(this->n_)}};
  }

 private:
  struct Workspace {
    Workspace(const PowerSgdReducer& reducer, Scratch<S> scratch)
        : segment{scratch.take_bytes(
              4 * std::max({reducer.sums_gradients() ? reducer.n_ : 0, reducer.plan_.p_size, reducer.plan_.q_size}))},
          steps{reducer.steps_, scratch} {}
    View<std::byte, S> segment;  ///< of the all-reduces, of which the longest sum needs the most
    typename Steps::Workspace steps;
  };

  /// Whether some step sums gradients as they are: each before start_iteration, and all where there is no matrix.
  [[nodiscard]] bool sums_gradients() const { return start_iteration_ > 0 || plan_.matrices.empty(); }

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

  static std::size_t residual_size(const ReducerSetup<S>& setup) {
    return setup.spec.error_feedback ? setup.layout.elements : 0;
  }

  std::int64_t start_iteration_;
  bool warm_start_;
  LowRankPlan plan_;
  Steps steps_;
  Arena<S> arena_;
  LowRankState<S> state_;
  std::size_t compressed_steps_ = 0, dense_steps_ = 0;
};

}  // namespace gradtool
