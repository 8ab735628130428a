#pragma once

#include <algorithm>
#include <cmath>
#include <memory>

#include "lib/codecs/low_rank_reducer.hpp"

namespace gradtool {

/// Dion (Ahn et al., arXiv 2504.05295) with data-parallel gradients that are never summed as they are: one step of a
/// power iteration on the mean momentum of all ranks, each of which keeps its own. `Steps` are HostLowRankSteps or
/// CudaLowRankSteps, whose residual is the momentum, and in addition
///   normalise(queue, q, keep, scaled, lengths, lost)   lost := keep Q, and `lengths` those of the columns of Q. Each
///                         column gets the length 1, or sqrt(rows / columns) where `scaled`; too short ones become zero
///   divide(queue, lengths, scaled, t)   column j of each P in `t` is divided by the length that column j of Q had
///   before
///                         `normalise`, and by the one that it has now
template <Space S, class Steps>
class DionReducer final : public LowRankReducer<S, Steps> {
  using Base = LowRankReducer<S, Steps>;
  using Base::plan_, Base::state_, Base::steps_;

 public:
  explicit DionReducer(const ReducerSetup<S>& setup)
      : Base{setup, plan_of(setup), setup.layout.elements, 0},
        keep_{1.0 - setup.spec.params.real("mu")},
        scaled_{setup.spec.params.is("scale", "shape")},
        arena_{this->padded(4 * plan_.q_size) + this->padded(8 * plan_.ranks)},
        lost_{arena_.template take<float>(plan_.q_size)},
        lengths_{arena_.template take<double>(plan_.ranks)} {
    DionReducer::reset(setup.queue);
  }

  [[nodiscard]] std::size_t workspace_bytes() const override { return planned<Workspace>(*this); }

  void reduce(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient, const SideInputs<S>& /*side*/,
              const EncodeContext& context, View<std::byte, S> workspace, PhaseClock<S>& clock) override {
    const Workspace work{*this, Scratch<S>{workspace}};
    in_phase(clock, Phase::encode, queue, [&] {
      steps_.first_product(work.steps, queue, state_, gradient, format::shared_by_ranks(context.key), false);
    });
    this->sum(comm, queue, clock, state_.p, work.segment);
    in_phase(clock, Phase::encode, queue, [&] { steps_.second_product(work.steps, queue, state_, gradient); });
    this->sum(comm, queue, clock, state_.q, work.segment);
    in_phase(clock, Phase::decode, queue, [&] {
      scale(queue, state_.q, this->share());
      steps_.scatter(queue, state_.p, this->share(), gradient);
      steps_.normalise(queue, state_.q, keep_, scaled_, lengths_, lost_);
      steps_.rebuild(queue, state_, gradient, lost_);
    });
    this->values_sent_ = plan_.p_size + plan_.q_size;
    this->payload_bytes_ = 4 * this->values_sent_;
  }

  void reset(Queue<S> queue) override {
    fill_zero(queue, state_.residual);
    fill_zero(queue, state_.q);
    steps_.forget();
  }
  void visit_state(StateVisitor& visitor) override {
    visitor.values("momentum", state_.residual);
    visitor.values("Q", state_.q);
  }
  /// B_i Q diag(1/sigma) Qᵀ with this rank's momentum B_i as it was before the update was taken out, and sigma the
  /// lengths of the columns of R: linear in B_i, so that the mean over ranks is that of the mean momentum B. R = Bᵀ P
  /// makes Bᵀ p = sigma q true as it stands, so this equals the update P Qᵀ exactly where also B q = sigma p, that is
  /// where columns are singular vectors. Takes memory on the first call.
  [[nodiscard]] View<const float, S> target(Queue<S> queue) override {
    if (!aim_memory_) aim_memory_ = std::make_unique<Arena<S>>(planned<Aim>(*this));
    aim_memory_->rewind();
    const Aim aim{*this, Scratch<S>{aim_memory_->take_bytes(aim_memory_->capacity())}};
    steps_.settle(queue, state_);
    fill_zero(queue, aim.result);
    steps_.product(queue, state_.p, lost_, aim.result);
    add(queue, state_.residual, aim.result);
    steps_.project(aim.steps, queue, aim.result, state_.q, aim.p);
    steps_.divide(queue, lengths_, scaled_, aim.p);
    steps_.product(queue, aim.p, state_.q, aim.result);
    steps_.scatter(queue, state_.p, this->share(), aim.result);
    return aim.result;
  }
  [[nodiscard]] bool reached() const override { return !plan_.matrices.empty(); }
  [[nodiscard]] std::vector<Tally> tallies() const override { return this->tally_of_matrices("elements in factors"); }

 private:
  struct Workspace {
    Workspace(const DionReducer& reducer, Scratch<S> scratch)
        : segment{scratch.take_bytes(4 * std::max(reducer.plan_.p_size, reducer.plan_.q_size))},
          steps{reducer.steps_, scratch} {}
    View<std::byte, S> segment;  ///< of the all-reduces, of which the longer sum needs more
    typename Steps::Workspace steps;
  };

  /// Scratch of target().
  struct Aim {
    Aim(const DionReducer& reducer, Scratch<S> scratch)
        : result{scratch.template take<float>(reducer.n_)},
          p{scratch.template take<float>(reducer.plan_.p_size)},
          steps{reducer.steps_, scratch} {}
    View<float, S> result, p;
    typename Steps::Workspace steps;
  };

  /// Every tensor with rows and columns is a matrix of the method, whether that saves bytes or not: it is an update
  /// rule.
  static LowRankPlan plan_of(const ReducerSetup<S>& setup) {
    const double fraction = setup.spec.params.real("rank_fraction");
    const auto most = static_cast<std::size_t>(setup.spec.params.integer("rank"));
    return {setup.layout, [&](const TensorShape& tensor) {
              if (!tensor.is_matrix()) return std::size_t{0};
              const std::size_t side = std::min(tensor.rows(), tensor.columns());
              const auto part = static_cast<std::size_t>(fraction * static_cast<double>(side));
              return std::clamp<std::size_t>(part, 1, most);
            }};
  }

  double keep_;  ///< 1 - mu: the share of P Rᵀ that leaves the momentum
  bool scaled_;
  Arena<S> arena_;
  View<float, S> lost_;                   ///< (1 - mu) R of the last step
  View<double, S> lengths_;               ///< of the columns of that R
  std::unique_ptr<Arena<S>> aim_memory_;  ///< of target(), once it was called
};

}  // namespace gradtool
