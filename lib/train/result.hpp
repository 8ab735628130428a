#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lib/codecs/reducer.hpp"
#include "lib/core/words.hpp"
#include "lib/model/statistics.hpp"
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

/// One codec with one seed and one factor of the learning rate.
struct TrainRun {
  enum class Status : std::uint8_t { unfinished, finished, diverged };

  std::size_t codec = 0;  ///< position in TrainOptions::codecs
  std::int64_t seed = 0;
  double lr_factor = 1.0;  ///< that learning rates were multiplied with
  Status status = Status::unfinished;
  std::vector<TrainRow> rows = {};
  std::string weights_sha256 = {};  ///< of the final weights, as float32 in forward order
  std::string note = {};            ///< what the reducers say; empty: nothing
  bool at_work = true;              ///< the method came to its work in these steps

  /// The accuracy of the last row, or the best one; nothing without a test set.
  [[nodiscard]] std::optional<double> final_accuracy() const;
  [[nodiscard]] std::optional<double> best_accuracy() const;
  /// The first row that has reached `accuracy`; null where none has.
  [[nodiscard]] const TrainRow* reached(double accuracy) const;
};

constexpr auto spellings(TrainRun::Status) {
  return words("unfinished", "finished", "diverged");
}

/// Schema version of the tables and the record.
constexpr int kTrainSchema = 1;

/// All runs of a command.
struct TrainReport {
  std::vector<TrainRun> runs;
  std::uint64_t elements = 0;  ///< of the model
  std::int64_t steps_per_epoch = 0;
  bool interrupted = false;
  bool leads = true;      ///< false on all processes of a job but the first
  bool kept_old = false;  ///< stopped before a first result, so that what --force was to replace is there again
};

/// The factor of the learning rate with which the codec did best in the first seed: by its accuracy on the test set, or
/// without one by its training loss in the last row. Empty where it has finished with none, or not yet tried all.
[[nodiscard]] std::optional<double> best_lr_factor(const TrainOptions& options, const TrainReport& report,
                                                   std::size_t codec);
/// Whether the run counts for what is said of its codec. The seed that chose the factors of the learning rate does not,
/// where there are other seeds; alone it counts with the best factor, or with the first one where all have diverged.
/// While a factor has not ended, the run that was interrupted counts, as unfinished.
[[nodiscard]] bool is_judged(const TrainOptions& options, const TrainReport& report, const TrainRun& run);

/// The note of a run that is over: what its codec does to the optimiser, and what its reducers say.
[[nodiscard]] std::string note_of_run(const TrainOptions& options, const CodecSpec& spec,
                                      const std::vector<std::unique_ptr<Reducer<Space::host>>>& reducers);

/// train.csv: a row for each codec, seed and epoch (or step of --evaluate-every), in that order. Columns of times end
/// in _seconds.
[[nodiscard]] Table train_table(const TrainOptions& options, const TrainReport& report);
/// A sentence without its end where none itself did not get better, by which no codec can be judged. Empty else, and
/// where runs have one row.
[[nodiscard]] std::string train_warning(const TrainOptions& options, const TrainReport& report);

/// summary.csv: a row for each codec. Means are over the judged runs that have finished.
[[nodiscard]] Table train_summary(const TrainOptions& options, const TrainReport& report);
/// train.json: both, with what was asked for and where it was run.
[[nodiscard]] nlohmann::ordered_json train_record(const TrainOptions& options, const TrainReport& report,
                                                  const std::vector<Fact>& facts);
/// For people: a line for each codec, and below what else must be known.
[[nodiscard]] std::string train_text(const TrainOptions& options, const TrainReport& report);

}  // namespace gradtool
