#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lib/bench/options.hpp"
#include "lib/bench/readiness.hpp"
#include "lib/bench/replay.hpp"
#include "lib/bench/result.hpp"
#include "lib/io/gradient_file.hpp"
#include "lib/model/units.hpp"

namespace gradtool {

/// The tensors that are replayed, and those that are not because their values are not finite.
struct TensorChoice {
  std::vector<std::size_t> tensors;
  std::vector<NonFinite> skipped;
};

/// The cut of a file's tensors by one --granularity, or one size of synthetic gradients. Each is a bench of its own.
struct BenchCut {
  const GradientSource& source;
  std::string name;  ///< as the column granularity has it
  TensorChoice selection = {};
  std::vector<Unit> units = {};
  std::uint64_t elements = 0;                ///< of all units
  bool averaged = false;                     ///< as in ResultRow
  std::string remark = {};                   ///< for rows that cover all tensors
  const BackwardTiming* backward = nullptr;  ///< where the file says when gradients are ready
};

/// One codec with one timing and by one way, replayed in several rounds.
struct Measurement {
  Measurement(CodecSpec codec, Timing how, std::optional<Way> by = {}) : spec{std::move(codec)}, timing{how}, way{by} {}

  CodecSpec spec;
  Timing timing;
  std::optional<Way> way;           ///< one of BenchOptions::other_ways(); empty: the row's own
  ReplayResult result;              ///< errors and bytes of the first round; the samples of all of them
  std::vector<std::size_t> rounds;  ///< how many samples each of them took
  double seconds = 0.0;             ///< of sampling
  double limit = 0.0;               ///< of that, see StopRule
  std::string clock_note;
  CodecQuality quality;
  bool errors = false;  ///< the errors are those of this very replay
  ResultRow::Status status = ResultRow::Status::ok;
  std::string message;  ///< of a status that is not ok
};

/// The remarks, the second behind the first where there is one.
[[nodiscard]] std::string joined(const std::string& first, const std::string& second);

/// Rows of the table of `gradtool bench` from what replays came to: sums over tensors, medians over samples, remarks.
/// `options` must outlive it.
class RowMaker {
 public:
  /// The facts that are the same for all rows of a run.
  struct Run {
    std::string id;
    int ranks = 1;
    int threads = 1;         ///< of a rank
    std::string processor;   ///< see BenchReport
    double copy_rate = 0.0;  ///< bytes/s, of a rank's threads
  };

  RowMaker(const BenchOptions& options, Run run) : options_{options}, run_{std::move(run)} {}

  /// Tensors that were left out, all tensors in one row, and each tensor where --per-tensor asks for that. What is the
  /// same for both timings comes once: tensors left out with the first, each tensor with the one that has errors.
  [[nodiscard]] std::vector<ResultRow> rows_of(const BenchCut& cut, const Measurement& m) const;

 private:
  [[nodiscard]] ResultRow start_row(const BenchCut& cut, const Measurement& m, const TensorInfo* tensor,
                                    std::span<const Unit> units) const;
  [[nodiscard]] ResultRow row_of_all(const BenchCut& cut, const Measurement& m) const;
  void add_tensor_rows(const BenchCut& cut, const Measurement& m, std::vector<ResultRow>& rows) const;

  const BenchOptions& options_;
  Run run_;
};

}  // namespace gradtool
