#pragma once

#include <array>
#include <chrono>

#include "lib/comm/communicator.hpp"
#include "lib/reduce/phase.hpp"

namespace gradtool {

/// Seconds of one rank in each phase since the last `start`, and in all.
struct PhaseTimes {
  std::array<double, 3> phase{};  ///< indexed by Phase
  double total = 0.0;
};

/// How ranks that share a machine are timed (docs/measuring.md, section 3).
enum class Timing : std::uint8_t {
  isolated,    ///< one rank encodes or decodes at a time; collectives start together. Total: not defined
  concurrent,  ///< all ranks at once, what this machine really did
};

/// Host clock for one rank. A communicating phase may be open beside another one (lib/reduce/pipelined.hpp), with
/// concurrent timing: phases then add up to more than the total.
class HostClock final : public PhaseClock<Space::host> {
 public:
  HostClock(Communicator<Space::host>& comm, Timing timing) : comm_{comm}, timing_{timing} {}

  /// Before and after a reduce.
  void start() {
    times_ = {};
    comm_.barrier({});
    started_ = Clock::now();
  }
  PhaseTimes stop() {
    times_.total = since(started_);
    return times_;
  }

  void begin(Phase phase, Queue<Space::host> /*queue*/) override {
    if (timing_ == Timing::isolated) {
      // Everybody is done with the phase before; then ranks take turns: rank r waits for r others and lets p-r pass.
      const int turns = phase == Phase::communicate ? 1 : 1 + comm_.rank();
      for (int i = 0; i < turns; ++i) comm_.barrier({});
    }
    begun_[static_cast<std::size_t>(phase)] = Clock::now();
  }
  void end(Phase phase, Queue<Space::host> /*queue*/) override {
    const auto which = static_cast<std::size_t>(phase);
    times_.phase[which] += since(begun_[which]);
    if (timing_ == Timing::isolated && phase != Phase::communicate) {
      for (int i = comm_.rank(); i < comm_.size(); ++i) comm_.barrier({});
    }
  }

 private:
  using Clock = std::chrono::steady_clock;
  static double since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

  Communicator<Space::host>& comm_;
  Timing timing_;
  PhaseTimes times_;
  Clock::time_point started_;
  std::array<Clock::time_point, 3> begun_{};
};

}  // namespace gradtool
