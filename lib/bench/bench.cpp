#include "lib/bench/bench.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <future>
#include <iterator>
#include <memory>
#include <optional>
#include <thread>

#if GT_HAS_CUDA
#include "kernels/cuda/runtime.hpp"
#endif
#include "lib/bench/bench_inputs.hpp"
#include "lib/bench/codec_times.hpp"
#include "lib/bench/copy_rate.hpp"
#include "lib/bench/memory.hpp"
#include "lib/bench/replay_files.hpp"
#include "lib/bench/rows.hpp"
#include "lib/comm/launch.hpp"
#include "lib/core/error.hpp"
#include "lib/core/interrupt.hpp"
#include "lib/core/sha256.hpp"
#include "lib/core/task_pool.hpp"
#include "lib/core/text.hpp"
#include "lib/report/json.hpp"
#include "lib/report/progress.hpp"

namespace gradtool {
namespace {

/// The worse of both, number by number.
PacketShares worse_of(const PacketShares& a, const PacketShares& b) {
  return {.delivered_least = std::min(a.delivered_least, b.delivered_least),
          .lost_first = std::max(a.lost_first, b.lost_first),
          .repeated = std::max(a.repeated, b.repeated),
          .burst = std::max(a.burst, b.burst)};
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

class Bench {
 public:
  explicit Bench(const BenchOptions& options)
      : options_{options},
        in_{open_inputs(options)},
        run_id_{fmt::format("{:%Y%m%dT%H%M%SZ}-{}", fmt::gmtime(std::time(nullptr)), getpid())} {}

  /// Finds out what is the same in every run: facts about the machine and about the file.
  void look_round() {
    measure_machine();
    if (!in_.known.leads) return;
    if (options_.sizes.empty()) {
      auto hash = std::async(std::launch::async, [this] {
        for (auto& [path, sha256] : in_.known.source_sha256) sha256 = sha256_of_file(path);
        for (const auto& file : options_.received) in_.known.received_sha256.push_back(sha256_of_file(file.path));
        return sha256_of_file(options_.file);
      });
      // Weights are the same on all ranks, and values that are not added up may be alike.
      if (sums() && in_.sources.front()->info().quantity != "weight" && !in_.weights) {
        in_.known.stated_averaged = in_.sources.front()->info().averaged;
        try {
          in_.known.likeness = worker_likeness(*in_.sources.front(), in_.ranks);
        } catch (const Interrupted&) {  // no row is measured then, and each says so
        }
      }
      in_.known.file_sha256 = hash.get();
    }
    for (auto& cut : in_.cuts) {
      if (!in_.values_remark.empty()) cut.remark = joined(cut.remark, in_.values_remark);
      cut.averaged = in_.known.averaged();
      if (cut.averaged) cut.remark = joined(cut.remark, "the workers' gradients are averaged already");
    }
  }

  [[nodiscard]] std::vector<StepWindow> windows() const {
    const auto& steps = in_.sources.front()->steps();
    return windows_of(steps, steps.size());
  }
  [[nodiscard]] int ranks() const { return in_.ranks; }

  BenchReport run(const KeepRows& keep, const std::string& label) {
    report_ = in_.known;
    const auto specs = with_baselines(options_.codecs);
    for (const auto& spec : specs) {
      if (!options_.all_codecs) expect_carried(spec);
    }
    if (!options_.reconstruction.empty()) open_reconstruction();
    done_ = 0;
    left_out_ = 0;
    first_seconds_ = first_again_ = 0.0;
    stop_ = options_.stop;
    const std::size_t asked_for = specs.size() * timings().size();  // of a cut
    std::size_t replays = asked_for;
    for (const auto& spec : specs) replays += options_.other_ways(spec, in_.ranks).size();
    stop_.most_seconds =
        std::clamp(kSamplingSeconds / static_cast<double>(replays), stop_.least_seconds, stop_.most_seconds);
    other_ways_stop_ = stop_;
    if (replays > asked_for) {
      const double share = kOtherWays * static_cast<double>(asked_for) / static_cast<double>(replays - asked_for);
      other_ways_stop_.part *= std::min(1.0, share);
    }
    planned_ = in_.cuts.size() * (replays + in_.received.size());
    Progress progress{label, planned_};
    const RowMaker maker{options_, {run_id_, in_.ranks, threads(), in_.known.processor, in_.known.copy_rate}};
    for (const BenchCut& whole : in_.cuts) {
      std::optional<PartOfSteps> part;
      if (options_.steps > 0) part.emplace(whole.source, options_.steps);
      const BenchCut cut = part ? over(whole, *part) : whole;
      std::vector<Measurement> measurements;
      const std::size_t before = report_.rows.size();
      std::size_t built = 0;
      const auto keep_rows = [&] {  // of the measurements that have none yet
        if (!report_.leads) return;
        for (; built < measurements.size(); ++built) {
          for (ResultRow& row : maker.rows_of(cut, measurements[built])) report_.rows.push_back(std::move(row));
        }
        set_verdicts(report_.rows);
        if (keep) keep(report_.rows);
      };
      for (const auto& spec : specs) {
        start_codec(cut, spec, measurements, progress);
        if (keep && !interrupted()) keep_rows();
      }
      for (std::size_t round = 1; round < options_.rounds; ++round) {
        for (auto& measurement : measurements) {
          progress.update(done_ + left_out_, note_of(measurement, round), seconds_left(measurements));
          sample_again(cut, measurement, round);
        }
      }
      add_received(cut, measurements, progress);
      report_.rows.resize(before, ResultRow{specs.front()});
      built = 0;
      keep_rows();
    }
    if (reconstruction_ && reconstruction_->close()) report_.written.push_back(options_.reconstruction);
    report_.interrupted = interrupted();
    if (report_.leads && !options_.networks.empty()) model_networks();
    set_verdicts(report_.rows);
    return std::move(report_);
  }

 private:
  /// Seconds for all rows of one granularity together, where --timeout does not say how long one may take. Six rows, as
  /// one codec has with none and noop, keep the 5 s that StopRule gives each.
  static constexpr double kSamplingSeconds = 30.0;
  /// Seconds for the other ways of all codecs together, as a part of what the rows that were asked for may take: two
  /// levels double the number of replays, and are to cost half as long again at most.
  static constexpr double kOtherWays = 0.3;
  static constexpr std::string_view kNothingFinite = "no tensor has only finite values";

  /// The cut over some of its steps. The tensors that are not finite somewhere stay out without rows that say so,
  /// because where that is may not be among these steps.
  static BenchCut over(const BenchCut& whole, const GradientSource& part) {
    return {.source = part,
            .name = whole.name,
            .selection = {.tensors = whole.selection.tensors, .skipped = {}},
            .units = whole.units,
            .elements = whole.elements,
            .remark = whole.remark,
            .backward = whole.backward};
  }

  void open_reconstruction() {
    if (in_.cuts.front().units.empty()) throw Error{Fault::data, fmt::format("{}: {}", options_.file, kNothingFinite)};
    const auto open = [this] {
      reconstruction_ = std::make_unique<Reconstruction>(options_, in_.cuts.front().source,
                                                         in_.cuts.front().selection.tensors, options_.codecs.front());
    };
    if (!in_.device.across_processes) {
      open();
      return;
    }
    // Only one process opens the file; when it cannot, this ends the others, which would wait for it.
    run_processes(
        options_.processes(),
        [&](Communicator<Space::host>& comm) {
          if (comm.rank() == 0) open();
        },
        options_.comm_timeout);
  }

  [[nodiscard]] std::vector<Timing> timings() const {
    std::vector<Timing> both;
    if (options_.isolated) both.push_back(Timing::isolated);
    if (options_.concurrent) both.push_back(Timing::concurrent);
    return both;
  }

  /// The first round of a codec, with each timing and by each way: errors and bytes of a way come from its first timing
  /// that succeeds, unless the other one is pipelined, which is another sum.
  void start_codec(const BenchCut& cut, const CodecSpec& spec, std::vector<Measurement>& measurements,
                   Progress& progress) {
    const std::string reason = reason_to_skip(cut, spec);  // of a codec that is not replayed at all
    const std::size_t here = measurements.size();
    std::vector<Measurement> wanted;
    for (const Timing timing : timings()) wanted.emplace_back(spec, timing);
    const auto ways = options_.other_ways(spec, in_.ranks);
    if (reason.empty()) {
      for (const Way& way : ways) wanted.emplace_back(spec, Timing::isolated, way);
    } else {
      left_out_ += wanted.size() + ways.size();
    }
    for (Measurement& m : wanted) {
      if (!reason.empty()) {
        m.status = ResultRow::Status::skipped;
        m.message = reason;
        measurements.push_back(std::move(m));
        continue;
      }
      progress.update(done_ + left_out_, note_of(m, 0), seconds_left(measurements));
      const auto begun = std::chrono::steady_clock::now();
      const Measurement* first = nullptr;
      for (std::size_t i = here; i < measurements.size() && first == nullptr; ++i) {
        const bool ok = measurements[i].status == ResultRow::Status::ok;
        if (ok && measurements[i].way == m.way) first = &measurements[i];
      }
      m.errors =
          first == nullptr || options_.pipeline_for(spec, m.timing) != options_.pipeline_for(spec, first->timing);
      try {
        if (!m.errors && m.timing == Timing::concurrent && first->result.concurrent) {
          const SpareSample& spare = *first->result.concurrent;
          m.result.samples = {spare.times};
          m.result.seconds = spare.seconds;
          m.result.limit = spare.limit;
          m.result.clock_note = first->result.clock_note;
        } else {
          m.result = replay(cut, m, 0, m.errors && first == nullptr);
        }
        m.clock_note = m.result.clock_note;
        m.seconds = m.result.seconds;
        m.limit = m.result.limit * static_cast<double>(options_.rounds);
        if (!m.errors) {
          std::vector<PhaseTimes> samples = std::move(m.result.samples);
          m.result = first->result;
          m.result.samples = std::move(samples);
          m.quality = first->quality;
        } else if (m.way) {
          m.quality = measurements[here].quality;  // of one rank's codec alone, which takes no way
        } else if (report_.leads && options_.quality && options_.pipeline_for(spec, m.timing) == 1) {
          m.quality = measure_quality(cut.source, cut.units, spec, options_.seed);  // of a codec that gets whole units
        }
        m.rounds.push_back(m.result.samples.size());
      } catch (const Error& error) {
        if (error.fault() == Fault::usage || in_.device.across_processes) throw;
        const bool skipped = error.fault() == Fault::unavailable || interrupted();
        if (is_wanted(spec)) reconstruction_.reset();  // what a second replay would add does not fit a broken step
        m.status = skipped ? ResultRow::Status::skipped : ResultRow::Status::failed;
        m.message = error.what();
        report_.failed = report_.failed || !skipped;
      }
      ++done_;
      first_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
      first_again_ += seconds_again(m);
      measurements.push_back(std::move(m));
    }
  }

  /// The errors of --received, once for both timings.
  void add_received(const BenchCut& cut, std::vector<Measurement>& measurements, Progress& progress) {
    for (std::size_t i = 0; i < options_.received.size(); ++i) {
      Measurement m{received_spec(in_.received[i]->path()), timings().front()};
      progress.update(done_++ + left_out_, note_of(m, 0), seconds_left(measurements));
      m.errors = true;
      try {
        if (interrupted()) throw Error{Fault::check, std::string{kInterruptedMessage}};
        if (cut.units.empty()) throw Error{Fault::unavailable, std::string{kNothingFinite}};
        m.result =
            in_.received[i]->compare(cut, in_.ranks, in_.range_elements, options_.tensor_steps, options_.update_rule);
        m.result.bytes.payload = static_cast<double>(options_.received[i].bytes.value_or(0));
      } catch (const Error& error) {
        const bool skipped = error.fault() == Fault::unavailable || interrupted();
        m.status = skipped ? ResultRow::Status::skipped : ResultRow::Status::failed;
        m.message = error.what();
        report_.failed = report_.failed || !skipped;
      }
      measurements.push_back(std::move(m));
    }
  }

  /// Another round, unless the row's time is over.
  void sample_again(const BenchCut& cut, Measurement& m, std::size_t round) {
    if (m.status != ResultRow::Status::ok || interrupted()) return;
    if (m.seconds >= m.limit) return;  // all processes have the same numbers, so they decide alike
    ReplayResult more;
    try {
      more = replay(cut, m, round, false);
    } catch (const Error& error) {
      if (in_.device.across_processes) throw;
      if (interrupted()) return;  // with what the rounds before came to
      m.status = ResultRow::Status::failed;
      m.message = error.what();
      report_.failed = true;
      return;
    }
    m.seconds += more.seconds;
    m.rounds.push_back(more.samples.size());
    m.result.samples.insert(m.result.samples.end(), more.samples.begin(), more.samples.end());
    for (std::size_t u = 0; u < more.units.size(); ++u) {
      m.result.units[u].encode += more.units[u].encode;
      m.result.units[u].decode += more.units[u].decode;
      m.result.units[u].decode_across += more.units[u].decode_across;
    }
    if (!more.clock_note.empty()) m.clock_note = more.clock_note;
    if (more.packets) m.result.packets = worse_of(*m.result.packets, *more.packets);
  }

  [[nodiscard]] std::string note_of(const Measurement& m, std::size_t round) const {
    return fmt::format("{} {}{}", m.spec.name(), m.timing == Timing::isolated ? "isolated" : "concurrent",
                       round == 0 ? "" : fmt::format(", round {} of {}", round + 1, options_.rounds));
  }

  /// Seconds that the rounds to come take of a measurement if they are like those before.
  [[nodiscard]] double seconds_again(const Measurement& m) const {
    if (m.status != ResultRow::Status::ok || m.rounds.empty()) return 0.0;
    const auto rounds = static_cast<double>(m.rounds.size());
    const double alike = m.seconds / rounds * (static_cast<double>(options_.rounds) - rounds);
    return std::clamp(m.limit - m.seconds, 0.0, alike);
  }
  /// Empty before anything was replayed. Replays to come are taken to be like the mean of those before.
  [[nodiscard]] std::optional<double> seconds_left(const std::vector<Measurement>& measurements) const {
    if (done_ == 0) return std::nullopt;
    double left = (first_seconds_ + first_again_) / static_cast<double>(done_) *
                  static_cast<double>(planned_ - done_ - left_out_);
    for (const Measurement& m : measurements) left += seconds_again(m);
    return left;
  }

  /// Throws Fault::usage where a codec does not go with the collective, the scheme, or what is replayed.
  void expect_carried(const CodecSpec& spec) const {
    static_cast<void>(options_.resolved(spec));
    const bool whole_weights = !in_.sources.empty() && in_.sources.front()->info().quantity == "weight";
    if (options_.op != Collective::all_gather || spec.feedback() == Feedback::off || !whole_weights) return;
    throw Error{Fault::usage, fmt::format("codec {} keeps a residual, which weights would be added to anew in every "
                                          "step; add ef=off to the codec, or replay --values weight-difference",
                                          spec.name())};
  }

  /// Why a codec is not replayed at all; empty when it is.
  [[nodiscard]] std::string reason_to_skip(const BenchCut& cut, const CodecSpec& spec) const {
    if (interrupted()) return std::string{kInterruptedMessage};
    if (options_.deadline && std::chrono::steady_clock::now() >= *options_.deadline) return "no time was left for it";
    if (cut.units.empty()) return std::string{kNothingFinite};
    try {
      expect_carried(spec);
    } catch (const Error& error) {
      return error.what();  // `--codec all` with a scheme that this one cannot ride
    }
    return {};
  }

  /// The threads of each rank: as in a real job, where the ranks on a machine share its cores.
  [[nodiscard]] int threads() const {
    if (options_.threads > 0) return options_.threads;
    const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
    return std::max(1, cores / (in_.device.across_processes ? in_.place.on_machine : in_.ranks));
  }

  /// memcpy with the threads of a rank, or from device to device, and what a thread must have to do to be worth waking.
  void measure_machine() {
#if GT_HAS_CUDA
    if (in_.device.cuda) {
      if (!in_.known.leads) return;
      in_.known.processor = cuda::device_info(in_.device.index).name;
      in_.known.copy_rate = measure_device_copy_rate(in_.device.index, 256U << 20);
      return;
    }
#endif
    in_.known.processor = processor_name();
    TaskPool pool{threads()};
    if (in_.known.leads) in_.known.copy_rate = measure_copy_rate({&pool}, copy_block_bytes());
    if (threads() > 1) in_.known.thread_bytes = measure_thread_bytes(pool);
  }

  /// `write`: also the files that were asked for.
  ReplayResult replay(const BenchCut& cut, const Measurement& m, std::size_t round, bool write) {
    write = write && is_wanted(m.spec);
    const bool writes = write && !(options_.payloads.empty() && options_.reconstruction.empty());
    ReplayPlan plan{
        .options = options_,
        .reader = cut.source,
        .units = cut.units,
        .codec = m.spec,
        .way = m.way,
        .ranks = in_.ranks,
        .threads = threads(),
        .thread_bytes = report_.thread_bytes,
        // Files are written step by step, which only one range is.
        .range_elements = writes ? 0 : in_.range_elements,
        .timing = m.timing,
        .stop = (m.way ? other_ways_stop_ : stop_).share(round, options_.rounds),
        .errors = m.errors && round == 0,
        .also_concurrent = options_.concurrent && !m.way && options_.pipeline_for(m.spec, Timing::concurrent) == 1,
        .write_payloads = write && !options_.payloads.empty()};
    if (write && reconstruction_) {
      plan.on_result = [this](std::size_t step, const Unit& unit, std::span<const float> result) {
        reconstruction_->put(step, unit, result);
      };
    }
    ReplayResult result = run_replay(in_.device, plan);
    if (plan.write_payloads) report_.written.push_back(options_.payloads);
    return result;
  }

  /// --reconstruction is for the one codec that was asked for, not for the baselines beside it.
  [[nodiscard]] bool is_wanted(const CodecSpec& spec) const {
    return spec.name() == options_.codecs.front().name() && spec.params_text() == options_.codecs.front().params_text();
  }

  void model_networks() {
    const std::vector<int> machines = options_.nodes.empty() ? std::vector<int>{in_.ranks} : options_.nodes;
    std::vector<double> tensor_bytes;
    if (options_.sizes.empty()) {
      const BenchCut& cut = in_.cuts.front();
      for (const std::size_t tensor : cut.selection.tensors) {
        const TensorInfo& info = cut.source.tensors()[tensor];
        tensor_bytes.push_back(static_cast<double>(size_of(in_.reduced_in.value_or(info.dtype)) * info.elements));
      }
    }
    const std::vector<Network> networks = carried_networks();
    const ModelSetting setting{
        .networks = networks,
        .machines = machines,
        .tensor_bytes = tensor_bytes,
        .compute = in_.compute,
        .overlap = options_.overlap.value_or(Overlap::bucket),
        .backward = in_.backward ? BackwardPass{.share = in_.backward->share, .captured = true} : BackwardPass{}};
    if (!options_.codec_speed) return add_modelled(report_.rows, setting);
    std::vector<ResultRow> rows = with_codec_speed(report_.rows, *options_.codec_speed, report_.without_speed);
    const auto sources = static_cast<std::ptrdiff_t>(rows.size());
    add_modelled(rows, setting);
    report_.rows.insert(report_.rows.end(), std::make_move_iterator(rows.begin() + sources),
                        std::make_move_iterator(rows.end()));
  }

  /// The networks with the library that carries the job's collectives.
  [[nodiscard]] std::vector<Network> carried_networks() const {
    const std::string& used = in_.sources.front()->info().library;
    const auto captured = named<Library>(used).value_or(Library::best);
    std::vector<Network> networks = options_.networks;
    for (Network& network : networks) {
      network.library = options_.library.value_or(captured);
      const bool on_nccl = used.empty() ? in_.device.cuda : captured == Library::nccl;
      network.under_hook = on_nccl ? Library::nccl : Library::gloo;
    }
    return networks;
  }

  [[nodiscard]] bool sums() const {
    return sums_gradients(options_);
  }

  const BenchOptions& options_;
  BenchInputs in_;
  StopRule stop_ = options_.stop;     ///< of a row, over all its rounds
  StopRule other_ways_stop_ = stop_;  ///< the same of a row that models another way
  BenchReport report_;                ///< of this run
  std::string run_id_;
  /// For the progress: first rounds of all cuts, those that are done, and those of codecs that are not replayed; the
  /// seconds of what is done, and those that its later rounds were to take.
  std::uint64_t planned_ = 0, done_ = 0, left_out_ = 0;
  double first_seconds_ = 0.0, first_again_ = 0.0;
  std::unique_ptr<Reconstruction> reconstruction_;
};

}  // namespace

void expect_times_of_none(const BenchOptions& options, const BenchReport& report) {
  if (std::find(report.without_speed.begin(), report.without_speed.end(), "none") == report.without_speed.end()) return;
  throw Error{Fault::data, fmt::format("--codec-speed {} has no times of none, with which codecs are compared",
                                       options.codec_speed->text())};
}

struct BenchSession::Impl : Bench {
  using Bench::Bench;
};

BenchSession::BenchSession(const BenchOptions& options) {
  check_options(options);
  return_freed_memory();
  impl_ = std::make_unique<Impl>(options);
  impl_->look_round();
}
BenchSession::~BenchSession() = default;
std::vector<StepWindow> BenchSession::windows() const {
  return impl_->windows();
}
int BenchSession::ranks() const {
  return impl_->ranks();
}
BenchReport BenchSession::run(const KeepRows& keep, const std::string& label) {
  return impl_->run(keep, label);
}

BenchReport run_bench(const BenchOptions& options, const KeepRows& keep) {
  BenchOptions one = options;
  BenchSession session{one};
  BenchReport all = session.run(keep);
  one.received.clear();  // which draw nothing here
  for (const std::uint64_t seed : options.more_seeds) {
    if (all.interrupted) break;
    one.seed = seed;
    const auto keep_all = [&](std::span<const ResultRow> rows) {
      std::vector<ResultRow> so_far = all.rows;
      so_far.insert(so_far.end(), rows.begin(), rows.end());
      keep(so_far);
    };
    BenchReport more = session.run(keep ? KeepRows{keep_all} : KeepRows{}, fmt::format("bench of seed {}", seed));
    all.rows.insert(all.rows.end(), std::make_move_iterator(more.rows.begin()),
                    std::make_move_iterator(more.rows.end()));
    all.failed = all.failed || more.failed;
    all.interrupted = all.interrupted || more.interrupted;
  }
  return all;
}

}  // namespace gradtool
