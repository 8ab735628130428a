#include "lib/train/train.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "lib/capture/dataset.hpp"
#include "lib/capture/sampler.hpp"
#include "lib/capture/schedule.hpp"
#include "lib/capture/trainer.hpp"
#include "lib/comm/launch.hpp"
#include "lib/core/files.hpp"
#include "lib/core/interrupt.hpp"
#include "lib/core/throw_error.hpp"
#include "lib/report/csv.hpp"
#include "lib/report/json.hpp"
#include "lib/report/progress.hpp"
#include "lib/train/run.hpp"

namespace gradtool {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSettings = "settings.json";
constexpr const char* kCheckpoints = "checkpoints";
constexpr const char* kCheckpointEnding = ".checkpoint";

[[noreturn]] void refuse_folder(const std::string& sentence) {
  throw Error{Fault::usage, sentence};
}

/// Throws Fault::usage, naming the first difference, unless the folder was made with the same settings.
void expect_same_settings(const fs::path& folder, const std::vector<Fact>& facts) {
  const fs::path path = folder / kSettings;
  if (!fs::exists(path)) refuse_folder(fmt::format("--resume: '{}' holds nothing of gradtool train", folder.string()));
  const auto saved = parse_json(read_file(path.string(), kMostRecordBytes));
  const auto settings = saved.is_object() ? saved.find("settings") : saved.end();
  if (!saved.is_object() || settings == saved.end() || !settings->is_object())
    throw_error(Fault::data, "{}: is damaged", path.string());
  for (const auto& fact : facts) {
    const auto found = settings->find(fact.what);
    const std::string value = found != settings->end() && found->is_string() ? found->get<std::string>() : "not there";
    if (value == fact.value) continue;
    refuse_folder(fmt::format("--resume: '{}' was made with another command: {} is '{}' there, and '{}' now",
                              folder.string(), fact.what, value, fact.value));
  }
}

constexpr const char* kReplaced = ".replaced";  ///< folder of what --force replaces, until there is a new result
constexpr std::array<const char*, 4> kResults{kSettings, "train.csv", "summary.csv", "train.json"};

void remove_results(const fs::path& folder) {
  for (const char* name : kResults) fs::remove(folder / name);
  std::error_code no_folder;
  for (const auto& entry : fs::directory_iterator{folder / kCheckpoints, no_folder}) {
    if (entry.path().extension() == kCheckpointEnding) fs::remove(entry.path());
  }
}

void move_results(const fs::path& from, const fs::path& to) {
  fs::create_directories(to);
  for (const char* name : kResults) {
    if (fs::exists(from / name)) fs::rename(from / name, to / name);
  }
  if (fs::exists(from / kCheckpoints)) fs::rename(from / kCheckpoints, to / kCheckpoints);
}

/// Puts back what a --force was to replace, where there is such a thing: without a new result, or after a kill before
/// one.
void restore_replaced(const fs::path& folder) {
  const fs::path replaced = folder / kReplaced;
  if (!fs::exists(replaced)) return;
  remove_results(folder);
  std::error_code ignored;
  fs::remove(folder / kCheckpoints, ignored);
  move_results(replaced, folder);
  fs::remove(replaced, ignored);
}

/// Keeps other trainings out of a folder as long as it lives, where the file system has locks.
class FolderLock {
 public:
  FolderLock() = default;
  /// Throws Fault::usage where another one has the folder, or waits for its end: a job that was told to stop still
  /// writes its checkpoint when it is started again.
  FolderLock(const fs::path& folder, bool waits)
      : descriptor_{open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)} {
    for (bool said = false;; said = true) {
      if (descriptor_ < 0 || flock(descriptor_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
      if (!waits || interrupted()) break;
      if (!said) fmt::print(stderr, "another gradtool train writes to '{}': waiting for its end\n", folder.string());
      std::this_thread::sleep_for(std::chrono::milliseconds{50});
    }
    close(descriptor_);
    stop_if_interrupted();
    refuse_folder(fmt::format("--out '{}': another gradtool train writes there; wait for it, or choose another folder",
                              folder.string()));
  }
  FolderLock(FolderLock&& other) noexcept : descriptor_{std::exchange(other.descriptor_, -1)} {}
  FolderLock& operator=(FolderLock&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~FolderLock() {
    if (descriptor_ >= 0) close(descriptor_);
  }

 private:
  int descriptor_ = -1;
};

/// Makes the folder ready, on one process. Returns whether it begins anew there.
bool prepare_folder(const TrainOptions& options, const std::vector<Fact>& facts, FolderLock& lock) {
  const fs::path folder{options.out};
  try {
    fs::create_directories(folder);
    lock = FolderLock{folder, options.resume};
    restore_replaced(folder);
    if (!fs::is_empty(folder)) {
      if (options.resume) {
        expect_same_settings(folder, facts);
        return false;
      }
      if (!options.force) {
        refuse_folder(
            fmt::format("--out '{}' exists already; --resume goes on with it, --force replaces it", options.out));
      }
      move_results(folder, folder / kReplaced);
    }
    fs::create_directories(folder / kCheckpoints);
  } catch (const fs::filesystem_error& error) {
    throw_error(Fault::backend, "--out '{}' cannot be written: {}", options.out, error.code().message());
  }
  nlohmann::ordered_json settings{{"format", "gradtool.train.settings"}, {"command", options.command}};
  for (const auto& fact : facts) settings["settings"][fact.what] = fact.value;
  try {
    save_text((folder / kSettings).string(), json_text(settings, 1) + "\n");
  } catch (...) {
    restore_replaced(folder);
    throw;
  }
  if (options.resume) fmt::print(stderr, "there is no training in '{}' yet: it begins\n", options.out);
  return true;
}

class Training {
 public:
  Training(const TrainOptions& options, std::vector<Fact>& facts)
      : options_{options},
        across_processes_{options.comm != "threads"},
        training_set_{load_training_set(options.training.dataset, options.training.data_dir,
                                        options.training.sequence_length.value_or(0))},
        test_set_{load_test_set(options.training.dataset, options.training.data_dir,
                                options.training.sequence_length.value_or(0))} {
    if (options.target_accuracy && !test_set_)
      throw_error(Fault::data, "--target-accuracy: '{}' has no test images", options.training.data_dir);
    const Sampler sampler{training_set_.size(), static_cast<std::size_t>(options.training.workers),
                          static_cast<std::size_t>(options.training.batch_size), 0};
    report_.steps_per_epoch = sampler.iterations_per_epoch();
    steps_ = options.training.steps.value_or(options.epochs.value_or(1) * report_.steps_per_epoch);
    for (const double factor : options.lr_factors)
      static_cast<void>(LearningRate{*options.training.learning_rate * factor, options.training.lr_schedule, steps_});
    facts = facts_of(options, steps_);
    join(facts);
  }

  /// Runs everything. If the first run cannot even begin, on a device that is not there or with data that the model
  /// does not take, the folder is removed again, so that it is not in the way of the corrected command, and what
  /// --force was to replace is there again.
  TrainReport run() {
    const fs::path folder{options_.out};
    try {
      TrainReport report = run_all();
      report.kept_old = new_folder_ && fs::exists(folder / kReplaced);
      if (report.kept_old) restore_replaced(folder);
      return report;
    } catch (...) {
      std::error_code ignored;
      if (new_folder_ && fs::exists(folder / kReplaced, ignored)) {
        restore_replaced(folder);
      } else if (new_folder_ && fs::is_empty(folder / kCheckpoints, ignored) && !ignored) {
        remove_results(folder);
        for (const fs::path& empty : {folder / kCheckpoints, folder}) fs::remove(empty, ignored);
      }
      throw;
    }
  }

 private:
  TrainReport run_all() {
    std::size_t number = 0;
    const std::size_t runs = (options_.seeds.size() + options_.lr_factors.size() - 1) * options_.codecs.size();
    for (const std::int64_t seed : options_.seeds) {
      for (std::size_t codec = 0; codec < options_.codecs.size(); ++codec) {
        for (const double factor : factors_for(codec, seed)) {
          if (run_one(codec, seed, factor, fmt::format("({}/{})", ++number, runs)) == TrainRun::Status::unfinished) {
            report_.interrupted = true;
            return std::move(report_);
          }
        }
      }
    }
    return std::move(report_);
  }

  /// All factors of the learning rate in the first seed, then the one that did best; none where a codec has finished
  /// with none of several.
  [[nodiscard]] std::vector<double> factors_for(std::size_t codec, std::int64_t seed) const {
    if (options_.lr_factors.size() == 1 || seed == options_.seeds.front()) return options_.lr_factors;
    const auto best = best_lr_factor(options_, report_, codec);
    return best ? std::vector<double>{*best} : std::vector<double>{};
  }

  /// On the processes of a job: all must have been asked the same. One of them makes the folder.
  void join(const std::vector<Fact>& facts) {
    if (!across_processes_) {
      new_folder_ = prepare_folder(options_, facts, lock_);
      return;
    }
    report_.leads = mpi_place().rank == 0;
    std::optional<Error> different;
    // The file of a network is the first rank's business, as all that is modelled.
    std::vector<Fact> shared = facts;
    std::erase_if(shared, [](const Fact& fact) { return fact.what == "--network"; });
    shared.push_back({"--out", options_.out});
    shared.push_back({"--force", options_.force ? "given" : "not given"});
    shared.push_back({"--resume", options_.resume ? "given" : "not given"});
    run_processes(
        options_.processes(),
        [&](Communicator<Space::host>& comm) {
          try {  // what all ranks throw alike is said once, behind the job
            expect_same_on_all_ranks(shared, comm);
          } catch (const Error& error) {
            if (error.fault() != Fault::usage) throw;
            different = error;
            return;
          }
          if (comm.rank() == 0) new_folder_ = prepare_folder(options_, facts, lock_);
          comm.barrier({});
        },
        options_.comm_timeout);
    if (different) throw Error{*different};
  }

  /// Seconds of computation in one step of none with this seed, which comes first: other work of the machine would
  /// otherwise be taken for a difference between codecs. Nothing for none itself.
  [[nodiscard]] std::optional<double> compute_seconds(std::int64_t seed) const {
    for (const auto& run : report_.runs) {
      if (run.codec != 0 || run.seed != seed || run.rows.empty()) continue;
      const auto& last = run.rows.back().numbers;
      return last.costs.compute / static_cast<double>(last.step);
    }
    return std::nullopt;
  }

  TrainRun::Status run_one(std::size_t codec, std::int64_t seed, double factor, const std::string& number) {
    const CodecSpec& spec = options_.codecs[codec];
    const bool rates = options_.lr_factors.size() > 1;
    const std::string name = spec.name() + (spec.given.empty() ? "" : ":" + spec.given);
    std::unique_ptr<Progress> progress;
    if (report_.leads) {
      progress = std::make_unique<Progress>(
          fmt::format("train {} seed {}{} {}", name, seed, rates ? fmt::format(" rate x {}", factor) : "", number),
          static_cast<std::uint64_t>(steps_));
    }
    const std::size_t here = report_.runs.size();
    report_.runs.emplace_back();
    std::string accuracy;
    const RunPlan plan{.options = options_,
                       .training_set = training_set_,
                       .test_set = test_set_ ? &*test_set_ : nullptr,
                       .codec = codec,
                       .seed = seed,
                       .lr_factor = factor,
                       .steps = steps_,
                       .checkpoint = (fs::path{options_.out} / kCheckpoints /
                                      fmt::format("{}-{}-seed{}{}{}", codec, spec.name(), seed,
                                                  rates ? fmt::format("-rate{}", factor) : "", kCheckpointEnding))
                                         .string(),
                       .compute_seconds = compute_seconds(seed),
                       .threads = !across_processes_,
                       .on_step = [&](const TrainRun& run, std::int64_t step, double loss, bool row) {
                         if (row) {
                           report_.runs[here] = run;
                           save_rows();
                           const auto reached = run.final_accuracy();
                           if (reached) accuracy = fmt::format(", accuracy {:.1f} %", 100.0 * *reached);
                         }
                         progress->update(static_cast<std::uint64_t>(step),
                                          fmt::format("loss {:.3f}{}", loss, accuracy));
                       }};
    SharedTrainer shared;
    const auto ranks = static_cast<std::size_t>(options_.training.workers);
    // Each rank that is a thread has a result of its own to write to; rank 0's is the one that counts.
    std::vector<TrainRun> results(across_processes_ ? 1 : ranks);
    std::vector<std::uint64_t> elements(results.size(), 0);
    const HostBody body = [&](Communicator<Space::host>& comm) {
      const std::size_t mine = across_processes_ ? 0 : static_cast<std::size_t>(comm.rank());
      train_rank(plan, comm, shared, results[mine], elements[mine]);
    };
    if (across_processes_)
      run_processes(options_.processes(), body, options_.comm_timeout);
    else
      run_threads(static_cast<int>(ranks), body, options_.comm_timeout);
    report_.elements = elements.front();
    report_.runs[here] = std::move(results.front());
    return report_.runs[here].status;
  }

  void save_rows() const {
    save_csv((fs::path{options_.out} / "train.csv").string(), train_table(options_, report_));
    if (std::error_code ignored; new_folder_) fs::remove_all(fs::path{options_.out} / kReplaced, ignored);
  }

  const TrainOptions& options_;
  bool across_processes_;
  Dataset training_set_;
  std::optional<Dataset> test_set_;
  std::int64_t steps_ = 0;
  bool new_folder_ = false;  ///< made by this process, or emptied
  FolderLock lock_;
  TrainReport report_;
};

}  // namespace

TrainReport run_train(const TrainOptions& options, std::vector<Fact>& facts) {
  require_trainer();
  return Training{options, facts}.run();
}

}  // namespace gradtool
