#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/vector.hpp"
#include "lib/codecs/reducer.hpp"
#include "lib/core/scratch.hpp"
#include "lib/methods/powersgd/low_rank.hpp"

namespace gradtool {

/// Which tensors of a bucket PowerSGD compresses, and where everything lies in its two messages. The first message
/// holds the factors P and the tensors that are sent as they are, in the order of the tensors; the second one holds
/// the factors Q.
struct PowerSgdPlan {
  /// Neighbouring tensors that are sent as they are, one behind the other in the gradient and in the first message.
  struct Uncompressed {
    std::size_t first = 0;  ///< element of the gradient
    std::size_t count = 0;
    std::size_t message_first = 0;  ///< element of the first message
  };

  /// A tensor is compressed where factors of `rank` columns have at least `least_rate` times fewer elements.
  PowerSgdPlan(const Layout& layout, std::size_t rank, double least_rate);

  std::vector<LowRankMatrix> matrices;
  std::vector<Uncompressed> uncompressed;
  std::size_t p_size = 0;   ///< floats of the first message
  std::size_t q_size = 0;   ///< floats of the second message
  std::size_t squares = 0;  ///< sum of rank² over the matrices
};

/// What a rank keeps from step to step.
template <Space S>
struct PowerSgdState {
  View<float, S> residual;  ///< empty without error feedback
  View<float, S> p;         ///< the first message: P of all matrices, and the tensors that are sent as they are
  View<float, S> q;         ///< the second message: Q of all matrices

  /// Where M is after `Steps::first_product`: the residual has taken up the gradient, or there is none.
  [[nodiscard]] float* matrices(View<float, S> gradient) const {
    return residual.empty() ? gradient.data() : residual.data();
  }
};

/// PowerSGD (Vogels et al., NeurIPS 2019, Algorithm 1): one step of a power iteration for each matrix and gradient,
/// spread over the ranks. `Steps` is the work between the collectives on one processor:
///   Steps(plan, queue)
///   Workspace{steps, scratch}    what the other calls work in; the first member of their arguments
///   first_product(..., key, redraw_all)   M = residual + gradient. Columns of Q that cannot start a power iteration
///                                (zero or not finite), or all of them, are drawn anew. p := M Q and the tensors that
///                                are sent as they are
///   second_product(...)          makes the columns of each P orthonormal; q := Mᵀ P
///   rebuild(..., share)          Q and the tensors sent as they are, times share; gradient := P Qᵀ; residual =
///                                M - P Qᵀ, whose subtraction may be left to the next first_product
///   settle(queue, state)         makes up for a subtraction that was left
///   forget()                     there is no step before the next one
template <Space S, class Steps>
class PowerSgdReducer final : public CountingReducer<S> {
 public:
  explicit PowerSgdReducer(const ReducerSetup<S>& setup)
      : CountingReducer<S>{setup.layout.elements, setup.ranks},
        start_iteration_{setup.spec.params.integer("start_iteration")},
        warm_start_{setup.spec.params.is("warm_start", "on")},
        plan_{setup.layout, static_cast<std::size_t>(setup.spec.params.integer("rank")),
              setup.spec.params.real("min_compression_rate")},
        steps_{plan_, setup.queue},
        arena_{this->padded(4 * residual_size(setup)) + this->padded(4 * plan_.p_size) +
               this->padded(4 * plan_.q_size)},
        state_{arena_.template take<float>(residual_size(setup)), arena_.template take<float>(plan_.p_size),
               arena_.template take<float>(plan_.q_size)} {
    PowerSgdReducer::reset(setup.queue);
  }

  [[nodiscard]] std::size_t workspace_bytes() const override { return Workspace{*this, Scratch<S>{}}.bytes; }

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
    in_phase(clock, Phase::decode, queue, [&] { steps_.rebuild(queue, state_, gradient, share); });
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
          steps{reducer.steps_, scratch},
          bytes{scratch.bytes()} {}
    View<std::byte, S> segment;  ///< of the all-reduces, of which the longest sum needs the most
    typename Steps::Workspace steps;
    std::size_t bytes;
  };

  /// Whether some step sums gradients as they are: each before start_iteration, and all where there is no matrix.
  [[nodiscard]] bool sums_gradients() const { return start_iteration_ > 0 || plan_.matrices.empty(); }

  static std::size_t residual_size(const ReducerSetup<S>& setup) {
    return setup.spec.error_feedback ? setup.layout.elements : 0;
  }

  std::int64_t start_iteration_;
  bool warm_start_;
  PowerSgdPlan plan_;
  Steps steps_;
  Arena<S> arena_;
  PowerSgdState<S> state_;
  std::size_t compressed_steps_ = 0, dense_steps_ = 0;
};

}  // namespace gradtool
