#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lib/bench/statistics.hpp"
#include "lib/report/table.hpp"
#include "lib/train/options.hpp"

namespace gradtool {

/// Seconds and bytes of training, added over steps.
struct TrainCosts {
  /// Bytes sent by the rank that sent most in each step, counted by the communicator.
  double wire_bytes = 0.0;
  double payload_bytes = 0.0;  ///< that a rank's encoder wrote, mean over ranks
  /// Forward and backward passes, the copies between gradients and buckets and the update of the weights, of the
  /// slowest worker of each step.
  double compute = 0.0;
  double encode = 0.0;       ///< processor time of the slowest rank of each step
  double communicate = 0.0;  ///< clock time of the same, waiting for other ranks included
  double decode = 0.0;       ///< as encode
  double total = 0.0;        ///< clock time of the steps, without evaluating and checkpoints
};

/// A run after an epoch, at a step of --evaluate-every, or where it ended.
struct TrainRow {
  struct Numbers {
    std::int64_t epoch = 0;      ///< that the last step is in, from 1
    std::int64_t step = 0;       ///< steps made
    double learning_rate = 0.0;  ///< of the last of them
    double train_loss =
        0.0;  ///< mean over workers and the steps since the row before; not finite where the run diverged
    double test_loss = 0.0, test_accuracy = 0.0;
    TrainCosts costs;         ///< of all steps so far
    std::int64_t tested = 0;  ///< 1 where the model was evaluated
  };
  Numbers numbers;
  std::vector<double> modelled;  ///< seconds of all steps so far, on each network
};

/// One codec with one seed.
struct TrainRun {
  enum class Status : std::uint8_t { unfinished, finished, diverged };

  std::size_t codec = 0;  ///< position in TrainOptions::codecs
  std::int64_t seed = 0;
  Status status = Status::unfinished;
  std::vector<TrainRow> rows = {};
  std::string weights_sha256 = {};  ///< of the final weights, as float32 in forward order
  std::string note = {};            ///< what the reducers say; empty: nothing

  /// The accuracy of the last row, or the best one; nothing without a test set.
  [[nodiscard]] std::optional<double> final_accuracy() const;
  [[nodiscard]] std::optional<double> best_accuracy() const;
  /// The first row that has reached `accuracy`; null where none has.
  [[nodiscard]] const TrainRow* reached(double accuracy) const;
};

[[nodiscard]] std::string_view name_of(TrainRun::Status status);

/// Schema version of the tables and the record.
constexpr int kTrainSchema = 1;

/// The mean of what was measured once for each seed, and where it lies with 95 % confidence (Student's t); no interval
/// for fewer than two.
struct MeanOverSeeds {
  std::size_t count = 0;
  double mean = 0.0;
  std::optional<Interval> interval = {};
};
[[nodiscard]] std::optional<MeanOverSeeds> mean_over_seeds(const std::vector<double>& values);

/// All runs of a command.
struct TrainReport {
  std::vector<TrainRun> runs;
  std::uint64_t elements = 0;  ///< of the model
  std::int64_t steps_per_epoch = 0;
  bool interrupted = false;
  bool leads = true;  ///< false on all processes of a job but the first
};

/// train.csv: a row for each codec, seed and epoch (or step of --evaluate-every), in that order. Columns of times end
/// in _seconds.
[[nodiscard]] Table train_table(const TrainOptions& options, const TrainReport& report);
/// summary.csv: a row for each codec. Means are over the seeds whose run has finished.
[[nodiscard]] Table train_summary(const TrainOptions& options, const TrainReport& report);
/// train.json: both, with what was asked for and where it was run.
[[nodiscard]] nlohmann::ordered_json train_record(const TrainOptions& options, const TrainReport& report,
                                                  const std::vector<Fact>& facts);
/// For people: a line for each codec, and below what else must be known.
[[nodiscard]] std::string train_text(const TrainOptions& options, const TrainReport& report);

}  // namespace gradtool
