#include "lib/capture/capture.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <thread>

#include "lib/capture/dataset.hpp"
#include "lib/capture/schedule.hpp"
#include "lib/core/device.hpp"
#include "lib/core/files.hpp"
#include "lib/core/text.hpp"
#include "lib/core/throw_error.hpp"

namespace gradtool {
namespace {

constexpr std::int64_t kDefaultCapturedSteps = 20;
/// Enough for a residual to come back, and three windows together are about as many as without windows.
constexpr std::int64_t kDefaultWindowSteps = 8;
constexpr std::int64_t kMostWindows = 1000;
constexpr std::int64_t kMost = 1'000'000'000;

[[noreturn]] void refuse(const std::string& sentence) {
  throw Error{Fault::usage, sentence};
}

void check_choice(const char* flag, const std::string& value, const std::vector<std::string>& choices) {
  if (std::find(choices.begin(), choices.end(), value) != choices.end()) return;
  const std::string near = nearest(value, choices);
  refuse(fmt::format("{} '{}' is not known; {}it is one of {}", flag, value,
                     near.empty() ? "" : fmt::format("did you mean '{}'? ", near), joined(choices, ", ")));
}

void check_range(const char* flag, std::int64_t value, std::int64_t least, std::int64_t most = kMost) {
  if (value < least || value > most) refuse(fmt::format("{} {} is not between {} and {}", flag, value, least, most));
}

void check_rate(const char* flag, double value, bool positive, double below) {
  if (!(positive ? value > 0.0 : value >= 0.0) || !(value < below)) {
    refuse(fmt::format("{} {} is not {} 0 and below {}", flag, value, positive ? "above" : "at least", below));
  }
}

void check_data(CaptureOptions& options) {
  if (options.dataset.empty()) options.dataset = default_dataset(options.model);
  check_choice("--dataset", options.dataset, dataset_names());
  const ModelDescription& model = find_model(options.model);
  const DatasetDescription& dataset = find_dataset(options.dataset);
  if (dataset.is_text != model.is_text()) {
    refuse(fmt::format("{} takes {}; --dataset {} is {}", model.name, model.takes, dataset.name, dataset.contents));
  }
  if (options.data_dir.empty()) options.data_dir = default_data_dir(options.dataset);
  if (options.data_dir.empty()) refuse("--data-dir is missing: the text to train on, a file or a folder");
  if (!model.is_text()) {
    if (options.sequence_length) refuse(fmt::format("--sequence-length is for text; {} takes images", model.name));
    if (options.image_size != 0) check_range("--image-size", options.image_size, 1, 4096);
    return;
  }
  if (options.image_size != 0) refuse(fmt::format("--image-size is for images; {} takes text", model.name));
  if (!options.sequence_length) options.sequence_length = model.sequence_length;
  check_range("--sequence-length", *options.sequence_length, 1, model.longest_sequence);
}

/// Before the steps are filled in.
void check_windows(CaptureOptions& options) {
  if (!options.windows) {
    if (options.window_steps) refuse("--window-steps is the length of each window: add --windows, such as 3");
    return;
  }
  check_range("--windows", *options.windows, 2, kMostWindows);
  if (!options.window_steps) options.window_steps = kDefaultWindowSteps;
  check_range("--window-steps", *options.window_steps, 2);
  if (options.every != 1)
    refuse(fmt::format("--every {} goes without --windows, whose iterations follow each other", options.every));
  if (!options.steps && !options.end_step)
    refuse("--windows needs the length of the training over which they are placed: --steps, such as 300");
  if (!options.start_step) options.start_step = options.end_step.value_or(*options.steps) / 20;
}

/// After them.
void expect_windows_fit(const CaptureOptions& options) {
  if (!options.windows) return;
  const std::int64_t needed = *options.windows * (*options.window_steps + 1) - 1;  // with an iteration in each gap
  const std::int64_t there = *options.end_step - *options.start_step;
  if (needed <= there) return;
  refuse(fmt::format(
      "--windows {} of --window-steps {} need {} iterations with the gaps between them, and from --start-step {} to "
      "the end at {} there are {}: take a longer training (--steps) or fewer or shorter windows",
      *options.windows, *options.window_steps, needed, *options.start_step, *options.end_step, there));
}

void check_steps(CaptureOptions& options) {
  check_range("--every", options.every, 1);
  if (options.steps) check_range("--steps", *options.steps, 1);
  if (options.end_step) check_range("--end-step", *options.end_step, 1);
  check_windows(options);
  const std::int64_t start = options.start_step.value_or(0);
  options.start_step = start;
  check_range("--start-step", start, 0);
  if (!options.end_step) {
    options.end_step = options.steps.value_or(start + (kDefaultCapturedSteps - 1) * options.every + 1);
    if (start >= *options.end_step) {
      refuse(
          fmt::format("--start-step {} is not below --steps {}: no step would be captured", start, *options.end_step));
    }
    check_range("--end-step", *options.end_step, 1);
  }
  if (start >= *options.end_step) {
    refuse(fmt::format("--start-step {} is not below --end-step {}, the first step that is not captured", start,
                       *options.end_step));
  }
  expect_windows_fit(options);
  if (!options.steps) options.steps = options.end_step;
  if (*options.steps < *options.end_step) {
    refuse(fmt::format("--steps {} ends the training before --end-step {}", *options.steps, *options.end_step));
  }
}

void check_batches(const CaptureOptions& options) {
  check_range("--workers", options.workers, 1, 4096);
  check_range("--batch-size", options.batch_size, 1, 1'000'000);
  check_range("--micro-batches", options.micro_batches, 1, options.batch_size);
  if (options.batch_size % options.micro_batches != 0) {
    refuse(
        fmt::format("--micro-batches {} does not divide --batch-size {}", options.micro_batches, options.batch_size));
  }
  if (find_model(options.model).batch_norm && options.batch_size == options.micro_batches && options.batch_size > 1) {
    refuse(fmt::format("--micro-batches {} leaves one image in each, too few for batch normalisation; take at most {}",
                       options.micro_batches, options.batch_size / 2));
  }
  for (const auto& extra : options.with) check_choice("--with", extra, {"weight", "second_moment"});
  const bool second_moment = std::find(options.with.begin(), options.with.end(), "second_moment") != options.with.end();
  if (second_moment && options.micro_batches == 1) {
    refuse("--with second_moment needs --micro-batches K with K at least 2: it is a sum over micro-batches");
  }
}

void check_optimizer(CaptureOptions& options) {
  if (!options.learning_rate) options.learning_rate = default_learning_rate(options.model, options.optimizer);
  check_rate("--learning-rate", *options.learning_rate, true, kHighestRate);
  if (!options.weight_decay) options.weight_decay = default_weight_decay(options.optimizer);
  check_rate("--weight-decay", *options.weight_decay, false, 1.0);
  if (options.optimizer == "sgd") {
    if (!options.betas.empty()) refuse("--betas is for adam and adamw; sgd has --momentum");
    if (options.epsilon) refuse("--epsilon is for adam and adamw, not for sgd");
    if (!options.momentum) options.momentum = 0.9;
    check_rate("--momentum", *options.momentum, false, 1.0);
    if (options.nesterov && *options.momentum == 0.0) refuse("--nesterov needs a --momentum above 0");
    return;
  }
  if (options.momentum) refuse(fmt::format("--momentum is for sgd; {} has --betas", options.optimizer));
  if (options.nesterov) refuse(fmt::format("--nesterov is for sgd, not for {}", options.optimizer));
  if (options.betas.empty()) options.betas = {0.9, 0.999};
  if (options.betas.size() != 2) refuse(fmt::format("--betas takes two values, not {}", options.betas.size()));
  for (const double beta : options.betas) check_rate("--betas", beta, false, 1.0);
  if (!options.epsilon) options.epsilon = 1e-8;
  check_rate("--epsilon", *options.epsilon, true, 1.0);
}

void check_diloco(CaptureOptions& options) {
  check_range("--diloco", options.diloco, 0, 1'000'000);
  if (options.diloco == 0) {
    if (options.outer_learning_rate || options.outer_momentum)
      refuse("--outer-learning-rate and --outer-momentum are DiLoCo's: add --diloco H, such as 30");
    return;
  }
  if (options.micro_batches > 1)
    refuse("--micro-batches stores second moments, which pseudo-gradients do not have; leave it out with --diloco");
  if (!options.outer_learning_rate) options.outer_learning_rate = 0.7;
  check_rate("--outer-learning-rate", *options.outer_learning_rate, true, kHighestRate);
  if (!options.outer_momentum) options.outer_momentum = 0.9;
  check_rate("--outer-momentum", *options.outer_momentum, false, 1.0);
}

void check_out(const CaptureOptions& options) {
  namespace fs = std::filesystem;
  if (options.out.empty()) refuse("--out FILE is missing: where the gradients are written");
  if (fs::is_directory(options.out)) refuse(fmt::format("--out '{}' is a folder; name a file in it", options.out));
  std::error_code error;
  if (fs::exists(fs::symlink_status(options.out, error)) && !options.force) {
    refuse(fmt::format("--out '{}' exists already; --force replaces it", options.out));
  }
  if (options.force) expect_replaceable(options.out);
  expect_separate_files({}, std::vector<NamedPath>{{"--out", options.out}, {"--train-log", options.train_log}});
  if (options.train_log.empty()) return;
  if (fs::exists(options.train_log) && !options.force) {
    refuse(fmt::format("--train-log '{}' exists already; --force replaces it", options.train_log));
  }
}

}  // namespace

std::string default_dataset(const std::string& model) {
  const auto& all = models();
  const auto found = std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.name == model; });
  return found != all.end() && found->is_text() ? "text" : "fashion-mnist";
}

const std::vector<std::string>& optimizer_names() {
  static const std::vector<std::string> names{"sgd", "adam", "adamw"};
  return names;
}

double default_learning_rate(const std::string& model, const std::string& optimizer) {
  return optimizer == "sgd" ? find_model(model).sgd_rate : find_model(model).adam_rate;
}

double default_weight_decay(const std::string& optimizer) {
  return optimizer == "sgd" ? 1e-4 : optimizer == "adam" ? 0.0 : 0.01;
}

Dtype parse_dtype(const std::string& text) {
  check_choice("--dtype", text, {"f32", "f16", "bf16"});
  return text == "f16" ? Dtype::f16 : text == "bf16" ? Dtype::bf16 : Dtype::f32;
}

CaptureOptions check_options(CaptureOptions options) {
  if (options.model.empty()) refuse(fmt::format("--model is missing: one of {}", joined(model_names(), ", ")));
  check_choice("--model", options.model, model_names());
  check_data(options);
  check_choice("--optimizer", options.optimizer, optimizer_names());
  static_cast<void>(parse_device(options.device));
  static_cast<void>(parse_dtype(options.dtype));
  check_batches(options);
  check_steps(options);
  if (options.threads) check_range("--threads", *options.threads, 1, 1024);
  if (!options.threads) {
    const std::int64_t here = std::max(1U, std::thread::hardware_concurrency());
    options.threads = static_cast<int>(std::min(here, options.workers));
  }
  check_range("--seed", options.seed, 0, std::numeric_limits<std::int64_t>::max());
  check_optimizer(options);
  check_diloco(options);
  static_cast<void>(LearningRate{*options.learning_rate, options.lr_schedule, *options.steps});
  if (!options.layers.empty()) static_cast<void>(matches(options.layers, ""));
  check_out(options);
  return options;
}

std::span<float> Selection::gather(std::span<const float> flat, std::span<float> out) const {
  for (const auto& range : ranges) {
    std::copy_n(flat.begin() + static_cast<std::ptrdiff_t>(range.first), range.count, out.begin());
    out = out.subspan(range.count);
  }
  return out;
}

CaptureSchedule schedule_of(const CaptureOptions& options) {
  return {*options.start_step, *options.end_step, options.every, options.windows.value_or(0),
          options.window_steps.value_or(0)};
}

Selection select_tensors(const std::vector<TensorInfo>& all, const std::string& layers) {
  Selection selection;
  std::size_t first = 0;
  for (const auto& tensor : all) {
    const auto count = static_cast<std::size_t>(tensor.elements);
    if (layers.empty() || matches(layers, tensor.name)) {
      selection.tensors.push_back(tensor);
      selection.ranges.push_back({first, count});
      selection.elements += count;
    }
    first += count;
  }
  if (selection.tensors.empty()) {
    throw_error(Fault::usage, "--layers '{}' matches none of the {} tensors, which are called '{}' to '{}'", layers,
                all.size(), all.front().name, all.back().name);
  }
  return selection;
}

}  // namespace gradtool
