#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lib/bench/iteration.hpp"
#include "lib/bench/network.hpp"
#include "lib/bench/replay.hpp"
#include "lib/report/table.hpp"

namespace gradtool {

/// As --all-reduce has it.
[[nodiscard]] constexpr std::string_view name_of(AllReduce algorithm) {
  return algorithm == AllReduce::ring ? "ring" : algorithm == AllReduce::doubling ? "doubling" : "auto";
}

/// A whole `gradtool bench`.
struct BenchOptions {
  std::string file;
  std::vector<CodecSpec> codecs;  ///< `none` and `noop` are added in front when missing
  Granularity granularity;
  Scheme scheme = Scheme::automatic;
  std::string comm = "threads";  ///< threads or mpi; the CUDA ones with device cuda
  std::string device = "cpu";
  double comm_timeout = 120.0;             ///< seconds that ranks wait for one of them
  int ranks = 0;                           ///< 0: as many as the file has workers
  AllReduce all_reduce = AllReduce::ring;  ///< how sums of payloads are added; `none` is the library's own
  int pipeline = 1;                        ///< chunks of a unit that overlap in concurrent rows; 1: off
  int threads = 0;                         ///< of each rank; 0: all cores isolated, cores shared concurrent
  bool all_codecs = false;  ///< the list is the whole registry: what the scheme does not fit is skipped, not refused
  bool isolated = true, concurrent = true;
  StopRule stop;
  std::uint64_t seed = 1;
  std::size_t warmup_steps = 2;
  bool check = true, hot = false, per_tensor = false;
  std::string layers;             ///< regular expression; empty: all tensors
  std::vector<Network> networks;  ///< to model
  std::vector<int> nodes;         ///< of each; empty: as many as were measured
  double compute_seconds = 0.0;   ///< of one iteration on one rank, forward and backward; 0: no iterations modelled
  bool compute_captured = false;  ///< take them from the file
  Overlap overlap = Overlap::bucket;
  std::string reconstruction;  ///< file to write; empty: none
  std::string payloads;        ///< folder to write the codec's payloads to; empty: none
  std::string command;         ///< as given, for the record

  /// `scheme`, but what they always ride for none and noop.
  [[nodiscard]] Scheme scheme_for(const CodecSpec& spec) const;
  /// What adds the sums of `spec`: ring, doubling or auto, or library.
  [[nodiscard]] std::string_view all_reduce_for(const CodecSpec& spec) const;
  /// `pipeline`, but 1 where phases are timed apart and for none and noop.
  [[nodiscard]] int pipeline_for(const CodecSpec& spec, Timing timing) const;
};

struct BenchReport {
  Table rows;
  std::vector<std::vector<PhaseTimes>> samples;           ///< of each row; empty where a row was not timed
  std::map<std::size_t, std::vector<UnitProfile>> units;  ///< of the isolated rows
  std::vector<double> ready;                              ///< of each unit, see ready_shares()
  std::string file_sha256;
  double copy_rate = 0.0;    ///< bytes per second, measured in this run
  bool leads = true;         ///< false on the ranks of an MPI job that print nothing
  bool failed = false;       ///< a row has status `failed`
  bool interrupted = false;  ///< the user stopped it; rows not reached are `skipped`
};

/// Columns of the rows, with their meaning: the schema that docs/measuring.md prints.
[[nodiscard]] const std::vector<Column>& bench_columns();

/// Throws Fault::usage, or Fault::unavailable, for options that are out of range or exclude each other.
void check_options(const BenchOptions& options);

/// Replays the file through every codec. Throws Fault::usage for options that do not fit the file, Fault::data for the
/// file, Fault::unavailable for what is not built in. A codec that fails makes a row with status `failed`. `keep`, when
/// given, gets all rows so far after every codec, on the process that leads: a run that ends badly loses no more than
/// the codec it was at.
[[nodiscard]] BenchReport run_bench(const BenchOptions& options, const std::function<void(const Table&)>& keep = {});

/// The full record: options, machine, file and hash, every row and every sample.
[[nodiscard]] nlohmann::ordered_json record(const BenchOptions& options, const BenchReport& report);

/// The name under which a row stands in tables for people: the codec, and only those parameters that are not defaults.
[[nodiscard]] std::string short_name(const Table& table, std::size_t row);

/// For people: one line per codec, sorted by time, at most 100 characters wide.
[[nodiscard]] std::string terminal_table(const BenchReport& report);

}  // namespace gradtool
