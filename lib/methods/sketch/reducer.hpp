#pragma once

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "kernels/sparse.hpp"
#include "kernels/vector.hpp"
#include "lib/codecs/reducer.hpp"
#include "lib/core/scratch.hpp"

namespace gradtool {

/// The sizes that follow from the parameters.
struct SketchPlan {
  std::size_t n = 0;           ///< elements of the bucket
  std::size_t rows = 0;        ///< tables
  std::size_t columns = 0;     ///< cells of a table
  std::size_t kept = 0;        ///< k: elements of the result
  std::size_t candidates = 0;  ///< elements whose exact values are summed in the second round
  std::uint64_t seed = 0;

  [[nodiscard]] std::size_t cells() const { return rows * columns; }
};

/// The targets of the result: the kept sums times `share` go to `out`, which is 0 elsewhere. Their elements become 0 in
/// `residual` and `momentum`, each of which may be empty.
template <Space S>
struct SketchTargets {
  float share;
  View<float, S> out, residual, momentum;
};

/// Sketched-SGD (Ivkin et al. 2019, arXiv 1903.04488, algorithm 1): round one sums sketches, round two sums the exact
/// values of the elements whose estimates are largest. `Steps` is what a rank does by itself, on a CPU (sketch.cpp) or
/// on a GPU (sketch.cu):
///
///   Steps(queue, plan), scratch_bytes()
///   take_momentum(queue, mu, gradient, momentum)  momentum := mu momentum + gradient; gradient := momentum
///   sketch(queue, u, cells, scratch)              cells := the sketch of u, all tables
///   find(queue, cells, u, positions, values, scratch)
///     positions := the elements with the largest estimates, ascending; values := u there
///   place(queue, positions, values, targets, scratch)
///     puts the largest of the candidates' sums `values` where `targets` says
template <Space S, class Steps>
class SketchReducer final : public CountingReducer<S> {
 public:
  explicit SketchReducer(const ReducerSetup<S>& setup)
      : CountingReducer<S>{setup.layout.elements, setup.ranks},
        mu_{static_cast<float>(setup.spec.params.real("mu"))},
        plan_{plan(setup.spec.params)},
        state_{2 * this->padded(4 * n_)},
        residual_{state_.template take<float>(setup.spec.error_feedback ? n_ : 0)},
        momentum_{state_.template take<float>(mu_ > 0.0F ? n_ : 0)} {
    if (plan_.cells() + plan_.candidates < n_) steps_.emplace(setup.queue, plan_);
    SketchReducer::reset(setup.queue);
  }

  void reset(Queue<S> queue) override {
    fill_zero(queue, residual_);
    fill_zero(queue, momentum_);
  }
  void visit_state(StateVisitor& visitor) override {
    visitor.values("residual", residual_);
    visitor.values("momentum", momentum_);
  }
  [[nodiscard]] View<const float, S> residual() const override { return residual_; }
  [[nodiscard]] bool reached() const override { return steps_.has_value(); }
  [[nodiscard]] std::string note() const override {
    return steps_ || n_ == 0 ? "" : "units too small for a sketch are summed whole";
  }

  [[nodiscard]] std::size_t workspace_bytes() const override {
    return steps_ ? planned<Workspace>(*this) : this->padded(4 * n_);
  }

  void reduce(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient, const SideInputs<S>& /*side*/,
              const EncodeContext& /*context*/, View<std::byte, S> workspace, PhaseClock<S>& clock) override {
    if (!steps_) {  // Everything is sent, so that nothing remains, neither a residual nor, with masking, momentum.
      in_phase(clock, Phase::encode, queue, [] {});  // every row of a report has this phase
      return this->reduce_plain(comm, queue, clock, gradient, workspace);
    }
    const Workspace work{*this, Scratch<S>{workspace}};
    View<const float, S> u = gradient;
    in_phase(clock, Phase::encode, queue, [&] {
      if (!momentum_.empty()) steps_->take_momentum(queue, mu_, gradient, momentum_);
      if (!residual_.empty()) {
        add(queue, gradient, residual_);
        u = residual_;
      }
      steps_->sketch(queue, u, work.cells, work.steps);
    });
    this->sum(comm, queue, clock, work.cells, work.segment);
    in_phase(clock, Phase::encode, queue,
             [&] { steps_->find(queue, work.cells, u, work.positions, work.values, work.steps); });
    this->sum(comm, queue, clock, work.values, work.segment);
    in_phase(clock, Phase::decode, queue, [&] {
      fill_zero(queue, gradient);
      const float share = 1.0F / static_cast<float>(comm.size());
      steps_->place(queue, work.positions, work.values, {share, gradient, residual_, momentum_}, work.steps);
    });
    this->payload_bytes_ = work.cells.bytes() + work.values.bytes();
    this->values_sent_ = work.cells.size() + work.values.size();
  }

 private:
  using CountingReducer<S>::n_;
  static constexpr std::size_t kLeastColumns = 256;  // with fewer, estimates are noise

  struct Workspace {
    Workspace(const SketchReducer& reducer, Scratch<S> scratch)
        : cells{scratch.template take<float>(reducer.plan_.cells())},
          positions{scratch.template take<std::uint32_t>(reducer.plan_.candidates)},
          values{scratch.template take<float>(reducer.plan_.candidates)},
          steps{scratch.take_bytes(reducer.steps_->scratch_bytes())},
          segment{scratch.take_bytes(std::max(cells.bytes(), values.bytes()))} {}
    View<float, S> cells;
    View<std::uint32_t, S> positions;  ///< of the candidates, ascending
    View<float, S> values;             ///< of the candidates
    View<std::byte, S> steps;          ///< scratch of Steps
    View<std::byte, S> segment;        ///< scratch of the all-reduces, which need no more than what they sum
  };

  [[nodiscard]] SketchPlan plan(const Params& params) const {
    SketchPlan plan{.n = n_, .rows = static_cast<std::size_t>(std::stoul(params.word("rows")))};
    const double cells = static_cast<double>(n_) / params.real("compression");
    const double columns = std::ceil(cells / static_cast<double>(plan.rows));
    plan.columns = std::max(kLeastColumns, static_cast<std::size_t>(columns));
    plan.kept = share_of(params.real("ratio"), n_);
    plan.candidates = std::min(
        n_, static_cast<std::size_t>(std::llround(params.real("candidates") * static_cast<double>(plan.kept))));
    plan.seed = static_cast<std::uint64_t>(params.integer("seed"));
    return plan;
  }

  float mu_;
  SketchPlan plan_;
  Arena<S> state_;
  View<float, S> residual_, momentum_;
  std::optional<Steps> steps_;  ///< empty where the bucket is too small for a sketch
};

}  // namespace gradtool
