#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lib/bench/options.hpp"
#include "lib/bench/result.hpp"
#include "lib/io/gradient_file.hpp"

namespace gradtool {

/// The outcome of a whole `gradtool bench`.
struct BenchReport {
  std::vector<ResultRow> rows;
  std::string file_sha256;
  /// The files that have the values of a merged view, with their hashes; empty for any other file.
  std::vector<std::pair<std::string, std::string>> source_sha256;
  std::vector<std::string> received_sha256;  ///< of each file of --received
  std::string processor;                     ///< name of the CPU or GPU that codecs ran on; empty: not known
  double copy_rate = 0.0;                    ///< bytes per second, measured in this run
  double thread_bytes = 0.0;     ///< of a unit, for each thread that works on it (measure_thread_bytes); 0: one thread
  double likeness = 0.0;         ///< of the workers' gradients, see worker_likeness()
  bool stated_averaged = false;  ///< the file's attribute `averaged` is 1
  std::size_t overflowed_steps = 0;  ///< captured steps that are not replayed because their gradients overflowed
  std::vector<std::string> written;  ///< of --reconstruction and --payloads those that are there and whole
  std::vector<std::string> without_speed = {};  ///< codecs that --codec-speed has no times for: they are not modelled
  std::string left_out = {};                    ///< of synthetic sizes those that do not fit into memory, and why
  bool leads = true;                            ///< false on the ranks of an MPI job that print nothing
  bool failed = false;                          ///< a row has status `failed`
  bool interrupted = false;                     ///< the user stopped it; rows not reached are `skipped`

  /// The workers' gradients are the same, as those read after DDP's backward pass are: what compression does to the
  /// gradients that a rank really sends cannot be seen in them.
  [[nodiscard]] bool averaged() const { return stated_averaged || likeness > kAveragedLikeness; }
};

/// Throws Fault::data where the record of --codec-speed has no times of `none`, with which codecs are compared.
void expect_times_of_none(const BenchOptions& options, const BenchReport& report);

/// Replays the file through every codec, once for each seed, whose rows follow each other. Throws Fault::usage for
/// options that do not fit the file, Fault::data for the file, Fault::unavailable for what is not built in. A codec
/// that fails makes a row with status `failed`. `keep`, when given, gets all rows so far after every codec, on the
/// process that leads: a run that ends badly loses no more than the codec it was at.
using KeepRows = std::function<void(std::span<const ResultRow>)>;
[[nodiscard]] BenchReport run_bench(const BenchOptions& options, const KeepRows& keep = {});

/// Several benches of one capture, one after the other: it is opened, looked through and hashed once, and the machine
/// is measured once.
class BenchSession {
 public:
  /// Refers to `options`, of which may change between runs: codecs, rounds, stop, steps, seed, quality, deadline, and
  /// `received` become empty. Throws as
  /// run_bench() does.
  explicit BenchSession(const BenchOptions& options);
  ~BenchSession();
  BenchSession(const BenchSession&) = delete;
  BenchSession& operator=(const BenchSession&) = delete;

  [[nodiscard]] std::vector<StepWindow> windows() const;  ///< of all captured steps
  [[nodiscard]] int ranks() const;                        ///< that are replayed
  /// Does what run_bench() does; `label` stands in front of the progress.
  [[nodiscard]] BenchReport run(const KeepRows& keep = {}, const std::string& label = "bench");

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gradtool
