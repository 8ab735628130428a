#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/vector.hpp"
#include "lib/codecs/low_rank_steps.hpp"
#include "lib/codecs/reducer.hpp"
#include "lib/core/scratch.hpp"
#include "lib/methods/arctopk/format.hpp"

namespace gradtool {

/// ARC-Top-K (arXiv 2510.26709): all ranks keep the same rows of each matrix, those that are largest in the mean of a
/// random projection, so that the rows themselves are summed and no index is sent. `Steps` are HostLowRankSteps or
/// CudaLowRankSteps, whose first product is the projection with a Q that is drawn anew in every step, and in addition
///   keys(rows, queue, p, keys)   keys[i] := by what row i of those that `rows`, a RowSelection, chooses from is chosen
template <Space S, class Steps>
class ArcTopKReducer final : public CountingReducer<S> {
 public:
  explicit ArcTopKReducer(const ReducerSetup<S>& setup)
      : CountingReducer<S>{setup.layout.elements, setup.ranks},
        start_iteration_{setup.spec.params.integer("start_iteration")},
        plan_{plan_of(setup)},
        steps_{plan_, setup.queue},
        rows_{rows_of(plan_, setup.spec.params.real("ratio")), setup.queue},
        arena_{this->padded(4 * residual_size(setup)) + this->padded(4 * plan_.p_size) +
               this->padded(4 * plan_.q_size)},
        state_{arena_.template take<float>(residual_size(setup)), arena_.template take<float>(plan_.p_size),
               arena_.template take<float>(plan_.q_size)} {
    ArcTopKReducer::reset(setup.queue);
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
      steps_.first_product(work.steps, queue, state_, gradient, format::shared_by_ranks(context.key), true);
    });
    sum(state_.p);
    in_phase(clock, Phase::encode, queue, [&] {
      steps_.keys(rows_, queue, state_.p, work.rows.keys);
      rows_.choose(work.rows, queue, work.chosen);
      rows_.gather(queue, work.chosen, state_.matrices(gradient), work.message);
    });
    sum(work.message);
    in_phase(clock, Phase::decode, queue, [&] {
      steps_.scatter(queue, state_.p, share, gradient);
      rows_.place(queue, work.chosen, work.message, share, gradient);
      if (!state_.residual.empty()) rows_.fade(queue, work.chosen, state_.residual);
    });
    this->values_sent_ = plan_.p_size + rows_.plan().message;
    this->payload_bytes_ = 4 * this->values_sent_;
    ++compressed_steps_;
  }

  void reset(Queue<S> queue) override {
    fill_zero(queue, state_.residual);
    compressed_steps_ = dense_steps_ = 0;
  }
  void visit_state(StateVisitor& visitor) override {
    visitor.values("residual", state_.residual);
    visitor.value("compressed steps", compressed_steps_);
    visitor.value("dense steps", dense_steps_);
  }
  [[nodiscard]] View<const float, S> residual() const override { return state_.residual; }
  [[nodiscard]] bool reached() const override { return compressed_steps_ > 0; }
  [[nodiscard]] std::string note() const override {
    if (dense_steps_ == 0) return {};
    return std::to_string(compressed_steps_) + " of " + std::to_string(compressed_steps_ + dense_steps_) +
           " steps compressed, the others before iteration " + std::to_string(start_iteration_);
  }
  [[nodiscard]] std::vector<Tally> tallies() const override {
    double elements = 0.0;
    for (const LowRankMatrix& matrix : plan_.matrices) elements += static_cast<double>(matrix.rows * matrix.columns);
    return {{"elements in matrices whose rows are chosen", elements, static_cast<double>(this->n_)}};
  }

 private:
  struct Workspace {
    Workspace(const ArcTopKReducer& reducer, Scratch<S> scratch)
        : segment{scratch.take_bytes(4 * std::max({reducer.sums_gradients() ? reducer.n_ : 0, reducer.plan_.p_size,
                                                   reducer.rows_.plan().message}))},
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

  /// Whether some step sums gradients as they are: each before start_iteration, and all where there is no matrix.
  [[nodiscard]] bool sums_gradients() const { return start_iteration_ > 0 || plan_.matrices.empty(); }

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
  static std::size_t residual_size(const ReducerSetup<S>& setup) {
    return setup.spec.error_feedback ? setup.layout.elements : 0;
  }

  std::int64_t start_iteration_;
  LowRankPlan plan_;
  Steps steps_;
  RowSelection<S> rows_;
  Arena<S> arena_;
  LowRankState<S> state_;
  std::size_t compressed_steps_ = 0, dense_steps_ = 0;
};

}  // namespace gradtool
