#pragma once

#include <algorithm>
#include <cmath>
#include <memory>

#include "lib/reduce/host_reducer.hpp"

namespace gradtool {

/// What a sketch is made for: n elements, tables, how many exact values are fetched, how many of them stay.
struct SketchPlan {
  std::size_t n = 0, rows = 0, columns = 0;
  std::size_t candidates = 0, kept = 0;
  std::uint64_t seed = 0;
};

/// Where the sums of the second round go: the kept ones to `out`, which is 0 elsewhere, times `share`; they leave
/// `residual` and `momentum`, which may be empty.
template <Space S>
struct SketchTargets {
  float share;
  View<float, S> out, residual, momentum;
};

/// What a rank does by itself between the two sums.
template <Space S>
class SketchSide {
 public:
  virtual ~SketchSide() = default;
  [[nodiscard]] virtual std::size_t scratch_bytes() const = 0;

  /// cells := the sketch of u, all tables.
  virtual void add_up(Queue<S> queue, View<const float, S> u, View<float, S> cells, View<std::byte, S> scratch) = 0;
  /// positions := where the estimates are largest, ascending; values := what u is there.
  virtual void find(Queue<S> queue, View<const float, S> cells, View<const float, S> u,
                    View<std::uint32_t, S> positions, View<float, S> values, View<std::byte, S> scratch) = 0;
  /// Places the largest of the candidates' sums.
  virtual void place(Queue<S> queue, View<const std::uint32_t, S> positions, View<const float, S> values,
                     const SketchTargets<S>& targets, View<std::byte, S> scratch) = 0;
};
std::unique_ptr<SketchSide<Space::host>> make_sketch_side(Queue<Space::host> queue, const SketchPlan& plan);
std::unique_ptr<SketchSide<Space::cuda>> make_sketch_side(Queue<Space::cuda> queue, const SketchPlan& plan);

/// v := mu v + g; g := v.
void take_momentum(Queue<Space::host> queue, float mu, HostView<float> g, HostView<float> v);
void take_momentum(Queue<Space::cuda> queue, float mu, View<float, Space::cuda> g, View<float, Space::cuda> v);

/// Sketched-SGD (Ivkin et al. 2019, algorithm 1): round one sums sketches, round two the values that look large.
template <Space S>
class SketchReducer final : public CountingReducer<S> {
 public:
  explicit SketchReducer(const ReducerSetup<S>& setup)
      : CountingReducer<S>{setup.layout.elements, setup.ranks},
        mu_{static_cast<float>(setup.spec.params.real("mu"))},
        plan_{plan(setup.spec.params)},
        state_{2 * this->padded(4 * n_)},
        residual_{state_.template take<float>(setup.spec.error_feedback ? n_ : 0)},
        momentum_{state_.template take<float>(mu_ > 0.0F ? n_ : 0)} {
    if (cells() + plan_.candidates < n_) side_ = make_sketch_side(setup.queue, plan_);
    SketchReducer::reset(setup.queue);
  }

  void reset(Queue<S> queue) override {
    fill_zero(queue, residual_);
    fill_zero(queue, momentum_);
  }
  [[nodiscard]] View<const float, S> residual() const override { return residual_; }
  [[nodiscard]] std::string note() const override {
    return side_ || n_ == 0 ? "" : "units too small for a sketch are summed whole";
  }

  [[nodiscard]] std::size_t workspace_bytes() const override {
    if (!side_) return this->padded(4 * n_) + 256;
    return 2 * this->padded(4 * cells()) + 4 * this->padded(4 * plan_.candidates) +
           this->padded(side_->scratch_bytes()) + 256;
  }

  void reduce(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient, const SideInputs<S>& /*side*/,
              const EncodeContext& /*context*/, View<std::byte, S> workspace, PhaseClock<S>& clock) override {
    if (!side_) return reduce_dense(comm, queue, gradient, workspace, clock);
    Carver<S> carve{workspace};
    const auto cells = take<float>(carve, this->cells());
    const auto positions = take<std::uint32_t>(carve, plan_.candidates);
    const auto values = take<float>(carve, plan_.candidates);
    const auto scratch = carve.take(side_->scratch_bytes());
    const auto segment = carve.take(std::max(comm.scratch_bytes(cells.bytes()), comm.scratch_bytes(values.bytes())));

    View<const float, S> u = gradient;
    in_phase(clock, Phase::encode, queue, [&] {
      u = gather_up(queue, gradient);
      side_->add_up(queue, u, cells, scratch);
    });
    in_phase(clock, Phase::communicate, queue,
             [&] { comm.all_reduce_sum(queue, as_writable_bytes(cells), Dtype::f32, segment); });
    in_phase(clock, Phase::encode, queue, [&] { side_->find(queue, cells, u, positions, values, scratch); });
    in_phase(clock, Phase::communicate, queue,
             [&] { comm.all_reduce_sum(queue, as_writable_bytes(values), Dtype::f32, segment); });
    in_phase(clock, Phase::decode, queue, [&] {
      fill_zero(queue, gradient);
      const float share = 1.0F / static_cast<float>(comm.size());
      side_->place(queue, positions, values, {share, gradient, residual_, momentum_}, scratch);
    });
    this->payload_bytes_ = cells.bytes() + values.bytes();
    this->values_sent_ = cells.size() + values.size();
  }

 private:
  using CountingReducer<S>::n_;
  static constexpr std::size_t kLeastColumns = 256;  // below, estimates are noise

  [[nodiscard]] SketchPlan plan(const Params& params) const {
    const auto round = [](double x) { return static_cast<std::size_t>(std::llround(x)); };
    SketchPlan plan{.n = n_, .rows = static_cast<std::size_t>(std::stoul(params.word("rows")))};
    const double cells = static_cast<double>(n_) / params.real("compression");
    const double columns = std::ceil(cells / static_cast<double>(plan.rows));
    plan.columns = std::max(kLeastColumns, static_cast<std::size_t>(columns));
    plan.kept = std::clamp<std::size_t>(round(params.real("ratio") * static_cast<double>(n_)),
                                        std::min<std::size_t>(n_, 1), n_);
    plan.candidates = std::min(n_, round(params.real("candidates") * static_cast<double>(plan.kept)));
    plan.seed = static_cast<std::uint64_t>(params.integer("seed"));
    return plan;
  }
  [[nodiscard]] std::size_t cells() const { return plan_.rows * plan_.columns; }

  /// This rank's momentum and residual with the gradient in them; all of it is held back until it is sent.
  View<const float, S> gather_up(Queue<S> queue, View<float, S> gradient) {
    if (!momentum_.empty()) take_momentum(queue, mu_, gradient, momentum_);
    if (residual_.empty()) return gradient;
    add(queue, gradient, residual_);
    return residual_;
  }

  void reduce_dense(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient, View<std::byte, S> workspace,
                    PhaseClock<S>& clock) {
    in_phase(clock, Phase::encode, queue, [&] {
      // Everything is sent, so nothing stays: neither a residual nor, with masking, momentum.
    });
    in_phase(clock, Phase::communicate, queue,
             [&] { comm.all_reduce_sum(queue, as_writable_bytes(gradient), Dtype::f32, workspace); });
    in_phase(clock, Phase::decode, queue, [&] { scale(queue, gradient, 1.0F / static_cast<float>(comm.size())); });
    this->payload_bytes_ = 4 * n_;
    this->values_sent_ = n_;
  }

  float mu_;
  SketchPlan plan_;
  Arena<S> state_;
  View<float, S> residual_, momentum_;
  std::unique_ptr<SketchSide<S>> side_;
};

}  // namespace gradtool
