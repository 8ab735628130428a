#pragma once

#include <cstdint>

#include "lib/core/view.hpp"

namespace gradtool {

/// The parts of a reduction that are timed apart. Error feedback counts as encoding, zeroing the result as decoding.
enum class Phase : std::uint8_t { encode, communicate, decode };

/// Told by a reducer where its phases begin and end; the harness measures there. Phases do not nest. Every rank goes
/// through the same phases in the same order, so a clock may let ranks wait for each other between them. While it
/// communicates a reducer does not use the queue's pool itself, and outside of these phases it makes no collective:
/// that lets chunks of a unit overlap (lib/reduce/pipelined.hpp), where a communicating phase of one and another phase
/// of another one are open at once.
template <Space S>
class PhaseClock {
 public:
  virtual ~PhaseClock() = default;
  virtual void begin(Phase phase, Queue<S> queue) = 0;
  virtual void end(Phase phase, Queue<S> queue) = 0;
};

/// Measures nothing.
template <Space S>
class NoClock final : public PhaseClock<S> {
 public:
  void begin(Phase /*phase*/, Queue<S> /*queue*/) override {}
  void end(Phase /*phase*/, Queue<S> /*queue*/) override {}
};

/// A phase for the length of a scope. After an exception the phase is not ended: the ranks will not meet there again.
template <Space S, class F>
void in_phase(PhaseClock<S>& clock, Phase phase, Queue<S> queue, F&& work) {
  clock.begin(phase, queue);
  work();
  clock.end(phase, queue);
}

}  // namespace gradtool
