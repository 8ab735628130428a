#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "lib/reduce/host_reducer.hpp"
#include "lib/reduce/oktopk_exchange.hpp"

namespace gradtool {

/// A threshold that is exact now and then and follows a count in between (Li and Hoefler 2022, section 3.1).
class OkTopkThreshold {
 public:
  explicit OkTopkThreshold(double step) : step_{step} {}
  void set(float value) { value_ = value; }
  /// Moves when more than `most` or fewer than `least` values reached it.
  void steer(std::size_t count, double least, double most) {
    const auto c = static_cast<double>(count);
    if (c > most) value_ *= static_cast<float>(step_);
    if (c < least) value_ /= static_cast<float>(step_);
  }
  [[nodiscard]] float value() const { return value_; }

 private:
  double step_;
  float value_ = 0.0F;
};

/// Sparse all-reduce of the top k of the sum, in regions that ranks own (Li and Hoefler, Ok-Topk, PPoPP 2022): a rank
/// sends what reaches its local threshold to the owners, who send on to all what of the sums reaches the global one.
/// How is OkTopkExchange, which `Steps` is explained at; this is when, by which threshold, and what it leaves.
template <Space S, class Steps>
class OkTopkReducer final : public CountingReducer<S> {
  using Base = CountingReducer<S>;
  using Base::n_;
  using Base::padded;
  using Base::payload_bytes_;
  using Base::ranks_;
  using Base::values_sent_;

 public:
  explicit OkTopkReducer(const ReducerSetup<S>& setup)
      : Base{setup.layout.elements, setup.ranks},
        k_{std::clamp<std::size_t>(
            static_cast<std::size_t>(std::llround(setup.spec.params.real("ratio") * static_cast<double>(n_))),
            std::min<std::size_t>(n_, 1), n_)},
        period_{setup.spec.params.integer("period")},
        regions_period_{setup.spec.params.integer("regions")},
        warmup_{setup.spec.params.integer("warmup")},
        exchange_{{n_, ranks_, IndexCoding{setup.spec.params.word("index")}}},
        parts_(ranks_),
        state_{padded(4 * n_)},
        residual_{state_.template take<float>(setup.spec.error_feedback ? n_ : 0)} {
    OkTopkReducer::reset(setup.queue);
  }

  [[nodiscard]] typename Reducer<S>::Pattern pattern() const override { return {.shards = true, .ring = false}; }
  void reset(Queue<S> queue) override {
    fill_zero(queue, residual_);
    step_ = 0;
    selected_ = wanted_ = 0;
  }
  [[nodiscard]] View<const float, S> residual() const override { return residual_; }
  [[nodiscard]] std::string note() const override {
    return step_ <= warmup_ && step_ > 0 ? "no step was compressed: all of them are warm-up" : "";
  }
  [[nodiscard]] std::vector<Tally> tallies() const override {
    return {
        {"values selected of the k that were asked for", static_cast<double>(selected_), static_cast<double>(wanted_)}};
  }

  [[nodiscard]] std::size_t workspace_bytes() const override { return exchange_.workspace_bytes(); }

  void reduce(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient, const SideInputs<S>& /*side*/,
              const EncodeContext& /*context*/, View<std::byte, S> workspace, PhaseClock<S>& clock) override {
    const std::int64_t step = step_++;
    if (step < warmup_) return reduce_dense(comm, queue, gradient, workspace, clock);
    exchange_.use(workspace);
    const auto since = step - warmup_;
    std::size_t selected = 0;
    float reached = 0.0F;
    in_phase(clock, Phase::encode, queue, [&] {
      View<float, S> u = gradient;
      if (!residual_.empty()) {
        add(queue, gradient, residual_);
        u = residual_;
      }
      if (since % period_ == 0) local_.set(kth(queue, u));
      reached = local_.value();
      selected = exchange_.steps().select(queue, u, reached);
      const auto k = static_cast<double>(k_);
      local_.steer(selected, 2.0 * k / 3.0, 5.0 * k / 4.0);
    });
    if (since % regions_period_ == 0) exchange_.agree_on_regions(comm, queue, selected, clock);
    const std::size_t own = exchange_.split_and_reduce(comm, queue, clock);
    if (since % period_ == 0) {
      const auto sums = exchange_.gather_sums(comm, queue, clock);
      in_phase(clock, Phase::communicate, queue, [&] { global_.set(kth(queue, sums)); });
    }
    const std::size_t kept = exchange_.gather_kept(comm, queue, global_.value(), clock);
    in_phase(clock, Phase::decode, queue, [&] { apply(queue, gradient, reached); });
    payload_bytes_ = exchange_.bytes_sent();
    values_sent_ = selected - own + kept;
    selected_ += selected;
    wanted_ += k_;
  }

 private:
  void reduce_dense(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient, View<std::byte, S> workspace,
                    PhaseClock<S>& clock) {
    in_phase(clock, Phase::communicate, queue,
             [&] { comm.all_reduce_sum(queue, as_writable_bytes(gradient), Dtype::f32, workspace); });
    in_phase(clock, Phase::decode, queue, [&] { scale(queue, gradient, 1.0F / static_cast<float>(comm.size())); });
    payload_bytes_ = 4 * n_;
    values_sent_ = n_;
  }

  /// The k-th largest magnitude, 0 where there are fewer than k.
  [[nodiscard]] float kth(Queue<S> queue, View<const float, S> values) {
    return k_ == 0 || values.size() < k_ ? 0.0F : exchange_.steps().kth(queue, values, k_);
  }

  /// The result, and the residual: zero where this rank sent and the result has it.
  void apply(Queue<S> queue, View<float, S> gradient, float reached) {
    fill_zero(queue, gradient);
    const float share = 1.0F / static_cast<float>(ranks_);
    Steps& steps = exchange_.steps();
    for (std::size_t r = 0; r < ranks_; ++r) {
      const Segment at = exchange_.region(r);
      parts_[r] = exchange_.part(r);
      const auto result = gradient.part(at.first, at.count);
      if (residual_.empty())
        steps.add(queue, parts_[r], share, result);
      else
        steps.add_and_forget(queue, parts_[r], share, result, residual_.part(at.first, at.count), reached);
    }
    const auto k = static_cast<double>(k_);
    global_.steer(steps.counts(queue, parts_), 2.0 * k / 3.0, 4.0 * k / 3.0);
  }

  std::size_t k_;
  std::int64_t period_, regions_period_, warmup_;
  OkTopkExchange<S, Steps> exchange_;
  std::vector<View<const std::byte, S>> parts_;
  Arena<S> state_;
  View<float, S> residual_;
  OkTopkThreshold local_{1.012}, global_{1.008};
  std::uint64_t selected_ = 0, wanted_ = 0;  ///< since the last reset
  std::int64_t step_ = 0;
};

}  // namespace gradtool
