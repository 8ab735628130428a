#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "lib/codecs/low_rank_steps.hpp"
#include "lib/codecs/reducer.hpp"
#include "lib/core/scratch.hpp"

namespace gradtool {

/// The common part of the reducers of PowerSGD, Dion and ARC-Top-K: the plan and the state of a rank, and the steps
/// before `start_iteration`, in which gradients are summed as they are. `Steps` are HostLowRankSteps or
/// CudaLowRankSteps.
template <Space S, class Steps>
class LowRankReducer : public CountingReducer<S> {
 public:
  [[nodiscard]] bool reached() const override { return compressed_steps_ > 0; }
  [[nodiscard]] std::string note() const override {
    if (dense_steps_ == 0) return {};
    return std::to_string(compressed_steps_) + " of " + std::to_string(compressed_steps_ + dense_steps_) +
           " steps compressed, the others before iteration " + std::to_string(start_iteration_);
  }

 protected:
  /// `kept`: elements of the residual.
  LowRankReducer(const ReducerSetup<S>& setup, LowRankPlan plan, std::size_t kept, std::int64_t start_iteration)
      : CountingReducer<S>{setup.layout.elements, setup.ranks},
        start_iteration_{start_iteration},
        plan_{std::move(plan)},
        steps_{plan_, setup.queue},
        arena_{this->padded(4 * kept) + this->padded(4 * plan_.p_size) + this->padded(4 * plan_.q_size)},
        state_{arena_.template take<float>(kept), arena_.template take<float>(plan_.p_size),
               arena_.template take<float>(plan_.q_size)} {}

  static std::size_t residual_size(const ReducerSetup<S>& setup) {
    return setup.spec.error_feedback ? setup.layout.elements : 0;
  }
  [[nodiscard]] float share() const { return 1.0F / static_cast<float>(this->ranks_); }

  /// Elements of the longest sum, where the compressed steps have sums of so many.
  [[nodiscard]] std::size_t longest_sum(std::size_t first, std::size_t second) const {
    const bool sums_gradients = start_iteration_ > 0 || plan_.matrices.empty();
    return std::max({sums_gradients ? this->n_ : 0, first, second});
  }
  /// Averages the gradient as it is, before start_iteration and where there is no matrix; false in other steps.
  bool reduce_dense(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient, const EncodeContext& context,
                    View<std::byte, S> segment, PhaseClock<S>& clock) {
    if (context.iteration >= start_iteration_ && !plan_.matrices.empty()) return false;
    in_phase(clock, Phase::encode, queue, [] {});
    this->reduce_plain(comm, queue, clock, gradient, segment);
    dense_steps_ += context.iteration < start_iteration_ ? 1 : 0;
    return true;
  }
  /// Notes that a step was compressed, in which so many values were sent.
  void count_compressed(std::size_t values) {
    this->values_sent_ = values;
    this->payload_bytes_ = 4 * values;
    ++compressed_steps_;
  }
  void forget_steps() { compressed_steps_ = dense_steps_ = 0; }
  void visit_steps(StateVisitor& visitor) {
    visitor.value("compressed steps", compressed_steps_);
    visitor.value("dense steps", dense_steps_);
  }
  [[nodiscard]] std::vector<Tally> tally_of_matrices(const char* what) const {
    double elements = 0.0;
    for (const LowRankMatrix& matrix : plan_.matrices) elements += static_cast<double>(matrix.rows * matrix.columns);
    return {{what, elements, static_cast<double>(this->n_)}};
  }

  std::int64_t start_iteration_;
  LowRankPlan plan_;
  Steps steps_;

 private:
  Arena<S> arena_;

 protected:
  LowRankState<S> state_;

 private:
  std::size_t compressed_steps_ = 0, dense_steps_ = 0;
};

}  // namespace gradtool
