#include "lib/train/options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "gradtool_version.hpp"
#include "lib/capture/dataset.hpp"
#include "lib/capture/schedule.hpp"
#include "lib/core/error.hpp"
#include "lib/core/sha256.hpp"
#include "lib/core/text.hpp"

namespace gradtool {
namespace {

constexpr std::int64_t kMost = 1'000'000'000;
constexpr std::int64_t kDefaultEpochs = 10;

[[noreturn]] void refuse(const std::string& sentence) {
  throw Error{Fault::usage, sentence};
}

void check_range(const char* flag, std::optional<std::int64_t> value) {
  if (value && (*value < 1 || *value > kMost))
    refuse(fmt::format("{} {} is not between 1 and {}", flag, *value, kMost));
}

void check_seeds(const std::vector<std::int64_t>& seeds) {
  std::set<std::int64_t> seen;
  for (const auto seed : seeds) {
    if (seed < 0) refuse(fmt::format("--seeds: {} is not a whole number from 0 to 2^63 - 1", seed));
    if (!seen.insert(seed).second) refuse(fmt::format("--seeds: {} is there twice; runs would be the same", seed));
  }
}

void check_lr_factors(const TrainOptions& options) {
  std::set<double> seen;
  for (const double factor : options.lr_factors) {
    if (!(factor > 0.0 && *options.training.learning_rate * factor < kHighestRate))
      refuse(fmt::format("--lr-factors: {} is not a number above 0 with which the learning rate stays below {:g}",
                         factor, kHighestRate));
    if (!seen.insert(factor).second)
      refuse(fmt::format("--lr-factors: {} is there twice; runs would be the same", factor));
  }
  if (seen.empty()) refuse("--lr-factors names no factor; write numbers above 0, such as 1,0.5,0.1");
  if (seen.size() > 1 && options.seeds.size() == 2)
    refuse(
        "--lr-factors with two seeds leave one of them to judge by, which has no interval; give three seeds or more");
}

/// none first, then what was asked for, each once.
std::vector<CodecSpec> with_none(const TrainOptions& options) {
  std::vector<CodecSpec> specs{parse_codec("none")};
  for (const auto& spec : options.codecs) {
    const auto same = [&](const CodecSpec& s) {
      return s.name() == spec.name() && s.params_text() == spec.params_text();
    };
    if (std::any_of(specs.begin(), specs.end(), same)) continue;
    if (options.all_codecs && spec.name() == "noop") continue;  // nothing arrives, so that nothing is learnt
    try {
      static_cast<void>(resolve(options.scheme_for(spec), spec));
    } catch (const Error&) {
      if (!options.all_codecs) throw;
      continue;
    }
    specs.push_back(spec);
  }
  return specs;
}

void check_folder(const TrainOptions& options) {
  namespace fs = std::filesystem;
  if (options.out.empty()) refuse("--out FOLDER is missing: where results and checkpoints are written");
  if (options.force && options.resume) refuse("--resume goes on with what --force replaces: give one of them");
  if (fs::exists(options.out) && !fs::is_directory(options.out))
    refuse(fmt::format("--out '{}' is no folder; name one for results and checkpoints", options.out));
}

}  // namespace

Scheme TrainOptions::scheme_for(const CodecSpec& spec) const {
  return spec.descriptor->name == "none" || spec.descriptor->name == "noop" ? Scheme::automatic : scheme;
}

TrainOptions check_options(TrainOptions options, int ranks) {
  CaptureOptions& training = options.training;
  if (ranks > 0) {
    if (options.workers_given && training.workers != ranks) {
      refuse(fmt::format("--workers {} but {} process{} started; leave --workers out", training.workers, ranks,
                         ranks == 1 ? "" : "es"));
    }
    training.workers = ranks;
    if (!training.threads) training.threads = 1;
  }
  if (options.epochs && training.steps) refuse("--epochs and --steps both say how long to train: give one of them");
  check_range("--epochs", options.epochs);
  check_range("--steps", training.steps);
  check_range("--checkpoint-every", options.checkpoint_every);
  check_range("--evaluate-every", options.evaluate_every);
  check_range("--test-images", options.test_images);
  check_folder(options);
  if (!options.epochs && !training.steps) options.epochs = kDefaultEpochs;
  {
    // The checks of capture, with a file that is never written.
    CaptureOptions capture = training;
    capture.out = options.out + "/none.h5";
    capture.force = true;
    capture = check_options(std::move(capture));
    capture.out = training.out;
    capture.force = training.force;
    capture.steps = training.steps;
    capture.end_step = training.end_step;
    training = std::move(capture);
  }
  check_seeds(options.seeds);
  check_lr_factors(options);
  if (const auto target = options.target_accuracy; target && !(*target > 0.0 && *target <= 1.0))
    refuse(fmt::format("--target-accuracy {} is not a share above 0 and at most 1", *target));
  if (!(options.comm_timeout >= 0.1 && options.comm_timeout <= 1e6))
    refuse(fmt::format("--comm-timeout {} is not valid; write seconds, 0.1 to 1000000", options.comm_timeout));
  if (training.workers == 1 && !options.networks.empty())
    refuse("--network needs 2 workers at least: between fewer, no collective can be counted");
  options.codecs = with_none(options);
  return options;
}

std::vector<Fact> facts_of(const TrainOptions& options, std::int64_t steps) {
  const CaptureOptions& training = options.training;
  std::vector<Fact> facts{{"gradtool", GRADTOOL_VERSION " (" GRADTOOL_COMMIT ")"},
                          {"--model", training.model},
                          {"--dataset", training.dataset},
                          {"--workers", fmt::to_string(training.workers)},
                          {"--batch-size", fmt::to_string(training.batch_size)},
                          {"--micro-batches", fmt::to_string(training.micro_batches)},
                          {"the number of steps", fmt::to_string(steps)},
                          {"--optimizer", training.optimizer},
                          {"--learning-rate", fmt::to_string(training.learning_rate.value_or(0.0))},
                          {"--lr-schedule", training.lr_schedule},
                          {"--momentum", fmt::to_string(training.momentum.value_or(0.0))},
                          {"--nesterov", training.nesterov ? "yes" : "no"},
                          {"--betas", joined(training.betas, ",")},
                          {"--epsilon", fmt::to_string(training.epsilon.value_or(0.0))},
                          {"--weight-decay", fmt::to_string(training.weight_decay.value_or(0.0))},
                          {"--image-size", fmt::to_string(training.image_size)},
                          {"--sequence-length", fmt::to_string(training.sequence_length.value_or(0))},
                          {"--device", training.device},
                          {"--threads", fmt::to_string(training.threads.value_or(0))},
                          {"--seeds", joined(options.seeds, ",")},
                          {"--lr-factors", joined(options.lr_factors, ",")},
                          {"--comm", options.comm + (options.udp.text.empty() ? "" : ":" + options.udp.text)},
                          {"--granularity", options.granularity.text()},
                          {"--reduce", std::string{name_of(options.scheme)}},
                          {"--all-reduce", std::string{name_of(options.all_reduce)}},
                          {"--overlap", options.overlap == Overlap::none ? "none" : "bucket"},
                          {"--evaluate-every", fmt::to_string(options.evaluate_every.value_or(0))},
                          {"--test-images", options.test_images ? fmt::to_string(*options.test_images) : "all"}};
  std::vector<std::string> codecs, networks;
  for (const auto& spec : options.codecs) {
    codecs.push_back(fmt::format("{}{}{}", spec.name(), spec.params_text().empty() ? "" : ":", spec.params_text()));
  }
  facts.push_back({"--codec", joined(codecs, " ")});
  networks.reserve(options.networks.size());
  for (const auto& network : options.networks) networks.push_back(network.name);
  facts.push_back({"--network", joined(networks, " ")});
  for (const auto& file : dataset_files(training.dataset, training.data_dir)) {
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(file, ignored)) continue;
    const std::string name = std::filesystem::path{file}.filename().string();
    facts.push_back({fmt::format("the hash of {}", name), sha256_of_file(file)});
  }
  return facts;
}

}  // namespace gradtool
