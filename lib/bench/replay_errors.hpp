#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "lib/bench/payload_log.hpp"
#include "lib/bench/replay_agreement.hpp"
#include "lib/bench/replay_state.hpp"
#include "lib/bench/replay_units.hpp"
#include "lib/comm/recording.hpp"
#include "lib/core/interrupt.hpp"

namespace gradtool {

/// Every step once, untimed: errors, bytes, residuals, the same bits on every rank.
template <Space S, class Place>
class ErrorPass {
 public:
  ErrorPass(const ReplayPlan& plan, Communicator<S>& comm, Place& place, StepLoader& loader, RankUnits<S, Place>& units,
            RankAgreement<S>& agreement, ReplayResult& result)
      : plan_{plan},
        comm_{comm},
        place_{place},
        loader_{loader},
        units_{units},
        agreement_{agreement},
        result_{result} {}

  void run() {
    std::unique_ptr<ErrorKeeper> keeper = leads() ? std::make_unique<ErrorKeeper>(plan_, result_) : nullptr;
    if (!plan_.payloads.empty()) log_ = std::make_unique<PayloadLog>(plan_, comm_.rank());
    NoClock<S> clock;
    const std::size_t steps = plan_.reader->steps().size();
    double payload = 0.0;
    double values_sent = 0.0;
    for (std::size_t step = 0; step < steps; ++step) {
      comm_.reset_traffic();
      for (std::size_t unit = 0; unit < units_.size(); ++unit) {
        const auto buffer = units_.prepare(step, unit, true);
        reduce_observed(step, unit, buffer, clock);
        const auto values = place_.download(buffer);
        agreement_.keep(unit, values);
        payload += static_cast<double>(units_[unit].payload_bytes());
        values_sent += static_cast<double>(units_[unit].values_sent(place_.queue()));
        if (!leads()) continue;
        keeper->observe(unit, loader_.mean(), values);
        if (plan_.on_result) plan_.on_result(step, (*plan_.units)[unit], values);
        units_[unit].settle(place_.queue());
        const auto residual = units_[unit].residual();
        result_.has_residual = result_.has_residual || !residual.empty();
        if (!residual.empty()) result_.residual_energy += energy(place_.download(residual));
        result_.gradient_energy += energy(loader_.gradient(0));
      }
      agreement_.compare(step);
      std::array<double, 1> sent{static_cast<double>(comm_.traffic().bytes_sent)};
      comm_.agree_max(sent);
      if (leads()) {
        result_.wire_bytes += sent[0] / static_cast<double>(steps);
      }
      if (interrupted()) throw Error{Fault::check, "interrupted"};
    }
    if (log_) log_->close();
    log_.reset();
    if (!leads()) return;
    result_.payload_bytes = payload / static_cast<double>(steps);
    result_.values_sent = values_sent / static_cast<double>(steps);
    for (auto& unit : result_.units) {
      for (auto& use : unit.uses) {
        use.calls /= static_cast<double>(steps);
        use.bytes /= static_cast<double>(steps);
      }
    }
    collect_notes();
    keeper->finish();
  }

 private:
  [[nodiscard]] bool leads() const { return comm_.rank() == 0; }

  /// Counts the collectives, and writes payloads down when asked to.
  void reduce_observed(std::size_t step, std::size_t unit, View<float, S> buffer, PhaseClock<S>& clock) {
    RecordingCommunicator<S> recording{comm_, [&](const typename RecordingCommunicator<S>::Call& call) {
                                         const auto pattern = units_[unit].pattern();
                                         add_use(result_.units[unit].uses, call.name, call.mean_bytes, pattern.shards,
                                                 pattern.ring);
                                         if (log_) log_->put(step, unit, call.name, place_.look(call.bytes));
                                       }};
    if (log_)
      units_.reduce_unwatched(recording, step, unit, buffer, clock);  // writing payloads down allocates
    else
      units_.reduce(recording, step, unit, buffer, clock);
  }

  /// What rank 0's reducers say: every note once, tallies added over units.
  void collect_notes() {
    std::vector<Tally> tallies;
    std::vector<std::string> notes;
    for (std::size_t unit = 0; unit < units_.size(); ++unit) {
      std::string note = units_[unit].note();
      if (!note.empty() && std::find(notes.begin(), notes.end(), note) == notes.end()) notes.push_back(std::move(note));
      for (const auto& tally : units_[unit].tallies()) {
        const auto same = std::find_if(tallies.begin(), tallies.end(), [&](auto& t) { return t.what == tally.what; });
        if (same == tallies.end()) {
          tallies.push_back(tally);
        } else {
          same->part += tally.part;
          same->whole += tally.whole;
        }
      }
    }
    for (const auto& tally : tallies) {
      if (tally.whole > 0.0) notes.push_back(fmt::format("{}: {:.4g} %", tally.what, 100.0 * tally.part / tally.whole));
    }
    result_.note = fmt::format("{}", fmt::join(notes, "; "));
  }

  const ReplayPlan& plan_;
  Communicator<S>& comm_;
  Place& place_;
  StepLoader& loader_;
  RankUnits<S, Place>& units_;
  RankAgreement<S>& agreement_;
  ReplayResult& result_;
  std::unique_ptr<PayloadLog> log_;  ///< while payloads are written down
};

}  // namespace gradtool
