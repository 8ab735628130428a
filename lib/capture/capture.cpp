#include "lib/capture/capture.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>
#include <string>
#include <utility>

#include "lib/capture/recorder.hpp"
#include "lib/capture/sampler.hpp"
#include "lib/capture/schedule.hpp"
#include "lib/capture/trainer.hpp"
#include "lib/core/files.hpp"
#include "lib/core/interrupt.hpp"
#include "lib/core/text.hpp"
#include "lib/core/throw_error.hpp"
#include "lib/io/gradient_file.hpp"
#include "lib/report/progress.hpp"

namespace gradtool {
namespace {

/// Reports progress on stderr, with the loss and the time left. With `log_steps` it prints instead a line "captured
/// step <iteration>" for every captured step, after the step is in the file.
class Monitor {
 public:
  Monitor(const std::string& label, std::int64_t iterations, bool log_steps);

  /// Called after each iteration. `done` is the number of iterations so far, `loss` the mean loss of the last one.
  void trained(std::int64_t done, double loss);
  /// Called on the writing thread when a step is in the file.
  void captured(const StepInfo& step) const;

 private:
  bool log_steps_;
  std::unique_ptr<Progress> bar_;
};

/// Writes the CSV of --train-log with the columns iteration, epoch, learning_rate, loss (mean over workers) and
/// captured (0 or 1). Every row is flushed at once, so that the rows survive a kill.
class TrainLog {
 public:
  /// With an empty path every call does nothing. Throws Fault::backend when the file cannot be created.
  explicit TrainLog(const std::string& path);
  ~TrainLog();  ///< removes a log without a row, which would only stand in the way of the next run
  TrainLog(const TrainLog&) = delete;
  TrainLog& operator=(const TrainLog&) = delete;
  void add(std::int64_t iteration, double epoch, double learning_rate, double loss, bool captured);

 private:
  std::string path_;
  std::ofstream file_;
  bool has_rows_ = false;
};

Monitor::Monitor(const std::string& label, std::int64_t iterations, bool log_steps) : log_steps_{log_steps} {
  if (!log_steps) bar_ = std::make_unique<Progress>(label, static_cast<std::uint64_t>(iterations));
}

void Monitor::trained(std::int64_t done, double loss) {
  if (bar_) bar_->update(static_cast<std::uint64_t>(done), fmt::format("loss {:.3f}", loss));
}

void Monitor::captured(const StepInfo& step) const {
  if (log_steps_) fmt::print(stderr, "captured step {}\n", step.iteration);
}

TrainLog::TrainLog(const std::string& path) : path_{path} {
  if (path.empty()) return;
  file_.open(path);
  if (!file_) throw_error(Fault::backend, "--train-log '{}' cannot be written", path);
}

TrainLog::~TrainLog() {
  if (!path_.empty() && !has_rows_ && !is_stream(path_)) unlink(path_.c_str());
}

void TrainLog::add(std::int64_t iteration, double epoch, double learning_rate, double loss, bool captured) {
  if (path_.empty()) return;
  if (!has_rows_) file_ << "iteration,epoch,learning_rate,loss,captured\n";
  file_ << fmt::format("{},{},{},{},{}\n", iteration, epoch, learning_rate, loss, captured ? 1 : 0);
  file_.flush();
  if (!file_) throw_error(Fault::backend, "--train-log '{}' cannot be written: is the disk full?", path_);
  has_rows_ = true;
}

namespace fs = std::filesystem;

/// Test samples on which the accuracy is measured. 1000 images give a standard error of at most 1.6 percentage points,
/// and ResNet-20 takes about a second for them. 8192 tokens of text give one of at most 0.6, if they were independent.
std::size_t test_samples(const Dataset& dataset) {
  const std::size_t length = static_cast<std::size_t>(dataset.sequence_length);
  return std::min(dataset.size(), dataset.is_text() ? (8192 + length - 1) / length : 1000);
}

/// The file's description of the data: "cifar10:image_size=224", "text:file=shakespeare.txt,sequence_length=128".
std::string data_text(const CaptureOptions& options) {
  if (options.sequence_length) {
    fs::path path{options.data_dir};
    if (!path.has_filename()) path = path.parent_path();  // folder/
    return fmt::format("{}:file={},sequence_length={}", options.dataset, path.filename().string(),
                       *options.sequence_length);
  }
  return options.image_size == 0 ? options.dataset
                                 : fmt::format("{}:image_size={}", options.dataset, options.image_size);
}

class Stopwatch {
 public:
  [[nodiscard]] double lap() {
    const auto now = std::chrono::steady_clock::now();
    return std::chrono::duration<double>(now - std::exchange(last_, now)).count();
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace

TrainerOptions trainer_options(const CaptureOptions& options) {
  TrainerOptions to;
  to.model = options.model;
  to.device = options.device;
  to.image_size = options.image_size;
  to.seed = options.seed;
  to.workers = static_cast<std::size_t>(options.workers);
  to.batch_size = static_cast<std::size_t>(options.batch_size);
  to.micro_batches = static_cast<std::size_t>(options.micro_batches);
  to.threads = *options.threads;
  to.optimizer = options.optimizer;
  if (options.weight_decay) to.weight_decay = *options.weight_decay;
  to.nesterov = options.nesterov;
  if (options.momentum) to.momentum = *options.momentum;
  if (options.epsilon) to.epsilon = *options.epsilon;
  if (!options.betas.empty()) to.beta1 = options.betas[0], to.beta2 = options.betas[1];
  to.inner_steps = static_cast<std::size_t>(options.diloco);
  if (options.outer_momentum) to.outer_momentum = *options.outer_momentum;
  return to;
}

namespace {

/// "sgd:learning_rate=0.1,momentum=0.9,weight_decay=0.0001,schedule=constant"
std::string optimizer_text(const CaptureOptions& options) {
  const std::string own =
      options.momentum
          ? fmt::format("momentum={}{}", *options.momentum, options.nesterov ? ",nesterov=1" : "")
          : fmt::format("beta1={},beta2={},epsilon={}", options.betas.at(0), options.betas.at(1), *options.epsilon);
  const std::string outer = options.diloco == 0
                                ? std::string{}
                                : fmt::format(",diloco={},outer_learning_rate={},outer_momentum={}", options.diloco,
                                              *options.outer_learning_rate, *options.outer_momentum);
  return fmt::format("{}:learning_rate={},{},weight_decay={},schedule={}{}", options.optimizer, *options.learning_rate,
                     own, *options.weight_decay, options.lr_schedule, outer);
}

/// See Trainer::backward_times().
bool knows_readiness(const CaptureOptions& options) {
  return options.device == "cpu" && options.diloco == 0;
}

/// The positions of the selected tensors among all.
std::vector<std::size_t> positions_of(const Selection& selection, const std::vector<TensorInfo>& all) {
  std::vector<std::size_t> positions;
  for (std::size_t t = 0; t < all.size() && positions.size() < selection.tensors.size(); ++t) {
    if (all[t].name == selection.tensors[positions.size()].name) positions.push_back(t);
  }
  return positions;
}

WriterOptions writer_options(const CaptureOptions& options, const Selection& selection) {
  WriterOptions to;
  to.info.model = options.model;
  to.info.dataset = data_text(options);
  to.info.optimizer = optimizer_text(options);
  to.info.command = options.command;
  to.info.seed = options.seed;
  to.info.workers = options.workers;
  to.info.batch_size = options.batch_size;
  to.info.micro_batches = options.micro_batches;
  if (options.diloco > 0) {
    to.info.quantity = "pseudo_gradient";
    to.info.inner_steps = options.diloco;
  }
  to.tensors = selection.tensors;
  to.with_compute_seconds = true;
  to.with_readiness = knows_readiness(options);
  const bool weight = std::find(options.with.begin(), options.with.end(), "weight") != options.with.end();
  for (auto& tensor : to.tensors) {
    tensor.dtype = parse_dtype(options.dtype);
    tensor.has_weight = weight;
    tensor.has_second_moment = options.micro_batches > 1;
  }
  return to;
}

/// Copies the selected elements of the trainer's current step, and its losses, to `step`.
void fill(RecordedStep& step, Trainer& trainer, const Selection& selection, std::size_t workers) {
  if (!step.weights.empty()) static_cast<void>(selection.gather(trainer.weights(), step.weights));
  std::span<float> gradients{step.gradients}, second_moments{step.second_moments};
  for (std::size_t w = 0; w < workers; ++w) {
    gradients = selection.gather(trainer.gradient(w), gradients);
    if (!second_moments.empty()) second_moments = selection.gather(trainer.second_moment(w), second_moments);
  }
  const auto losses = trainer.losses();
  step.info.loss.assign(losses.begin(), losses.end());
}

/// The samples of DiLoCo's iteration, [H, W, batch]: those of H iterations one after the other.
std::vector<std::uint32_t> samples_of_rounds(Sampler& sampler, std::int64_t iteration, std::int64_t rounds) {
  std::vector<std::uint32_t> samples;
  for (std::int64_t round = 0; round < rounds; ++round) {
    const auto batch = sampler.batches(iteration * rounds + round);
    samples.insert(samples.end(), batch.begin(), batch.end());
  }
  return samples;
}

/// Trains and captures. Returns whether every step of the schedule was captured.
bool train(const CaptureOptions& options, Trainer& trainer, Sampler& sampler, const Selection& selection,
           Recorder& recorder, Monitor& monitor, TrainLog& log, ReadinessLog& readiness, CaptureReport& report) {
  const CaptureSchedule schedule = schedule_of(options);
  const LearningRate learning_rate{*options.learning_rate, options.lr_schedule, *options.steps};
  const auto workers = static_cast<std::size_t>(options.workers);
  std::int64_t captured = 0;
  Stopwatch watch;
  for (std::int64_t iteration = 0; iteration < *options.steps; ++iteration) {
    if (interrupted()) {
      report.interrupted = true;
      break;
    }
    const bool capture = schedule.captures(iteration);
    const double epoch = static_cast<double>(iteration * std::max<std::int64_t>(1, options.diloco)) /
                         static_cast<double>(sampler.iterations_per_epoch());
    if (options.diloco > 0)
      trainer.compute_rounds(samples_of_rounds(sampler, iteration, options.diloco), learning_rate.at(iteration));
    else
      trainer.compute(sampler.batches(iteration), capture && options.micro_batches > 1);
    report.train_seconds += watch.lap();
    RecordedStep* step = nullptr;
    if (capture) {
      step = &recorder.next();
      step->info.iteration = iteration;
      step->info.epoch = epoch;
      step->info.learning_rate = learning_rate.at(iteration);
      fill(*step, trainer, selection, workers);
      report.capture_seconds += watch.lap();
    }
    trainer.update(options.diloco > 0 ? *options.outer_learning_rate : learning_rate.at(iteration));
    if (step != nullptr) {
      report.train_seconds += watch.lap();
      const auto seconds = trainer.compute_seconds();  // the update is a part of what an iteration computes
      step->info.compute_seconds.assign(seconds.begin(), seconds.end());
      recorder.submit();
      ++captured;
      report.capture_seconds += watch.lap();
    }
    for (std::size_t w = 0; knows_readiness(options) && w < workers; ++w)
      readiness.add(w, trainer.backward_times()[w], trainer.compute_seconds()[w]);
    const auto losses = trainer.losses();
    report.last_loss = std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(workers);
    if (iteration == 0) report.first_loss = report.last_loss;
    report.iterations = static_cast<std::size_t>(iteration + 1);
    report.train_seconds += watch.lap();
    log.add(iteration, epoch, learning_rate.at(iteration), report.last_loss, capture);
    monitor.trained(iteration + 1, report.last_loss);
  }
  return captured == schedule.count();
}

}  // namespace

CaptureReport run_capture(const CaptureOptions& given) {
  require_trainer();
  const CaptureOptions options = check_options(given);
  const std::int64_t length = options.sequence_length.value_or(0);
  const Dataset training_set = load_training_set(options.dataset, options.data_dir, length);
  const auto test_set = load_test_set(options.dataset, options.data_dir, length);
  Sampler sampler{training_set.size(), static_cast<std::size_t>(options.workers),
                  static_cast<std::size_t>(options.batch_size), static_cast<std::uint64_t>(options.seed)};
  const auto trainer = make_trainer(trainer_options(options), training_set);
  const Selection selection = select_tensors(trainer->parameters(), options.layers);

  TrainLog log{options.train_log};
  ReplacingFile file{options.out, options.force};
  CaptureReport report;
  report.tensors = selection.tensors.size();
  report.elements = selection.elements;
  file.write([&](const std::string& out) {
    Monitor monitor{"capture", *options.steps, options.log_steps};
    Recorder recorder{out, writer_options(options, selection), [&](const StepInfo& step) {
                        if (report.steps++ == 0) file.commit();  // a file that was there gives way to a whole step
                        monitor.captured(step);
                      }};
    ReadinessLog readiness{static_cast<std::size_t>(options.workers), trainer->parameters().size()};
    const bool complete = train(options, *trainer, sampler, selection, recorder, monitor, log, readiness, report);
    Stopwatch watch;
    recorder.finish(complete, knows_readiness(options)
                                  ? std::optional{readiness.medians(positions_of(selection, trainer->parameters()))}
                                  : std::nullopt);
    report.complete = complete;
    report.capture_seconds += watch.lap();
    report.data_bytes = recorder.bytes();
    report.write_seconds = recorder.write_seconds();
  });
  std::error_code ignored;
  if (report.steps > 0) report.file_bytes = fs::file_size(options.out, ignored);
  if (test_set && !report.interrupted) {
    report.tested = test_samples(*test_set);
    const Trainer::Score score = trainer->evaluate(*test_set, report.tested);
    report.accuracy = score.accuracy;
    report.test_loss = score.loss;
  }
  return report;
}

}  // namespace gradtool
