#pragma once

#include <array>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/bench/errors.hpp"
#include "lib/bench/options.hpp"
#include "lib/bench/throttle.hpp"
#include "lib/bench/update_errors.hpp"
#include "lib/bench/windows.hpp"
#include "lib/model/cost_model.hpp"
#include "lib/model/units.hpp"

namespace gradtool {

/// The message of rows that Ctrl-C left unmeasured. Tables for people leave these out.
inline constexpr std::string_view kInterruptedMessage = "interrupted";

/// Seconds of one rank in each phase of one reduction, and in all.
struct PhaseTimes {
  std::array<double, 3> phase{};  ///< indexed by Phase
  double total = 0.0;
  double decode_across = 0.0;  ///< of the decoding, what a reducer in two levels does between machines

  PhaseTimes& operator+=(const PhaseTimes& other) {
    for (std::size_t i = 0; i < phase.size(); ++i) phase[i] += other.phase[i];
    total += other.total;
    decode_across += other.decode_across;
    return *this;
  }
};

/// One replay of a file through one codec: captured steps in order, every unit, all ranks, the codec's state
/// carried from step to step within a window (windows.hpp) and reset between windows. Units that do not fit into memory
/// together, with their state, are replayed range by range: all steps of one, then all of the next. What it refers to
/// must outlive it.
struct ReplayPlan {
  const BenchOptions& options;
  const GradientSource& reader;
  const std::vector<Unit>& units;
  CodecSpec codec;
  std::optional<Way> way = {};  ///< that the codec takes; empty: what the options say
  int ranks = 1;
  int threads = 1;  ///< of each rank, for encode and decode
  /// Bytes of gradient that are worth waking a thread for, see measure_thread_bytes(); 0: any number is.
  double thread_bytes = 0.0;
  std::size_t range_elements = 0;  ///< of a range, see make_unit_ranges(); 0: all units are one
  Timing timing = Timing::isolated;
  StopRule stop = {};            ///< of this replay
  bool errors = true;            ///< begin with a pass that compares every result with the exact mean
  bool also_concurrent = false;  ///< with that pass and isolated timing: look for ReplayResult::concurrent, too
  bool write_payloads = false;   ///< in that pass, write down what each rank puts into each collective
  /// Throws away samples in which the clock was held down. Empty: a GPU asks NVML, the CPU is not watched.
  ClockReasons clock_reasons = {};
  /// Called on rank 0 in the pass for the errors with every unit's result, step by step where all units are one range.
  std::function<void(std::size_t step, const Unit& unit, std::span<const float> result)> on_result = {};

  [[nodiscard]] std::size_t steps() const { return reader.steps().size(); }
  [[nodiscard]] std::vector<StepWindow> windows() const { return windows_of(reader.steps(), steps()); }
  [[nodiscard]] std::vector<UnitRange> ranges() const { return make_unit_ranges(units, range_elements); }
  [[nodiscard]] Scheme scheme() const { return way ? way->scheme : options.scheme_for(codec); }
  [[nodiscard]] int node() const { return way ? way->node : options.levelled(codec) ? options.node : 1; }
  [[nodiscard]] Collective op() const { return options.op; }
  /// Elements that ranks hand to the collective for a unit: shards are all as long, as PyTorch's FSDP pads them.
  [[nodiscard]] std::size_t padded(std::size_t elements) const {
    const auto parts = static_cast<std::size_t>(ranks);
    return op() == Collective::all_reduce ? elements : (elements + parts - 1) / parts * parts;
  }
  /// Chunks of a unit that overlap (lib/codecs/pipelined.hpp); 1: none do.
  [[nodiscard]] int pipeline() const { return options.pipeline_for(codec, timing); }
};

/// The bytes and values that a step sends, mean over steps.
struct StepBytes {
  double payload = 0.0;             ///< bytes that a rank's encoder wrote, mean over ranks
  double payload_max = 0.0;         ///< the same of the rank that wrote most
  double wire_per_rank = 0.0;       ///< bytes sent by the rank that sent most
  double wire_inside = 0.0;         ///< of an all-reduce in two levels: of these, inside machines; likewise the largest
  double wire_across = 0.0;         ///< and between them
  double values_sent = 0.0;         ///< gradient elements among the payload, mean over ranks
  double fewest_values_sent = 0.0;  ///< the same of the rank that sent fewest
};

/// The part of one unit in a step: its size, its times, its bytes and the collectives it takes part in.
struct UnitProfile {
  double ready = 1.0;  ///< share of the backward pass after which it is ready, see ready_shares()
  std::size_t elements = 0, largest_tensor = 0;  ///< of the unit, and of its largest tensor; 0 in read records
  bool has_side = false;  ///< its tensors have the weights or second moments that the codec takes
  /// Seconds, slowest rank, median over samples; 0 unless timing is isolated.
  double encode = 0.0, decode = 0.0;
  double decode_across = 0.0;  ///< of `decode`, what a reducer in two levels does between machines
  StepBytes bytes;
  CollectiveUses uses = no_uses();  ///< by kind, mean over steps
  bool gated = false;  ///< goes as `none` sends it: below the codec's gate, or in a modelled row, see set_gates()
};

/// The errors of one captured step, over all tensors or of one of them; bytes and energies are those of all.
struct StepErrors {
  ErrorSums sums;
  double cumulative_error = 0.0;   ///< sum over elements of (sum of x-y over the steps of its window so far)^2
  double cumulative_energy = 0.0;  ///< the same of x
  StepBytes bytes;                 ///< of the step, but for those of levels
  double residual_energy = 0.0;    ///< rank 0, after the step; 0 without error feedback
  double gradient_energy = 0.0;    ///< of what rank 0 encodes
};

/// The fate of packets on a transport of packets (TransportCounts), each number the worst of all ranks.
struct PacketShares {
  double delivered_least = 1.0;  ///< smallest share of a tensor's bytes that a message delivered
  double lost_first = 0.0;       ///< packets that had not arrived when all had been sent once / all
  double repeated = 0.0;         ///< datagrams sent after the first pass / all
  double burst = 0.0;            ///< mean length of a run of packets lost in a row; 0: none was lost
};

/// A step that was timed as another replay would have timed its only sample.
struct SpareSample {
  PhaseTimes times;
  double seconds = 0.0, limit = 0.0;  ///< as in ReplayResult
};

/// The outcome of a replay, on rank 0.
struct ReplayResult {
  std::vector<PhaseTimes> samples;  ///< one for each timed step: per unit the slowest rank, added over units
  /// The sample of the same replay with concurrent timing, on every rank, where a step takes all the time of a round.
  std::optional<SpareSample> concurrent;
  std::string clock_note;                ///< samples that were discarded, or why nothing watched; empty: nothing to say
  std::vector<ErrorSums> tensor_errors;  ///< by position in the file, pooled over steps
  std::vector<StepErrors> step_errors;   ///< of each captured step
  std::vector<StepErrors> tensor_steps;  ///< at step * tensors + tensor, where BenchOptions::tensor_steps asks for them
  std::vector<StepWindow> windows;       ///< of the steps
  /// By window and tensor, at window * tensors + tensor: sum over elements of (sum over the window's steps of x-y)^2.
  std::vector<double> cumulative_error;
  std::vector<double> cumulative_energy;  ///< likewise: sum over elements of (sum over the window's steps of x)^2
  std::vector<UpdateSums> updates;        ///< likewise; empty where BenchOptions::update_rule is
  double residual_energy = 0.0;           ///< rank 0, added over steps; 0 without error feedback
  double gradient_energy = 0.0;
  bool has_residual = false;
  StepBytes bytes;       ///< of all units; wire_per_rank: of the rank that sent most in each step
  std::string note;      ///< what reducers say about this replay
  bool reached = true;   ///< some unit's method came to its work, see Reducer::reached()
  double seconds = 0.0;  ///< that sampling took, with what is around the timed regions; the same on every rank
  double limit = 0.0;    ///< what StopRule::limit gave it; the same on every rank
  std::vector<UnitProfile> units;
  std::optional<PacketShares> packets;  ///< where the communicator sends packets itself; the same on every rank
};

/// The place where a replay runs, as --device and --comm say.
struct ReplayDevice {
  bool cuda = false;
  int index = 0;                  ///< of the GPU that loopback uses
  bool across_processes = false;  ///< ranks are processes, of mpirun or another launcher
};

/// Checks --comm against --device. Throws Fault::usage when they do not go together, Fault::unavailable for what is not
/// built in or not here.
[[nodiscard]] ReplayDevice choose_device(const BenchOptions& options);

/// Runs `plan` on all ranks. The result is filled in on the process that has rank 0. Throws Fault::check when ranks end
/// with different bits.
[[nodiscard]] ReplayResult run_replay(const ReplayDevice& device, const ReplayPlan& plan);

/// Runs one rank of a replay: with threads the loader is shared and rank 0 reads; with processes each rank has
/// its own.
void replay_rank(const ReplayPlan& plan, Communicator<Space::host>& comm, StepLoader& loader, bool shared_loader,
                 ReplayResult& result);
/// Does the same on a GPU: gradients are copied there untimed, phases are timed with events. Only in builds with CUDA.
void replay_rank(const ReplayPlan& plan, Communicator<Space::cuda>& comm, Queue<Space::cuda> queue, StepLoader& loader,
                 bool shared_loader, ReplayResult& result);

}  // namespace gradtool
