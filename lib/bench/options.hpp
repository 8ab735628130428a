#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/bench/replayed_weights.hpp"
#include "lib/bench/update_errors.hpp"
#include "lib/bench/windows.hpp"
#include "lib/codecs/reducer.hpp"
#include "lib/comm/launch.hpp"
#include "lib/core/dtype.hpp"
#include "lib/model/cost_model.hpp"
#include "lib/model/statistics.hpp"
#include "lib/model/units.hpp"

namespace gradtool {

class CodecSpeed;
struct JobTrace;

/// How ranks that share a machine are timed (docs/measuring.md, "Time").
enum class Timing : std::uint8_t {
  isolated,    ///< one rank encodes or decodes at a time, collectives start together; there is no total
  concurrent,  ///< all ranks at once: what this machine really did
};

/// The source of the time that an iteration computes, without which gradients alone are modelled.
enum class Computation : std::uint8_t {
  if_captured,  ///< the file, where it says
  captured,     ///< the file, which must say
  given,        ///< compute_seconds
  none,
};

/// Ranks of synthetic gradients where nothing says how many.
constexpr int kSyntheticRanks = 4;

/// A way that a codec's payloads take.
struct Way {
  Scheme scheme = Scheme::automatic;
  int node = 1;  ///< ranks of a machine, of an all-reduce in two levels whose inside is uncompressed; 1: in one level
  friend bool operator==(const Way&, const Way&) = default;
};

/// A file of --received, and the bytes that its method sends, for each rank and step, where they were given.
struct ReceivedFile {
  std::string path;
  std::optional<std::uint64_t> bytes;
};

/// The options of one `gradtool bench`. Held once, by the caller of run_bench, for as long as that runs; everything
/// else refers to it.
struct BenchOptions {
  std::string file;                           ///< capture to replay; empty with `sizes`
  std::vector<std::uint64_t> sizes;           ///< bytes of synthetic gradients to replay instead (synthetic.hpp)
  std::vector<CodecSpec> codecs;              ///< `none` and `noop` are added in front when missing
  std::vector<ReceivedFile> received;         ///< what other programs' methods brought, each for rows of its own
  std::vector<Granularity> granularities{1};  ///< each is a bench of its own, compared with the others
  std::optional<Dtype> baseline;              ///< in which the job reduces gradients uncompressed; empty: as captured
  ReplayedValues values = ReplayedValues::automatic;
  Collective op = Collective::all_reduce;  ///< what is carried out on every unit
  Scheme scheme = Scheme::automatic;
  int node = 1;                    ///< ranks of a machine, for an all-reduce in two levels; 1: in one
  std::optional<CodecSpec> inner;  ///< of two levels: the codec inside machines; none where not given
  std::string comm = "threads";    ///< threads, mpi or udp; with device cuda loopback or nccl
  UdpOptions udp;                  ///< where comm is udp
  std::string device = "cpu";
  double comm_timeout = 120.0;             ///< seconds that ranks wait for one of them
  int ranks = 0;                           ///< 0: as many as the file has workers; synthetic ones 4
  AllReduce all_reduce = AllReduce::ring;  ///< how sums of payloads are added; `none` is the library's own
  int pipeline = 1;                        ///< chunks of a unit that overlap in concurrent rows; 1: off
  int threads = 0;                         ///< of each rank; 0: the machine's cores over the ranks on it
  bool all_codecs = false;  ///< the list is the whole registry: what the scheme does not fit is skipped, not refused
  bool isolated = true, concurrent = true;
  StopRule stop;
  std::size_t iterations = 0;  ///< samples of every row, exactly, as `stop` then says; 0: until the noise is low
  std::size_t rounds = 5;      ///< in which every codec is timed once, so that what drifts hits all of them alike
  std::uint64_t seed = 1;
  std::vector<std::uint64_t> more_seeds;          ///< run_bench() benches everything once more with each of these
  std::optional<IterationRange> only_iterations;  ///< captured ones that are replayed; empty: all
  std::size_t steps = 0;                          ///< of these, the first of every window; 0: all
  std::size_t warmup_steps = 2;                   ///< unsampled steps, where no pass for the errors comes first
  bool check = true;                              ///< compare the result's bits across ranks after every step, untimed
  bool hot = false;                               ///< leave the caches as they are between steps
  bool per_tensor = false;                        ///< also a row with the errors of each tensor
  bool tensor_steps = false;  ///< with per_tensor: the errors of each step are kept for each tensor, too
  /// The optimizer in which results are compared as well; empty: in none.
  std::optional<UpdateRule> update_rule = {};
  bool quality = true;  ///< also measure what one rank's codec does alone (measure_quality)
  /// Codecs that are not begun by then are skipped.
  std::optional<std::chrono::steady_clock::time_point> deadline;
  std::string layers;              ///< regular expression; empty: all tensors
  std::vector<Network> networks;   ///< to model
  std::optional<Library> library;  ///< that carries their collectives; empty: what the capture's job used, else `best`
  /// Times that take the place of the measured ones in modelled rows; null: none do.
  std::shared_ptr<const CodecSpeed> codec_speed = {};
  std::vector<int> nodes;  ///< of each; empty: as many as were measured
  Computation computation = Computation::if_captured;
  std::shared_ptr<const JobTrace> trace = {};  ///< of the user's job, where the time is from one
  double compute_seconds = 0.0;                ///< of one iteration on one rank, exchange aside, where they are given
  std::optional<Overlap> overlap;              ///< of modelled iterations; empty: by bucket, where there are any
  std::string reconstruction;                  ///< file to write; empty: none
  std::string payloads;                        ///< folder to write the codec's payloads to; empty: none
  std::string command;                         ///< as given, for the record
  std::string outputs;                         ///< the options of outputs that were given, which ranks must have alike

  /// The way in which ranks that are processes reach each other.
  [[nodiscard]] ProcessComm processes() const { return {comm, udp}; }
  /// Ways beside `scheme` that a codec is replayed by on `replayed` ranks, so that the networks' models can choose:
  /// where --reduce is auto, alltoall for a codec whose payloads are gathered otherwise, and which can work on shards;
  /// and both once more in two levels, machines of node_for(). Not hop, which sends the same bytes in as many messages
  /// and rounds at each of them.
  [[nodiscard]] std::vector<Way> other_ways(const CodecSpec& spec, int replayed) const;
  /// Ranks of a machine where a replay stands for a modelled network with machines of several ranks: as many as the
  /// network's where the ranks make two such machines or more, else the most that do. 1: no network has such machines,
  /// or the ranks cannot be divided so.
  [[nodiscard]] int node_for(int replayed) const;
  /// `scheme`, but what they always ride for none and noop.
  [[nodiscard]] Scheme scheme_for(const CodecSpec& spec) const;
  /// True where `spec` works between machines, and another codec inside. The baselines stay what they are.
  [[nodiscard]] bool levelled(const CodecSpec& spec) const;
  [[nodiscard]] CodecSpec inside() const { return inner ? *inner : parse_codec("none"); }
  /// The scheme of `spec` among the ranks that it works on. Throws Fault::usage where it cannot.
  [[nodiscard]] Scheme resolved(const CodecSpec& spec) const;
  /// The way to add sums of `spec`: ring, doubling, auto, server, transpose or library; none where nothing is added.
  [[nodiscard]] std::string_view all_reduce_for(const CodecSpec& spec) const;
  /// Whether errors of the sums over steps mean something: elements are the same in every step, which they are not in
  /// an all-to-all, and the codec's target does not carry on what was not sent.
  [[nodiscard]] bool adds_up(const CodecSpec& spec) const {
    return op != Collective::all_to_all && spec.descriptor->target.empty();
  }
  /// `pipeline`, but 1 where phases are timed apart and for none and noop.
  [[nodiscard]] int pipeline_for(const CodecSpec& spec, Timing timing) const;
};

/// Throws Fault::usage, or Fault::unavailable, for options that are out of range or exclude each other.
void check_options(const BenchOptions& options);

}  // namespace gradtool
