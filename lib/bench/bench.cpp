#include "lib/bench/bench.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <memory>
#include <optional>
#include <thread>

#include "lib/bench/launch_replay.hpp"
#include "lib/bench/modelled.hpp"
#include "lib/bench/reconstruction.hpp"
#include "lib/bench/rows.hpp"
#include "lib/bench/selection.hpp"
#include "lib/bench/verdicts.hpp"
#include "lib/core/error.hpp"
#include "lib/core/interrupt.hpp"
#include "lib/core/sha256.hpp"
#include "lib/report/progress.hpp"

namespace gradtool {
namespace {

double captured_compute_seconds(const GradientReader& reader) {
  if (const auto seconds = median_compute_seconds(reader.steps())) return *seconds;
  throw Error{Fault::data, fmt::format("{} does not say how long an iteration computes (/steps/compute_seconds); give "
                                       "the time: --compute-ms 120",
                                       reader.path())};
}

class Bench {
 public:
  explicit Bench(const BenchOptions& options)
      : options_{options},
        device_{choose_device(options)},
        reader_{options.file},
        selection_{choose_tensors(reader_, options.layers)},
        units_{make_units(reader_.tensors(), selection_.tensors, options.granularity)},
        report_{.rows = Table{"bench", bench_columns()}, .samples = {}, .units = {}, .ready = {}, .file_sha256 = {}} {
    if (options.compute_captured) compute_seconds_ = captured_compute_seconds(reader_);
    if (device_.across_processes) place_ = mpi_world(options.comm_timeout);
    report_.ready = ready_shares(units_, reader_.tensors());
    facts_.options = &options_;
    facts_.reader = &reader_;
    facts_.run_id = fmt::format("{:%Y%m%dT%H%M%SZ}-{}", fmt::gmtime(std::time(nullptr)), getpid());
    facts_.ranks = choose_ranks(options, device_, reader_, place_);
    if (facts_.ranks == 1 && !options.networks.empty()) {
      throw Error{Fault::usage,
                  "--network needs a replay of 2 ranks at least: between fewer, no collective can be counted"};
    }
    for (const auto& unit : units_) facts_.elements += unit.elements;
    if (!selection_.skipped.empty()) {
      facts_.remark = fmt::format("{} of {} tensors left out: not finite", selection_.skipped.size(),
                                  selection_.skipped.size() + selection_.tensors.size());
    }
    if (options.comm == "mpi" && facts_.ranks == 1 && reader_.workers() > 1) {
      facts_.remark += fmt::format("{}one process: mpirun -n {} replays all workers", facts_.remark.empty() ? "" : "; ",
                                   reader_.workers());
    }
    report_.leads = place_.rank == 0;
  }

  BenchReport run(const std::function<void(const Table&)>& keep) {
    const auto specs = with_baselines(options_.codecs);
    for (const auto& spec : specs) {
      if (!options_.all_codecs) static_cast<void>(resolve(options_.scheme_for(spec), spec));
    }
    if (!options_.reconstruction.empty()) open_reconstruction();
    if (report_.leads) {
      report_.file_sha256 = sha256_of_file(options_.file);
      facts_.copy_rate = report_.copy_rate = copy_rate(device_, threads_for(Timing::isolated));
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
      for (const Timing timing : timings) add_unmeasured(spec, timing, "skipped", reason);
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
        add_unmeasured(spec, timing, skipped ? "skipped" : "failed", error.what());
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

  void add_unmeasured(const CodecSpec& spec, Timing timing, const std::string& status, const std::string& message) {
    auto row = start_row(report_.rows, facts(spec, timing), spec, timing, "all", facts_.elements);
    row.set("status", status).set("message", message);
    append(row, {});
  }

  /// Ranks that compute one at a time have all cores; together they share them.
  [[nodiscard]] int threads_for(Timing timing) const {
    if (options_.threads > 0) return options_.threads;
    const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
    return timing == Timing::isolated ? cores : std::max(1, cores / facts_.ranks);
  }
  [[nodiscard]] RunFacts facts(const CodecSpec& spec, Timing timing) const {
    RunFacts facts = facts_;
    facts.threads = threads_for(timing);
    facts.pipeline = options_.pipeline_for(spec, timing);
    return facts;
  }

  /// `write`: also the files that were asked for.
  ReplayResult replay(const CodecSpec& spec, Timing timing, bool errors, bool write) {
    ReplayPlan plan{.reader = &reader_,
                    .units = &units_,
                    .codec = spec,
                    .scheme = options_.scheme_for(spec),
                    .ranks = facts_.ranks,
                    .threads = threads_for(timing),
                    .timing = timing,
                    .pipeline = options_.pipeline_for(spec, timing),
                    .all_reduce = options_.all_reduce,
                    .stop = options_.stop,
                    .seed = options_.seed,
                    .warmup_steps = options_.warmup_steps,
                    .errors = errors,
                    .check = options_.check,
                    .hot = options_.hot,
                    .payloads = {},
                    .clock_reasons = {},
                    .on_result = {}};
    if (write && is_wanted(spec)) plan.payloads = options_.payloads;
    if (write && reconstruction_ && is_wanted(spec)) {
      plan.on_result = [this](std::size_t step, const Unit& unit, std::span<const float> result) {
        reconstruction_->put(step, unit, result);
      };
    }
    ReplayResult result;
    launch_replay(device_, plan, result);
    return result;
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
    auto row = start_row(report_.rows, facts(spec, timing), spec, timing, "all", facts_.elements);
    std::string note = replayed.note;
    if (!std::isfinite(all.nmse())) {
      note =
          "the result is not finite: values overflow in this codec, or in the sum" + (note.empty() ? "" : "; " + note);
    }
    if (!timed.clock_note.empty()) note += (note.empty() ? "" : "; ") + timed.clock_note;
    if (!note.empty()) row.set("message", facts_.remark + (facts_.remark.empty() ? "" : "; ") + note);
    set_errors(row, all, cumulative_error, cumulative_energy);
    set_bytes(row, facts_, replayed);
    set_times(row, facts_, replayed, timed.samples, spec, timing);
    if (whole_units) set_quality(row, quality_);  // of a codec that is given whole units
    if (timing == Timing::isolated && !timed.samples.empty()) {
      const Scheme scheme = resolve(options_.scheme_for(spec), spec);
      const std::size_t at = report_.rows.rows().size();
      bases_.push_back({.row = at, .spec = spec, .scheme = scheme, .units = replayed.units});
      report_.units[at] = replayed.units;
    }
    append(row, timed.samples);
    if (!options_.per_tensor) return;
    for (const std::size_t tensor : selection_.tensors) {
      const TensorInfo& info = reader_.tensors()[tensor];
      auto one = start_row(report_.rows, facts(spec, timing), spec, timing, info.name, info.elements);
      set_errors(one, replayed.tensor_errors[tensor], replayed.cumulative_error[tensor],
                 replayed.cumulative_energy[tensor]);
      append(one, {});
    }
  }

  void model_networks() {
    BenchOptions options = options_;
    if (options.nodes.empty()) options.nodes.push_back(facts_.ranks);
    options.compute_seconds = compute_seconds_;
    add_modelled(report_.rows, bases_, report_.ready, options);
  }

  void add_skipped(const CodecSpec& spec, const std::vector<Timing>& timings, const NonFinite& bad) {
    const TensorInfo& info = reader_.tensors()[bad.tensor];
    for (const Timing timing : timings) {
      auto row = start_row(report_.rows, facts(spec, timing), spec, timing, info.name, info.elements);
      row.set("status", std::string{"skipped"});
      row.set("message", fmt::format("{} values are not finite, first at iteration {}, worker {}", bad.count,
                                     reader_.steps()[bad.first_step].iteration, bad.first_worker));
      append(row, {});
    }
  }

  void append(RowBuilder& row, std::vector<PhaseTimes> samples) {
    report_.rows.add(row.take());
    report_.samples.push_back(std::move(samples));
  }

  const BenchOptions& options_;
  ReplayDevice device_;
  MpiPlace place_;
  GradientReader reader_;
  Selection selection_;
  std::vector<Unit> units_;
  BenchReport report_;
  RunFacts facts_;
  CodecQuality quality_;
  std::vector<ModelBasis> bases_;
  double compute_seconds_ = options_.compute_seconds;
  std::unique_ptr<Reconstruction> reconstruction_;
};

}  // namespace

BenchReport run_bench(const BenchOptions& options, const std::function<void(const Table&)>& keep) {
  check_options(options);
  return Bench{options}.run(keep);
}

}  // namespace gradtool
