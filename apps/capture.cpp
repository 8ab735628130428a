#include "lib/capture/capture.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/subcommands.hpp"
#include "lib/capture/dataset.hpp"
#include "lib/core/files.hpp"
#include "lib/core/text.hpp"
#include "lib/core/utf8.hpp"
#include "lib/report/csv.hpp"
#include "lib/report/json.hpp"

namespace gradtool::app {

void add_data_options(CLI::App& app, CaptureOptions& options) {
  app.add_option("--model", options.model,
                 fmt::format("Network to train (gradtool list models): {}", joined(model_names(), ", ")))
      ->type_name("MODEL")
      ->group("What is trained");
  app.add_option("--dataset", options.dataset,
                 fmt::format("Data to train on (gradtool list datasets): {} [fashion-mnist; text for language models]",
                             joined(dataset_names(), ", ")))
      ->type_name("DATASET")
      ->group("What is trained");
  app.add_option("--data-dir", options.data_dir,
                 "Folder of the data set's files, or the file of a text [for text none; else where the data set's "
                 "archive or package puts it]")
      ->type_name("FOLDER")
      ->group("What is trained");
  app.add_option("--image-size", options.image_size,
                 "Enlarge images to this many pixels a side, e.g. 224 [as they are]")
      ->group("What is trained");
  app.add_option("--sequence-length", options.sequence_length, "Tokens of a sequence of text [the model's]")
      ->group("What is trained");
  app.add_option("--workers", options.workers, "Data-parallel workers, each with a shard of its own")
      ->capture_default_str()
      ->group("What is trained");
  app.add_option("--batch-size", options.batch_size, "Images or sequences a step of each worker")
      ->capture_default_str()
      ->group("What is trained");
  app.add_option("--micro-batches", options.micro_batches,
                 "Split a worker's batch in K; with K above 1 the second moment is stored too")
      ->capture_default_str()
      ->group("What is trained");
}

void add_training_options(CLI::App& app, CaptureOptions& options) {
  constexpr auto* kGroup = "How it is trained";
  app.add_option("--steps", options.steps, "Training iterations [--end-step]")->group(kGroup);
  app.add_option("--optimizer", options.optimizer,
                 fmt::format("As PyTorch defines them: {}", joined(optimizer_names(), ", ")))
      ->type_name("OPTIMIZER")
      ->capture_default_str()
      ->group(kGroup);
  app.add_option("--learning-rate,--lr", options.learning_rate, "Base learning rate [the model's, for the optimizer]")
      ->group(kGroup);
  app.add_option("--lr-schedule", options.lr_schedule,
                 "constant, cosine (to 0 at --steps), step:ITERATIONS:FACTOR (times FACTOR every ITERATIONS), or "
                 "milestones:ITERATION,...:FACTOR (times FACTOR at each); warmup:ITERATIONS: before it begins low")
      ->capture_default_str()
      ->group(kGroup);
  app.add_option("--momentum", options.momentum, "Of sgd [0.9]")->group(kGroup);
  app.add_flag("--nesterov", options.nesterov, "Of sgd: look ahead along the momentum")->group(kGroup);
  app.add_option("--betas", options.betas, "Of adam and adamw: two values [0.9,0.999]")->delimiter(',')->group(kGroup);
  app.add_option("--epsilon", options.epsilon, "Of adam and adamw [1e-08]")->group(kGroup);
  app.add_option("--weight-decay", options.weight_decay,
                 "L2 penalty; with adamw beside the gradient [sgd: 1e-4, adam: 0, adamw: 0.01]")
      ->group(kGroup);
  app.add_option("--device", options.device, "cpu, cuda or cuda:INDEX; the latter with a LibTorch for CUDA")
      ->capture_default_str()
      ->group(kGroup);
  app.add_option("-t,--threads", options.threads, "CPU threads [as many as the machine has, at most --workers]")
      ->group(kGroup);
  app.add_option("--seed", options.seed, "Of the initial weights and the order of the samples")
      ->capture_default_str()
      ->group(kGroup);
}

namespace {

void add_diloco_options(CLI::App& app, CaptureOptions& options) {
  constexpr auto* kGroup = "How it is trained";
  app.add_option("--diloco", options.diloco,
                 "Capture pseudo-gradients: in every iteration each worker takes this many steps by itself (H), and "
                 "the workers average how far they came (arXiv 2311.08105)")
      ->type_name("H")
      ->group(kGroup);
  app.add_option("--outer-learning-rate", options.outer_learning_rate, "With --diloco: of the average [0.7]")
      ->group(kGroup);
  app.add_option("--outer-momentum", options.outer_momentum, "With --diloco: Nesterov's, of the average [0.9]")
      ->group(kGroup);
}

void add_file_options(CLI::App& app, CaptureOptions& options, std::string& json) {
  constexpr auto* kGroup = "What is captured, and where to";
  app.add_option("-o,--out", options.out, "Gradient file to write (HDF5)")->type_name("FILE")->group(kGroup);
  app.add_flag("--force", options.force, "Replace files that exist")->group(kGroup);
  app.add_option("--start-step", options.start_step,
                 "First iteration captured; iterations count from 0 [0; with --windows a twentieth of the training]")
      ->group(kGroup);
  app.add_option("--end-step", options.end_step, "First iteration no longer captured [--steps, or 20 captured steps]")
      ->group(kGroup);
  app.add_option("--every", options.every, "Capture every N-th iteration from --start-step on")
      ->capture_default_str()
      ->group(kGroup);
  app.add_option("--windows", options.windows,
                 "Capture this many phases of the training, e.g. 3: windows of iterations that follow each other, the "
                 "first from --start-step on, the last at the end, the others evenly between them")
      ->type_name("N")
      ->group(kGroup);
  app.add_option("--window-steps", options.window_steps, "Iterations of each window [8]")
      ->type_name("K")
      ->group(kGroup);
  app.add_option("--layers", options.layers, "Only tensors whose name this regular expression matches, e.g. 'conv|fc'")
      ->group(kGroup);
  app.add_option("--dtype", options.dtype, "How gradients are stored: f32, f16, bf16")
      ->capture_default_str()
      ->group(kGroup);
  app.add_option("--with", options.with, "Store as well, separated by commas: weight, second_moment")
      ->delimiter(',')
      ->group(kGroup);
  app.add_option("--train-log", options.train_log, "CSV with epoch, learning rate and loss of every iteration")
      ->type_name("FILE")
      ->group(kGroup);
  app.add_flag("--log-steps", options.log_steps,
               "A line on stderr for every step once it is safe in the file, in the place of the progress bar")
      ->group(kGroup);
  app.add_option("--json", json, "Write the summary as JSON to this file, or to standard output for -")
      ->type_name("FILE")
      ->group(kGroup);
}

double share_of_training(const CaptureReport& report) {
  return report.train_seconds > 0.0 ? report.capture_seconds / report.train_seconds : 0.0;
}

void print_summary(const CaptureOptions& options, const CaptureReport& report) {
  const bool text = find_dataset(options.dataset).is_text;
  fmt::print("Trained {} on {}: {} iterations of {} workers x {} {}, loss {:.3f} -> {:.3f}\n", options.model,
             options.dataset, report.iterations, options.workers, options.batch_size, text ? "sequences" : "images",
             report.first_loss, report.last_loss);
  if (report.accuracy) {
    fmt::print("{} {:.1f} %, loss {:.3f} on the first {} test {}\n", text ? "Next-token accuracy" : "Accuracy",
               100.0 * *report.accuracy, *report.test_loss, report.tested, text ? "sequences" : "images");
  }
  fmt::print("Time: training {}, capturing {} on top ({:.1f} %), writing {} beside it\n",
             human_seconds(report.train_seconds), human_seconds(report.capture_seconds),
             100.0 * share_of_training(report), human_seconds(report.write_seconds));
  if (report.steps == 0) {
    const bool stays = options.force && std::filesystem::exists(options.out);
    fmt::print("Stopped before a step was captured: {}\n",
               stays ? "'" + printable(options.out) + "' stays as it was" : "no file written");
    return;
  }
  const std::string windows = options.windows && report.complete ? fmt::format(" in {} windows", *options.windows) : "";
  fmt::print("Wrote {}: {} step{}{}{}, {} tensors, {} elements, {} workers, {}\n", printable(options.out), report.steps,
             report.steps == 1 ? "" : "s", windows, report.complete ? "" : " (stopped early: not complete)",
             report.tensors, report.elements, options.workers, human_bytes(static_cast<double>(report.file_bytes)));
}

void save_json(const std::string& path, const CaptureOptions& options, const CaptureReport& report) {
  nlohmann::ordered_json json{{"out", report.steps > 0 ? nlohmann::ordered_json(options.out) : nullptr},
                              {"model", options.model},
                              {"dataset", options.dataset},
                              {"workers", options.workers},
                              {"batch_size", options.batch_size},
                              {"iterations", report.iterations},
                              {"steps", report.steps},
                              {"tensors", report.tensors},
                              {"elements", report.elements},
                              {"data_bytes", report.data_bytes},
                              {"file_bytes", report.file_bytes},
                              {"complete", report.complete},
                              {"first_loss", report.first_loss},
                              {"last_loss", report.last_loss},
                              {"accuracy", report.accuracy ? nlohmann::ordered_json(*report.accuracy) : nullptr},
                              {"test_loss", report.test_loss ? nlohmann::ordered_json(*report.test_loss) : nullptr},
                              {"tested_samples", report.tested},
                              {"train_seconds", report.train_seconds},
                              {"capture_seconds", report.capture_seconds},
                              {"write_seconds", report.write_seconds},
                              {"command", options.command},
                              {"provenance", provenance()}};
  save_text(path, json_text(json, 2) + "\n");
}

void check_paths(const CaptureOptions& options, const std::string& json) {
  std::vector<NamedPath> inputs;
  const auto& names = dataset_names();
  if (std::find(names.begin(), names.end(), options.dataset) == names.end()) return;  // run_capture says so
  const std::string folder = options.data_dir.empty() ? default_data_dir(options.dataset) : options.data_dir;
  for (const auto& file : dataset_files(options.dataset, folder)) inputs.push_back({"--data-dir", file});
  expect_separate_files(
      inputs, std::vector<NamedPath>{{"--out", options.out}, {"--train-log", options.train_log}, {"--json", json}});
  if (!json.empty()) expect_writable(json);  // now, not after hours of training
}

}  // namespace

Subcommand add_capture(CLI::App& root) {
  auto* app = root.add_subcommand(
      "capture",
      "Train a model with several data-parallel workers and dump each worker's gradients to a gradient file.");
  const auto options = std::make_shared<CaptureOptions>();
  const auto json = std::make_shared<std::string>();
  add_data_options(*app, *options);
  add_training_options(*app, *options);
  add_diloco_options(*app, *options);
  add_file_options(*app, *options, *json);
  app->footer(
      "Each worker's gradient is dumped before averaging; training goes on with the exact mean. The same seed and "
      "number of threads give the same file. The file's attribute `complete` is 1 only when every scheduled step is in "
      "it; after Ctrl-C (exit status 130) it is a whole file all the same, and after kill -9 every step but the one "
      "being written is readable.\n"
      "Examples:\n"
      "  gradtool capture --model lenet5 --workers 2 --out lenet5.h5\n"
      "  gradtool capture --model resnet20 --steps 2000 --windows 3 --out resnet20.h5\n"
      "  gradtool capture --model resnet20 --steps 2000 --start-step 100 \\\n"
      "      --end-step 2000 --every 50 --out resnet20.h5\n"
      "  gradtool capture --model resnet20 --dataset cifar10 \\\n"
      "      --data-dir cifar-10-batches-bin --micro-batches 4 --with weight \\\n"
      "      --dtype bf16 --layers 'layer3|fc' --out layers.h5\n"
      "  gradtool capture --model gpt-nano --data-dir shakespeare.txt --out gpt.h5");
  return {app, [options, json]() -> int {
            options->command = command_line();
            if (options->dataset.empty()) options->dataset = default_dataset(options->model);
            check_paths(*options, *json);
            const CaptureReport report = run_capture(*options);
            if (*json != "-") print_summary(*options, report);
            if (!json->empty()) save_json(*json, *options, report);
            return report.interrupted ? kInterrupted : 0;
          }};
}

}  // namespace gradtool::app
