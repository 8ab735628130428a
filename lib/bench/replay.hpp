#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lib/bench/clocks.hpp"
#include "lib/bench/cost_model.hpp"
#include "lib/bench/errors.hpp"
#include "lib/bench/statistics.hpp"
#include "lib/bench/step_loader.hpp"
#include "lib/bench/throttle.hpp"
#include "lib/comm/launch.hpp"
#include "lib/reduce/reducer.hpp"

namespace gradtool {

/// One replay of a file through one codec: every captured step in order, every unit, all ranks, the codec's state
/// carried from step to step.
struct ReplayPlan {
  const GradientReader* reader = nullptr;
  const std::vector<Unit>* units = nullptr;
  CodecSpec codec;
  Scheme scheme = Scheme::automatic;
  int ranks = 1;
  int threads = 1;  ///< of each rank, for encode and decode
  Timing timing = Timing::isolated;
  int pipeline = 1;  ///< chunks of a unit that overlap (lib/reduce/pipelined.hpp), with concurrent timing; 1: off
  AllReduce all_reduce = AllReduce::ring;  ///< of sums that codecs ride
  StopRule stop;
  std::uint64_t seed = 0;
  std::size_t warmup_steps = 2;  ///< unsampled steps, where no pass for the errors comes first
  bool errors = true;            ///< begin with an untimed pass that compares every result with the exact mean
  bool check = true;             ///< compare the result's bits across ranks after every step, untimed
  bool hot = false;              ///< leave the caches as they are between steps
  std::string payloads;  ///< folder: in the pass for the errors, write down what each rank puts into each collective
  /// Throws away samples in which the clock was held down. Empty: a GPU asks NVML, the CPU is not watched.
  ClockReasons clock_reasons;
  /// Called on rank 0 in the pass for the errors with every unit's result.
  std::function<void(std::size_t step, const Unit& unit, std::span<const float> result)> on_result;
};

/// What one unit takes part in during a step.
struct UnitProfile {
  /// Seconds, slowest rank, median over samples, scaled to add up to the step's median; 0 unless timing is isolated.
  double encode = 0.0, decode = 0.0;
  CollectiveUses uses = no_uses();  ///< by kind, mean over steps
};

/// What a replay came to, on rank 0.
struct ReplayResult {
  std::vector<PhaseTimes> samples;       ///< one for each timed step: per unit the slowest rank, added over units
  std::string clock_note;                ///< samples that were discarded, or why nothing watched; empty: nothing to say
  std::vector<ErrorSums> tensor_errors;  ///< by position in the file, pooled over steps
  std::vector<double> cumulative_error;  ///< by tensor: sum over elements of (sum over steps of x-y)^2
  std::vector<double> cumulative_energy;  ///< by tensor: sum over elements of (sum over steps of x)^2
  double residual_energy = 0.0;           ///< rank 0, added over steps; 0 without error feedback
  double gradient_energy = 0.0;
  bool has_residual = false;
  double payload_bytes = 0.0;  ///< one rank, mean over steps
  double wire_bytes = 0.0;     ///< largest over ranks, mean over steps
  double values_sent = 0.0;    ///< one rank, mean over steps
  std::string note;            ///< what reducers say about this replay
  std::vector<UnitProfile> units;
};

/// Runs in every rank: with threads the loader is shared and rank 0 reads; with processes each has its own.
/// Throws Fault::check when ranks end with different bits.
void replay_rank(const ReplayPlan& plan, Communicator<Space::host>& comm, StepLoader& loader, bool shared_loader,
                 ReplayResult& result);
/// The same on a GPU: gradients are copied there untimed, phases are timed with events. Only in builds with CUDA.
void replay_rank(const ReplayPlan& plan, Communicator<Space::cuda>& comm, Queue<Space::cuda> queue, StepLoader& loader,
                 bool shared_loader, ReplayResult& result);

}  // namespace gradtool
