#pragma once

#include <array>
#include <chrono>
#include <span>
#include <vector>

#include "lib/bench/replay.hpp"
#include "lib/bench/replay_agreement.hpp"
#include "lib/bench/replay_errors.hpp"
#include "lib/bench/replay_state.hpp"
#include "lib/bench/replay_units.hpp"
#include "lib/core/interrupt.hpp"

namespace gradtool {

/// One rank of one replay: the pass for the errors, then timed steps until the plan has enough of them.
template <Space S, class Place>
class Rank {
 public:
  Rank(const ReplayPlan& plan, Communicator<S>& comm, Place& place, StepLoader& loader, bool shared_loader,
       ReplayResult& result)
      : plan_{plan},
        comm_{comm},
        place_{place},
        loader_{loader},
        result_{result},
        units_{plan, comm, place, loader, shared_loader},
        agreement_{plan, comm},
        row_(4 * plan.units->size() + kThrottleReasons.size()) {
    result.units.resize(plan.units->size());
  }

  void run() {
    if (plan_.errors) {
      ErrorPass<S, Place>{plan_, comm_, place_, loader_, units_, agreement_, result_}.run();
    }
    const auto start = std::chrono::steady_clock::now();
    const std::size_t steps = plan_.reader->steps().size();
    double limit = 0.0;
    std::vector<double> watched;
    DiscardedSamples discarded;
    const std::size_t warmup = plan_.errors ? 0 : plan_.warmup_steps;  // the pass for the errors warms up too
    for (std::size_t i = 0;; ++i) {
      if (i % steps == 0) units_.reset();
      const PhaseTimes sample = timed_step(i % steps);
      bool done = interrupted();
      if (leads()) {
        const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        if (i == 0) limit = plan_.stop.limit(elapsed);
        // Warm-up steps are left out, unless the time is over before they are.
        if (i >= warmup || elapsed >= limit) {
          const bool throttled = discarded.count(clock_seen());
          if (!throttled) {
            result_.samples.push_back(sample);
            if (plan_.timing == Timing::isolated) unit_times_.keep(unit_row());
            watched.push_back(plan_.timing == Timing::concurrent ? sample.total
                                                                 : sample.phase[0] + sample.phase[1] + sample.phase[2]);
          }
          const bool hopeless = discarded.samples() >= kMostDiscarded && discarded.samples() > watched.size();
          done = done || hopeless || plan_.stop.done(watched, elapsed, limit);
        }
      }
      std::array<double, 1> verdict{done ? 1.0 : 0.0};
      comm_.agree_max(verdict);
      if (verdict[0] != 0.0) break;
    }
    if (!leads()) return;
    unit_times_.finish(result_.samples, result_.units);
    result_.clock_note = discarded.samples() > 0 ? discarded.note() : place_.clock_note();
  }

 private:
  /// After so many samples whose clock was held down, and fewer that are good, nothing better is to be expected.
  static constexpr std::size_t kMostDiscarded = 200;

  [[nodiscard]] std::span<double> unit_row() { return std::span{row_}.first(4 * units_.size()); }
  [[nodiscard]] std::span<double> clock_seen() { return std::span{row_}.subspan(4 * units_.size()); }
  [[nodiscard]] bool leads() const { return comm_.rank() == 0; }

  /// One sample: all units of a step, each as slow as its slowest rank.
  PhaseTimes timed_step(std::size_t step) {
    ThrottleWatch& throttle = place_.throttle();
    throttle.look();
    for (std::size_t unit = 0; unit < units_.size(); ++unit) {
      const auto buffer = units_.prepare(step, unit, false);
      if (!plan_.hot) place_.evict(buffer);
      place_.clock().start();
      units_.reduce(comm_, step, unit, buffer, place_.clock());
      const PhaseTimes times = place_.clock().stop();
      throttle.look();
      for (std::size_t i = 0; i < 3; ++i) row_[4 * unit + i] = times.phase[i];
      row_[4 * unit + 3] = times.total;
      if (!plan_.check) continue;
      comm_.barrier(place_.queue());  // after every rank's clock has stopped
      agreement_.keep(unit, place_.download(buffer));
    }
    const auto seen = throttle.take();
    std::copy(seen.begin(), seen.end(), clock_seen().begin());
    comm_.agree_max(row_);
    agreement_.compare(step);
    PhaseTimes sample;
    for (std::size_t unit = 0; unit < units_.size(); ++unit) {
      for (std::size_t i = 0; i < 3; ++i) sample.phase[i] += row_[4 * unit + i];
      sample.total += row_[4 * unit + 3];
    }
    return sample;
  }

  const ReplayPlan& plan_;
  Communicator<S>& comm_;
  Place& place_;
  StepLoader& loader_;
  ReplayResult& result_;
  RankUnits<S, Place> units_;
  RankAgreement<S> agreement_;
  std::vector<double> row_;  ///< of a step: for each unit the seconds of its phases, and in all; then why it was slow
  UnitTimes unit_times_;
};

}  // namespace gradtool
