#include "lib/bench/bench.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <thread>

#include "lib/bench/copy_rate.hpp"
#include "lib/bench/replay_files.hpp"
#include "lib/comm/launch.hpp"
#include "lib/core/error.hpp"
#include "lib/core/interrupt.hpp"
#include "lib/core/sha256.hpp"
#include "lib/core/task_pool.hpp"
#include "lib/core/text.hpp"
#include "lib/report/progress.hpp"

namespace gradtool {
namespace {

double captured_compute_seconds(const GradientReader& reader) {
  if (const auto seconds = median_compute_seconds(reader.steps())) return *seconds;
  throw Error{Fault::data, fmt::format("{} does not say how long an iteration computes (/steps/compute_seconds); give "
                                       "the time: --compute-ms 120",
                                       reader.path())};
}

/// The tensors that are replayed, and those that are not because their values are not finite.
struct Selection {
  std::vector<std::size_t> tensors;
  std::vector<NonFinite> skipped;
};

/// Those whose name matches `layers`; all when it is empty. Throws Fault::usage when none does.
Selection choose_tensors(const GradientReader& reader, const std::string& layers) {
  Selection selection;
  const auto bad = find_non_finite(reader);
  bool any = false;
  for (std::size_t t = 0; t < reader.tensors().size(); ++t) {
    if (!layers.empty() && !matches(layers, reader.tensors()[t].name)) continue;
    any = true;
    const auto found = std::find_if(bad.begin(), bad.end(), [t](const NonFinite& n) { return n.tensor == t; });
    if (found == bad.end())
      selection.tensors.push_back(t);
    else
      selection.skipped.push_back(*found);
  }
  if (!any) throw Error{Fault::usage, fmt::format("--layers '{}' matches no tensor of {}", layers, reader.path())};
  return selection;
}

/// --ranks, else the processes of the job, else the file's workers. Throws Fault::usage where they contradict each
/// other.
int choose_ranks(const BenchOptions& options, const ReplayDevice& device, const GradientReader& reader,
                 const MpiPlace& place) {
  const auto workers = static_cast<int>(reader.workers());
  int ranks = options.ranks > 0 ? options.ranks : workers;
  if (device.across_processes) {
    if (options.ranks > 0 && options.ranks != place.size) {
      throw Error{Fault::usage, fmt::format("--ranks {} but mpirun started {} processes; leave --ranks out",
                                            options.ranks, place.size)};
    }
    ranks = place.size;
  }
  if (ranks > workers) {
    throw Error{Fault::usage, fmt::format("{} ranks, but {} has the gradients of {} workers; use at most {}", ranks,
                                          reader.path(), workers, workers)};
  }
  return ranks;
}

/// none and noop first, then what was asked for, each once.
std::vector<CodecSpec> with_baselines(const std::vector<CodecSpec>& wanted) {
  std::vector<CodecSpec> specs{parse_codec("none"), parse_codec("noop")};
  for (const auto& spec : wanted) {
    if (spec.descriptor->name == "none" || spec.descriptor->name == "noop") continue;
    const auto same = [&](const CodecSpec& s) {
      return s.name() == spec.name() && s.params_text() == spec.params_text();
    };
    if (std::none_of(specs.begin(), specs.end(), same)) specs.push_back(spec);
  }
  return specs;
}

/// The remarks, the second behind the first where there is one.
std::string joined(const std::string& first, const std::string& second) {
  return first + (first.empty() || second.empty() ? "" : "; ") + second;
}

/// Seconds of one phase (0 to 2) or of the whole (3), over all samples.
PhaseSummary summary_of(const std::vector<PhaseTimes>& samples, std::size_t phase) {
  std::vector<double> seconds(samples.size());
  std::transform(samples.begin(), samples.end(), seconds.begin(),
                 [phase](const PhaseTimes& sample) { return phase < 3 ? sample.phase[phase] : sample.total; });
  const Summary all = summarise(seconds);
  return {.median = all.median, .p95 = all.p95, .min = all.min, .noise = all.noise};
}

/// The data type of a tensor, or of all: "mixed" where they differ.
std::string dtype_of(const GradientReader& reader, const std::string& tensor) {
  std::string dtype;
  for (const auto& info : reader.tensors()) {
    if (tensor != "all" && info.name != tensor) continue;
    const std::string name{name_of(info.dtype)};
    dtype = dtype.empty() || dtype == name ? name : "mixed";
  }
  return dtype;
}

/// nmse of the sums over all steps.
double cumulative_nmse(double error, double energy) {
  if (energy > 0.0) return error / energy;
  return error == 0.0 ? 0.0 : std::numeric_limits<double>::infinity();
}

class Bench {
 public:
  explicit Bench(const BenchOptions& options)
      : options_{options},
        device_{choose_device(options)},
        reader_{options.file},
        selection_{choose_tensors(reader_, options.layers)},
        units_{make_units(reader_.tensors(), selection_.tensors, options.granularity)},
        run_id_{fmt::format("{:%Y%m%dT%H%M%SZ}-{}", fmt::gmtime(std::time(nullptr)), getpid())} {
    if (options.compute_captured) compute_seconds_ = captured_compute_seconds(reader_);
    if (device_.across_processes) place_ = mpi_world(options.comm_timeout);
    report_.ready = ready_shares(units_, reader_.tensors());
    ranks_ = choose_ranks(options, device_, reader_, place_);
    if (ranks_ == 1 && !options.networks.empty()) {
      throw Error{Fault::usage,
                  "--network needs a replay of 2 ranks at least: between fewer, no collective can be counted"};
    }
    for (const auto& unit : units_) elements_ += unit.elements;
    if (!selection_.skipped.empty()) {
      remark_ = fmt::format("{} of {} tensors left out: not finite", selection_.skipped.size(),
                            selection_.skipped.size() + selection_.tensors.size());
    }
    if (options.comm == "mpi" && ranks_ == 1 && reader_.workers() > 1) {
      remark_ = joined(remark_, fmt::format("one process: mpirun -n {} replays all workers", reader_.workers()));
    }
    report_.leads = place_.rank == 0;
  }

  BenchReport run(const KeepRows& keep) {
    const auto specs = with_baselines(options_.codecs);
    for (const auto& spec : specs) {
      if (!options_.all_codecs) static_cast<void>(resolve(options_.scheme_for(spec), spec));
    }
    if (!options_.reconstruction.empty()) open_reconstruction();
    if (report_.leads) {
      report_.file_sha256 = sha256_of_file(options_.file);
      report_.copy_rate = copy_rate();
    }
    const std::size_t runs = specs.size() * ((options_.isolated ? 1 : 0) + (options_.concurrent ? 1 : 0));
    Progress progress{"bench", runs};
    std::size_t done = 0;
    for (const auto& spec : specs) {
      add_codec(spec, progress, done);
      if (!report_.leads || !keep) continue;
      set_verdicts(report_.rows);
      keep(report_.rows);
    }
    if (reconstruction_) reconstruction_->close();
    report_.interrupted = interrupted();
    if (report_.leads && !options_.networks.empty()) model_networks();
    set_verdicts(report_.rows);
    return std::move(report_);
  }

 private:
  void open_reconstruction() {
    if (units_.empty()) throw Error{Fault::data, fmt::format("{}: no tensor has only finite values", options_.file)};
    const auto open = [this] {
      reconstruction_ =
          std::make_unique<Reconstruction>(options_, reader_, selection_.tensors, options_.codecs.front());
    };
    if (!device_.across_processes) {
      open();
      return;
    }
    // Only one process opens the file; when it cannot, this ends the others, which would wait for it.
    run_mpi(
        [&](Communicator<Space::host>& comm) {
          if (comm.rank() == 0) open();
        },
        options_.comm_timeout);
  }

  void add_codec(const CodecSpec& spec, Progress& progress, std::size_t& done) {
    std::vector<Timing> timings;
    if (options_.isolated) timings.push_back(Timing::isolated);
    if (options_.concurrent) timings.push_back(Timing::concurrent);
    for (const auto& bad : selection_.skipped) add_skipped(spec, timings, bad);
    if (const std::string reason = reason_to_skip(spec); !reason.empty()) {
      for (const Timing timing : timings) add_unmeasured(spec, timing, ResultRow::Status::skipped, reason);
      return;
    }
    // Errors and bytes: from the first timing that succeeds, unless the other one is pipelined, which is another sum.
    std::optional<ReplayResult> first;
    int first_chunks = 1;
    for (const Timing timing : timings) {
      progress.update(done++,
                      fmt::format("{} {}", spec.name(), timing == Timing::isolated ? "isolated" : "concurrent"));
      const int chunks = options_.pipeline_for(spec, timing);
      const bool errors = !first || chunks != first_chunks;
      try {
        const ReplayResult result = replay(spec, timing, errors, errors && !first);
        if (errors) first = result;
        first_chunks = chunks;
        add_rows(spec, timing, *first, result, errors);
      } catch (const Error& error) {
        if (error.fault() == Fault::usage || device_.across_processes) throw;
        const bool skipped = error.fault() == Fault::unavailable || interrupted();
        add_unmeasured(spec, timing, skipped ? ResultRow::Status::skipped : ResultRow::Status::failed, error.what());
        report_.failed = report_.failed || !skipped;
      }
    }
  }

  /// Why a codec is not replayed at all; empty when it is.
  [[nodiscard]] std::string reason_to_skip(const CodecSpec& spec) const {
    if (interrupted()) return "interrupted";
    if (units_.empty()) return "no tensor has only finite values";
    try {
      static_cast<void>(resolve(options_.scheme_for(spec), spec));
    } catch (const Error& error) {
      return error.what();  // `--codec all` with a scheme that this one cannot ride
    }
    return {};
  }

  /// A row with what is known before anything is measured. `tensor` is a name or "all".
  [[nodiscard]] ResultRow start_row(const CodecSpec& spec, Timing timing, const std::string& tensor,
                                    std::uint64_t elements) const {
    ResultRow row{spec};
    row.run_id = run_id_;
    row.scheme = options_.scheme_for(spec);  // as asked for where the codec cannot ride it: that row is skipped
    if (row.scheme == Scheme::automatic) row.scheme = resolve(row.scheme, spec);
    if (tensor == "all") row.message = remark_;
    row.file = std::filesystem::path{reader_.path()}.filename().string();
    row.model = reader_.info().model;
    row.tensor = tensor;
    row.granularity = options_.granularity.text();
    row.elements = elements;
    row.first_step = reader_.steps().front().iteration;
    row.last_step = reader_.steps().back().iteration;
    row.ranks = ranks_;
    row.comm = options_.comm;
    row.device = options_.device;
    row.threads = threads_for(timing);
    row.dtype = dtype_of(reader_, tensor);
    row.seed = options_.seed;
    row.timing = timing;
    row.pipeline = options_.pipeline_for(spec, timing);
    row.all_reduce = options_.all_reduce_for(spec);
    return row;
  }

  void add_unmeasured(const CodecSpec& spec, Timing timing, ResultRow::Status status, const std::string& message) {
    ResultRow row = start_row(spec, timing, "all", elements_);
    row.status = status;
    row.message = message;
    report_.rows.push_back(std::move(row));
  }

  /// Ranks that compute one at a time have all cores; together they share them.
  [[nodiscard]] int threads_for(Timing timing) const {
    if (options_.threads > 0) return options_.threads;
    const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
    return timing == Timing::isolated ? cores : std::max(1, cores / ranks_);
  }

  /// memcpy with the threads of an isolated rank, or from device to device: bytes copied a second.
  [[nodiscard]] double copy_rate() const {
#if GT_HAS_CUDA
    if (device_.cuda) return measure_device_copy_rate(device_.index, 256U << 20);
#endif
    TaskPool pool{threads_for(Timing::isolated)};
    return measure_copy_rate({&pool}, 128U << 20);
  }

  /// `write`: also the files that were asked for.
  ReplayResult replay(const CodecSpec& spec, Timing timing, bool errors, bool write) {
    ReplayPlan plan{.options = options_,
                    .reader = reader_,
                    .units = units_,
                    .codec = spec,
                    .ranks = ranks_,
                    .threads = threads_for(timing),
                    .timing = timing,
                    .errors = errors,
                    .write_payloads = write && !options_.payloads.empty() && is_wanted(spec)};
    if (write && reconstruction_ && is_wanted(spec)) {
      plan.on_result = [this](std::size_t step, const Unit& unit, std::span<const float> result) {
        reconstruction_->put(step, unit, result);
      };
    }
    return run_replay(device_, plan);
  }

  /// --reconstruction is for the one codec that was asked for, not for the baselines beside it.
  [[nodiscard]] bool is_wanted(const CodecSpec& spec) const {
    return spec.name() == options_.codecs.front().name() && spec.params_text() == options_.codecs.front().params_text();
  }

  /// `replayed` has the errors and bytes, `timed` the samples.
  void add_rows(const CodecSpec& spec, Timing timing, const ReplayResult& replayed, const ReplayResult& timed,
                bool measure) {
    if (!report_.leads) return;
    const bool whole_units = options_.pipeline_for(spec, timing) == 1;
    if (measure && whole_units) quality_ = measure_quality(reader_, units_, spec, options_.seed);
    ErrorSums all;
    double cumulative_error = 0.0;
    double cumulative_energy = 0.0;
    for (const std::size_t tensor : selection_.tensors) {
      all.merge(replayed.tensor_errors[tensor]);
      cumulative_error += replayed.cumulative_error[tensor];
      cumulative_energy += replayed.cumulative_energy[tensor];
    }
    ResultRow row = start_row(spec, timing, "all", elements_);
    if (!std::isfinite(all.nmse()))
      row.message = joined(row.message, "the result is not finite: values overflow in this codec, or in the sum");
    row.message = joined(joined(row.message, replayed.note), timed.clock_note);
    row.errors = all;
    row.cumulative_nmse = cumulative_nmse(cumulative_error, cumulative_energy);
    row.bytes = {
        .payload = replayed.payload_bytes, .wire_per_rank = replayed.wire_bytes, .values_sent = replayed.values_sent};
    if (replayed.has_residual && replayed.gradient_energy > 0.0)
      row.residual_ratio = std::sqrt(replayed.residual_energy / replayed.gradient_energy);
    if (!timed.samples.empty()) {
      row.encode = summary_of(timed.samples, 0);
      row.communicate = summary_of(timed.samples, 1);
      row.decode = summary_of(timed.samples, 2);
      if (timing == Timing::concurrent) row.total = summary_of(timed.samples, 3);
      if (timing == Timing::isolated) row.units = replayed.units;
      row.copy_rate = report_.copy_rate;
      row.samples = timed.samples;
    }
    if (whole_units) row.quality = quality_;  // of a codec that is given whole units
    report_.rows.push_back(std::move(row));
    if (!options_.per_tensor) return;
    for (const std::size_t tensor : selection_.tensors) {
      const TensorInfo& info = reader_.tensors()[tensor];
      ResultRow part = start_row(spec, timing, info.name, info.elements);
      part.errors = replayed.tensor_errors[tensor];
      part.cumulative_nmse = cumulative_nmse(replayed.cumulative_error[tensor], replayed.cumulative_energy[tensor]);
      report_.rows.push_back(std::move(part));
    }
  }

  void model_networks() {
    const std::vector<int> machines = options_.nodes.empty() ? std::vector<int>{ranks_} : options_.nodes;
    add_modelled(report_.rows, {.networks = options_.networks,
                                .machines = machines,
                                .ready = report_.ready,
                                .compute_seconds = compute_seconds_,
                                .overlap = options_.overlap});
  }

  void add_skipped(const CodecSpec& spec, const std::vector<Timing>& timings, const NonFinite& bad) {
    const TensorInfo& info = reader_.tensors()[bad.tensor];
    for (const Timing timing : timings) {
      ResultRow row = start_row(spec, timing, info.name, info.elements);
      row.status = ResultRow::Status::skipped;
      row.message = fmt::format("{} values are not finite, first at iteration {}, worker {}", bad.count,
                                reader_.steps()[bad.first_step].iteration, bad.first_worker);
      report_.rows.push_back(std::move(row));
    }
  }

  const BenchOptions& options_;
  ReplayDevice device_;
  MpiPlace place_;
  GradientReader reader_;
  Selection selection_;
  std::vector<Unit> units_;
  BenchReport report_;
  std::string run_id_;
  int ranks_ = 1;
  std::uint64_t elements_ = 0;  ///< of the tensors that are replayed
  std::string remark_;          ///< for all rows that cover all tensors
  CodecQuality quality_;        ///< of the codec that was replayed last
  double compute_seconds_ = options_.compute_seconds;
  std::unique_ptr<Reconstruction> reconstruction_;
};

}  // namespace

BenchReport run_bench(const BenchOptions& options, const KeepRows& keep) {
  check_options(options);
  return Bench{options}.run(keep);
}

}  // namespace gradtool
