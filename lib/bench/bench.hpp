#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "lib/bench/options.hpp"
#include "lib/bench/result.hpp"

namespace gradtool {

/// What a whole `gradtool bench` came to.
struct BenchReport {
  std::vector<ResultRow> rows;
  std::vector<double> ready;  ///< share of the backward pass after which each unit is ready, see ready_shares()
  std::string file_sha256;
  double copy_rate = 0.0;    ///< bytes per second, measured in this run
  bool leads = true;         ///< false on the ranks of an MPI job that print nothing
  bool failed = false;       ///< a row has status `failed`
  bool interrupted = false;  ///< the user stopped it; rows not reached are `skipped`
};

/// Replays the file through every codec. Throws Fault::usage for options that do not fit the file, Fault::data for the
/// file, Fault::unavailable for what is not built in. A codec that fails makes a row with status `failed`. `keep`, when
/// given, gets all rows so far after every codec, on the process that leads: a run that ends badly loses no more than
/// the codec it was at.
using KeepRows = std::function<void(std::span<const ResultRow>)>;
[[nodiscard]] BenchReport run_bench(const BenchOptions& options, const KeepRows& keep = {});

/// The full record: options, machine, file and hash, every row and every sample.
[[nodiscard]] nlohmann::ordered_json record(const BenchOptions& options, const BenchReport& report);

}  // namespace gradtool
