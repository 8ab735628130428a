#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/capture/catalogue.hpp"
#include "lib/capture/schedule.hpp"
#include "lib/capture/trainer.hpp"
#include "lib/core/dtype.hpp"
#include "lib/io/gradient_file.hpp"

namespace gradtool {

/// The options of `gradtool capture`. check_options() checks them.
struct CaptureOptions {
  std::string model;
  std::string dataset;   ///< empty: default_dataset(model)
  std::string data_dir;  ///< empty: the folder of the data set's description
  std::string out;
  bool force = false;  ///< replace `out` if it exists

  std::int64_t workers = 4;
  std::int64_t batch_size = 32;  ///< per worker
  std::int64_t micro_batches = 1;
  std::int64_t image_size = 0;                  ///< pixels a side to which images are enlarged; 0: as they are
  std::optional<std::int64_t> sequence_length;  ///< of text; default: the model's. Stays empty for images
  std::vector<std::string> with;  ///< weight, second_moment (which needs micro_batches >= 2, and then is stored anyway)

  std::optional<std::int64_t> start_step;  ///< default: 0, with windows a twentieth of the way to end_step
  std::optional<std::int64_t> end_step;    ///< first iteration not captured; default: see check_options()
  std::int64_t every = 1;
  std::optional<std::int64_t> windows;       ///< of consecutive iterations, see CaptureSchedule; default: none
  std::optional<std::int64_t> window_steps;  ///< of each window; default 8
  std::optional<std::int64_t> steps;         ///< iterations trained; default: end_step
  std::string layers;                        ///< regular expression on tensor names; empty: all
  std::string dtype = "f32";

  std::string optimizer = "sgd";        ///< one of optimizer_names()
  std::optional<double> learning_rate;  ///< default: default_learning_rate(model, optimizer)
  std::string lr_schedule = "constant";
  std::optional<double> weight_decay;  ///< default: default_weight_decay(optimizer)
  std::optional<double> momentum;      ///< of sgd; default 0.9
  bool nesterov = false;               ///< of sgd
  std::optional<double> epsilon;       ///< of adam and adamw; default 1e-8
  std::vector<double> betas;           ///< of adam and adamw; default 0.9, 0.999

  std::int64_t diloco = 0;  ///< H: pseudo-gradients of so many local steps are captured; 0: gradients
  std::optional<double> outer_learning_rate, outer_momentum;  ///< of diloco; default 0.7, 0.9

  std::string device = "cpu";
  std::optional<int> threads;  ///< default: the machine's, at most `workers`
  std::int64_t seed = 1;

  bool log_steps = false;
  std::string train_log;  ///< CSV with one row for each iteration; empty: none
  std::string command;    ///< for the file's `command` attribute
};

/// The result of a capture. Times are seconds of wall clock.
struct CaptureReport {
  std::size_t iterations = 0;  ///< trained
  std::size_t steps = 0;       ///< captured, and readable in the file
  std::size_t tensors = 0;
  std::uint64_t elements = 0;  ///< of one worker's gradient as captured
  std::uint64_t data_bytes = 0, file_bytes = 0;
  double first_loss = 0.0, last_loss = 0.0;  ///< mean over workers, first and last iteration
  double train_seconds = 0.0;                ///< training itself: batches, forward, backward, update
  double capture_seconds = 0.0;              ///< what capturing added to that: copying and waiting for the disk
  double write_seconds = 0.0;                ///< spent by the writing thread, in parallel with the training
  std::optional<double> accuracy;            ///< on the first `tested` test samples, with the final weights
  std::optional<double> test_loss;           ///< the same
  std::size_t tested = 0;
  bool complete = false;     ///< every scheduled step is in the file
  bool interrupted = false;  ///< the user stopped it before the last iteration
};

/// Fashion-MNIST, or text for language models.
[[nodiscard]] std::string default_dataset(const std::string& model);
/// The values that --optimizer accepts.
[[nodiscard]] const std::vector<std::string>& optimizer_names();
/// For one of model_names() and one of optimizer_names().
[[nodiscard]] double default_learning_rate(const std::string& model, const std::string& optimizer = "sgd");
/// 1e-4 for sgd, as in most papers on images; PyTorch's for the others, 0 for adam and 0.01 for adamw.
[[nodiscard]] double default_weight_decay(const std::string& optimizer);
/// "f32", "f16" or "bf16"; throws Fault::usage for anything else.
[[nodiscard]] Dtype parse_dtype(const std::string& text);

/// Checks every option that needs no data, fills in those whose defaults depend on others, and returns the result.
/// Without --steps and --end-step 20 steps are captured; training ends with the last captured step unless --steps asks
/// for more. Throws Fault::usage with one sentence about the first option that is not valid.
[[nodiscard]] CaptureOptions check_options(CaptureOptions options);

/// The iterations that are captured. `options` come from check_options().
[[nodiscard]] CaptureSchedule schedule_of(const CaptureOptions& options);

/// The part of the options that makes a trainer. `options` come from check_options().
[[nodiscard]] TrainerOptions trainer_options(const CaptureOptions& options);

/// The tensors that are captured, and where each lies in the flat vector of all parameters.
struct Selection {
  struct Range {
    std::size_t first, count;
  };
  std::vector<TensorInfo> tensors;  ///< in forward order
  std::vector<Range> ranges;        ///< one for each tensor
  std::size_t elements = 0;

  /// Copies the selected elements of `flat` to the front of `out` and returns the rest of `out`.
  [[nodiscard]] std::span<float> gather(std::span<const float> flat, std::span<float> out) const;
};

/// The tensors in whose name the regular expression `layers` is found, anywhere in the name; all tensors when it is
/// empty. Throws Fault::usage, naming the first and the last tensor, when it matches none.
[[nodiscard]] Selection select_tensors(const std::vector<TensorInfo>& all, const std::string& layers);

/// Trains and captures. The file's attribute `complete` is 1 only if every scheduled step was captured; after an
/// interrupt the file is valid and closed, but not complete. A file without any step is removed. Shows progress on
/// stderr. Throws Fault::unavailable without LibTorch, Fault::usage as check_options(), Fault::data for a bad data set.
[[nodiscard]] CaptureReport run_capture(const CaptureOptions& options);

}  // namespace gradtool
