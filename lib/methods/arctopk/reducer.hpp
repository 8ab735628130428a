#pragma once

#include <algorithm>
#include <vector>

#include "lib/codecs/low_rank_reducer.hpp"
#include "lib/methods/arctopk/format.hpp"

namespace gradtool {

/// ARC-Top-K (arXiv 2510.26709): all ranks keep the same rows of each matrix, those that are largest in the mean of a
/// random projection, so that the rows themselves are summed and no index is sent. `Steps` are HostLowRankSteps or
/// CudaLowRankSteps, whose first product is the projection with a Q that is drawn anew in every step, and in addition
///   keys(rows, queue, p, keys)   keys[i] := by what row i of those that `rows`, a RowSelection, chooses from is chosen
template <Space S, class Steps>
class ArcTopKReducer final : public LowRankReducer<S, Steps> {
  using Base = LowRankReducer<S, Steps>;
  using Base::plan_, Base::state_, Base::steps_;

 public:
  explicit ArcTopKReducer(const ReducerSetup<S>& setup)
      : Base{setup, plan_of(setup), Base::residual_size(setup), setup.spec.params.integer("start_iteration")},
        rows_{rows_of(plan_, setup.spec.params.real("ratio")), setup.queue} {
    ArcTopKReducer::reset(setup.queue);
  }

  [[nodiscard]] std::size_t workspace_bytes() const override { return planned<Workspace>(*this); }

  void reduce(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient, const SideInputs<S>& /*side*/,
              const EncodeContext& context, View<std::byte, S> workspace, PhaseClock<S>& clock) override {
    const Workspace work{*this, Scratch<S>{workspace}};
    if (this->reduce_dense(comm, queue, gradient, context, work.segment, clock)) return;
    in_phase(clock, Phase::encode, queue, [&] {
      steps_.first_product(work.steps, queue, state_, gradient, format::shared_by_ranks(context.key), true);
    });
    this->sum(comm, queue, clock, state_.p, work.segment);
    in_phase(clock, Phase::encode, queue, [&] {
      steps_.keys(rows_, queue, state_.p, work.rows.keys);
      rows_.choose(work.rows, queue, work.chosen);
      rows_.gather(queue, work.chosen, state_.matrices(gradient), work.message);
    });
    this->sum(comm, queue, clock, work.message, work.segment);
    in_phase(clock, Phase::decode, queue, [&] {
      steps_.scatter(queue, state_.p, this->share(), gradient);
      rows_.place(queue, work.chosen, work.message, this->share(), gradient);
      if (!state_.residual.empty()) rows_.fade(queue, work.chosen, state_.residual);
    });
    this->count_compressed(plan_.p_size + rows_.plan().message);
  }

  void reset(Queue<S> queue) override {
    fill_zero(queue, state_.residual);
    this->forget_steps();
  }
  void visit_state(StateVisitor& visitor) override {
    visitor.values("residual", state_.residual);
    this->visit_steps(visitor);
  }
  [[nodiscard]] View<const float, S> residual() const override { return state_.residual; }
  [[nodiscard]] std::vector<Tally> tallies() const override {
    return this->tally_of_matrices("elements in matrices whose rows are chosen");
  }

 private:
  struct Workspace {
    Workspace(const ArcTopKReducer& reducer, Scratch<S> scratch)
        : segment{scratch.take_bytes(4 * reducer.longest_sum(reducer.plan_.p_size, reducer.rows_.plan().message))},
          message{scratch.template take<float>(reducer.rows_.plan().message)},
          chosen{scratch.template take<std::uint32_t>(reducer.rows_.plan().chosen)},
          steps{reducer.steps_, scratch},
          rows{reducer.rows_, scratch} {}
    View<std::byte, S> segment;  ///< of the all-reduces, of which the longest sum needs the most
    View<float, S> message;      ///< the chosen rows of all matrices
    View<std::uint32_t, S> chosen;
    typename Steps::Workspace steps;
    typename RowSelection<S>::Workspace rows;
  };

  /// A tensor is compressed where its projection and its rows are fewer elements than it has.
  static LowRankPlan plan_of(const ReducerSetup<S>& setup) {
    const auto rank = static_cast<std::size_t>(setup.spec.params.integer("rank"));
    const double ratio = setup.spec.params.real("ratio");
    return {setup.layout, [&](const TensorShape& tensor) {
              const std::size_t rows = tensor.rows();
              const std::size_t columns = tensor.columns();
              const std::size_t r = std::min({rank, rows, columns});
              const bool pays = r * rows + share_of_rows(ratio, rows) * columns < rows * columns;
              return tensor.is_matrix() && pays ? r : std::size_t{0};
            }};
  }
  static RowPlan rows_of(const LowRankPlan& plan, double ratio) {
    RowPlan rows;
    for (const LowRankMatrix& matrix : plan.matrices)
      rows.add(matrix.first, matrix.rows, matrix.columns, share_of_rows(ratio, matrix.rows));
    return rows;
  }
  RowSelection<S> rows_;
};

}  // namespace gradtool
