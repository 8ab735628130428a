#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "lib/capture/dataset.hpp"
#include "lib/capture/trainer.hpp"
#include "lib/comm/communicator.hpp"
#include "lib/train/result.hpp"

namespace gradtool {

/// One codec with one seed and one factor of the learning rate: what its ranks share. What it refers to must outlive
/// it.
struct RunPlan {
  const TrainOptions& options;
  const Dataset& training_set;
  const Dataset* test_set;  ///< null where there is none
  std::size_t codec = 0;    ///< position in options.codecs
  std::int64_t seed = 0;
  double lr_factor = 1.0;  ///< learning rates are multiplied with it
  std::int64_t steps = 0;
  std::string checkpoint;  ///< file
  /// Seconds of one step's computation, for the network models; empty: as measured in this run.
  std::optional<double> compute_seconds = {};
  bool threads = true;  ///< ranks are threads of this process and share a trainer; else each has its own
  /// Called on rank 0 after every step, and, with `row`, when there is a new row.
  std::function<void(const TrainRun& run, std::int64_t step, double loss, bool row)> on_step = {};

  [[nodiscard]] const CodecSpec& spec() const { return options.codecs[codec]; }
};

/// The objects that the ranks of a run share if they are threads.
struct SharedTrainer {
  std::unique_ptr<Trainer> trainer;  ///< made by rank 0
  std::span<const float> weights;    ///< of the step, where the codec wants them; fetched by rank 0, once for all
};

/// Trains on one rank until the run has finished, has diverged or is interrupted; all ranks call it. Every step: the
/// workers' gradients, from which rank r takes those of worker r; the codec's reducer averages them unit by unit over
/// `comm`; the optimiser takes the result. Goes on from the checkpoint where there is one, and writes checkpoints.
/// Fills in `run` on every rank; rows, hash and note on rank 0 alone. `elements` := the parameters of the model.
///
/// Throws Fault::check when ranks end an epoch with different gradients or weights.
void train_rank(const RunPlan& plan, Communicator<Space::host>& comm, SharedTrainer& shared, TrainRun& run,
                std::uint64_t& elements);

}  // namespace gradtool
