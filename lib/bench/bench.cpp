#include "lib/bench/bench.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <future>
#include <iterator>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <thread>

#if GT_HAS_CUDA
#include "kernels/cuda/runtime.hpp"
#endif
#include "lib/bench/agreement.hpp"
#include "lib/bench/cached_gradients.hpp"
#include "lib/bench/codec_times.hpp"
#include "lib/bench/copy_rate.hpp"
#include "lib/bench/job_trace.hpp"
#include "lib/bench/memory.hpp"
#include "lib/bench/received.hpp"
#include "lib/bench/replay_files.hpp"
#include "lib/bench/rows.hpp"
#include "lib/bench/synthetic.hpp"
#include "lib/comm/launch.hpp"
#include "lib/core/error.hpp"
#include "lib/core/interrupt.hpp"
#include "lib/core/sha256.hpp"
#include "lib/core/task_pool.hpp"
#include "lib/core/text.hpp"
#include "lib/io/usable_steps.hpp"
#include "lib/io/weighted_gradients.hpp"
#include "lib/report/json.hpp"
#include "lib/report/progress.hpp"

namespace gradtool {
namespace {

/// Those whose name matches `layers`; all when it is empty. Throws Fault::usage when none does.
TensorChoice choose_tensors(const GradientSource& reader, const std::string& layers) {
  TensorChoice selection;
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

/// The worse of both, number by number.
PacketShares worse_of(const PacketShares& a, const PacketShares& b) {
  return {.delivered_least = std::min(a.delivered_least, b.delivered_least),
          .lost_first = std::max(a.lost_first, b.lost_first),
          .repeated = std::max(a.repeated, b.repeated),
          .burst = std::max(a.burst, b.burst)};
}

/// --ranks, or the processes of the job; 0 where neither says. Throws Fault::usage where they contradict each other.
int wanted_ranks(const BenchOptions& options, const ReplayDevice& device, const MpiPlace& place) {
  if (!device.across_processes) return options.ranks;
  if (options.ranks > 0 && options.ranks != place.size) {
    throw Error{Fault::usage,
                fmt::format("--ranks {} but {} processes were started; leave --ranks out", options.ranks, place.size)};
  }
  return place.size;
}

/// What was wanted, else the file's workers.
int choose_ranks(int wanted, const GradientSource& source) {
  const auto workers = static_cast<int>(source.workers());
  if (wanted > workers) {
    throw Error{Fault::usage, fmt::format("{} ranks, but {} has the gradients of {} workers; use at most {}", wanted,
                                          source.path(), workers, workers)};
  }
  return wanted > 0 ? wanted : workers;
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

/// "pseudo-gradients of 30 local steps"
std::string quantity_text(const FileInfo& info) {
  const std::string name = info.quantity == "weight_delta"      ? "differences of weights"
                           : info.quantity == "pseudo_gradient" ? "pseudo-gradients"
                                                                : info.quantity + "s";
  return info.inner_steps
             ? fmt::format("{} of {} local step{}", name, *info.inner_steps, *info.inner_steps == 1 ? "" : "s")
             : name;
}

class Bench {
 public:
  explicit Bench(const BenchOptions& options)
      : options_{options},
        device_{choose_device(options)},
        run_id_{fmt::format("{:%Y%m%dT%H%M%SZ}-{}", fmt::gmtime(std::time(nullptr)), getpid())} {
    if (options.sizes.empty()) {
      auto reader = std::make_unique<GradientReader>(options.file);
      for (const auto& path : reader->sources()) known_.source_sha256.emplace_back(path, "");
      if (reader->readiness()) backward_ = captured_timing(*reader->readiness());
      for (const ReceivedFile& file : options.received)
        received_.push_back(std::make_unique<ReceivedMeans>(file.path, *reader));
      sources_.push_back(std::move(reader));
      if (const auto& range = options.only_iterations) {
        whole_ = std::move(sources_.front());
        sources_.front() = std::make_unique<PartOfSteps>(*whole_, *range);
      }
      look_for_computation(*sources_.front());
    }
    reduced_in_ = options.baseline;
    if (!sources_.empty() && !reduced_in_ && sums()) reduced_in_ = sources_.front()->info().reduce_dtype;
    if (device_.across_processes) join_job();
    if (place_.size > 1 && !received_.empty()) {
      throw Error{Fault::usage,
                  "--received is compared by one process, for which many would wait: leave it out here, and bench it "
                  "without mpirun"};
    }
    if (!sources_.empty()) {
      auto& file = sources_.front();
      auto usable = std::make_unique<UsableSteps>(std::move(file));
      known_.overflowed_steps = usable->left_out();
      file = std::move(usable);
      choose_values(file);
    }
    ranks_ = wanted_ranks(options, device_, place_);
    if (sources_.empty()) {
      if (ranks_ == 0) ranks_ = kSyntheticRanks;
      sizes_ = fitting_sizes();
      sources_ = SyntheticGradients::make(sizes_, ranks_);
    }
    ranks_ = choose_ranks(ranks_, *sources_.front());
    if (ranks_ % options.node != 0 || (options.node > 1 && ranks_ == options.node)) {
      throw Error{Fault::usage,
                  fmt::format("--levels node={} makes no machines of {} ranks: give a number that divides them, "
                              "for two machines at least",
                              options.node, ranks_)};
    }
    if (ranks_ == 1 && !options.networks.empty()) {
      throw Error{Fault::usage,
                  "--network needs a replay of 2 ranks at least: between fewer, no collective can be counted"};
    }
    if (options.sizes.empty()) {
      if (sums() && !weights_ && WeightedGradients::needed(*sources_.front())) {
        auto& file = sources_.front();
        file = std::make_unique<WeightedGradients>(std::move(file), static_cast<std::size_t>(ranks_));
        values_remark_ = joined(values_remark_, "ranks count by their batches (batch_weight)");
      }
      expect_to_fit(*sources_.front());
      const std::uint64_t cache = divide_memory(*sources_.front());
      sources_.front() = std::make_unique<CachedGradients>(std::move(sources_.front()), cache);
      const auto& file = *sources_.front();
      const TensorChoice selection = choose_tensors(file, options.layers);
      for (const auto& granularity : options.granularities) add_cut(file, selection, granularity, granularity.text());
      for (const auto& means : received_) means->expect_all_of(cuts_.front());
    } else {
      const TensorChoice whole{.tensors = {0}, .skipped = {}};  // finite by construction
      for (std::size_t i = 0; i < sources_.size(); ++i)
        add_cut(*sources_[i], whole, Granularity::parse("tensor"), size_name(sizes_[i]));
    }
    known_.leads = place_.rank == 0;
  }

  /// What is the same in every run: of the machine and of the file.
  void look_round() {
    measure_machine();
    if (!known_.leads) return;
    if (options_.sizes.empty()) {
      auto hash = std::async(std::launch::async, [this] {
        for (auto& [path, sha256] : known_.source_sha256) sha256 = sha256_of_file(path);
        for (const auto& file : options_.received) known_.received_sha256.push_back(sha256_of_file(file.path));
        return sha256_of_file(options_.file);
      });
      // Of weights all ranks have the same, and what is not added up may be alike.
      if (sums() && sources_.front()->info().quantity != "weight" && !weights_) {
        known_.stated_averaged = sources_.front()->info().averaged;
        known_.likeness = worker_likeness(*sources_.front(), ranks_);
      }
      known_.file_sha256 = hash.get();
    }
    for (auto& cut : cuts_) {
      if (!values_remark_.empty()) cut.remark = joined(cut.remark, values_remark_);
      if (known_.averaged()) cut.remark = joined(cut.remark, "the workers' gradients are averaged already");
    }
  }

  [[nodiscard]] std::vector<StepWindow> windows() const {
    const auto& steps = sources_.front()->steps();
    return windows_of(steps, steps.size());
  }
  [[nodiscard]] int ranks() const { return ranks_; }

  BenchReport run(const KeepRows& keep, const std::string& label) {
    report_ = known_;
    const auto specs = with_baselines(options_.codecs);
    for (const auto& spec : specs) {
      if (!options_.all_codecs) expect_carried(spec);
    }
    if (!options_.reconstruction.empty()) open_reconstruction();
    done_ = 0;
    stop_ = options_.stop;
    const std::size_t asked_for = specs.size() * timings().size();  // of a cut
    std::size_t replays = asked_for;
    for (const auto& spec : specs) replays += options_.other_ways(spec, ranks_).size();
    stop_.most_seconds =
        std::clamp(kSamplingSeconds / static_cast<double>(replays), stop_.least_seconds, stop_.most_seconds);
    other_ways_stop_ = stop_;
    if (replays > asked_for) {
      const double share = kOtherWays * static_cast<double>(asked_for) / static_cast<double>(replays - asked_for);
      other_ways_stop_.part *= std::min(1.0, share);
    }
    Progress progress{label, cuts_.size() * (replays * options_.rounds + received_.size())};
    const RowMaker maker{options_, {run_id_, ranks_, threads(), known_.processor, known_.copy_rate}};
    for (const BenchCut& whole : cuts_) {
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
        for (auto& measurement : measurements) sample_again(cut, measurement, round, progress);
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

  /// How long an iteration computes beside the gradients that are modelled. Unless it was asked for, the file's time
  /// stays out of it where what is replayed is not what the backward pass of an iteration brings.
  void look_for_computation(const GradientSource& file) {
    const bool whole_gradients = sums() && options_.layers.empty() && file.info().quantity == "gradient";
    const bool by_default = options_.computation == Computation::if_captured && whole_gradients;
    if (options_.computation == Computation::given) compute_ = {.seconds = options_.compute_seconds};
    if (const auto& trace = options_.trace)
      compute_ = {.seconds = trace->compute_seconds, .low = trace->compute_low, .high = trace->compute_high};
    if (options_.computation == Computation::captured || (by_default && !options_.networks.empty()))
      compute_ = captured_compute_time(file.steps()).value_or(ComputeTime{});
    if (compute_.seconds > 0.0) return;
    if (options_.overlap && options_.computation == Computation::if_captured && !whole_gradients)
      throw Error{Fault::usage, "--overlap is about modelled iterations: give --compute-ms"};
    if (options_.computation == Computation::captured || options_.overlap) {
      throw Error{Fault::data, fmt::format("{} does not say how long an iteration computes (/steps/compute_seconds); "
                                           "give the time: --compute-ms 120",
                                           file.path())};
    }
  }

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

  /// Puts the capture's weights, or their differences, in the place of its values where that is asked for.
  void choose_values(std::unique_ptr<GradientSource>& file) {
    ReplayedValues values = options_.values;
    const bool gathers = options_.op == Collective::all_gather && file->info().quantity == "gradient";
    if (values == ReplayedValues::automatic) {
      values = gathers && ReplayedWeights::has_all(*file) ? ReplayedValues::weights : ReplayedValues::own;
      if (gathers && values == ReplayedValues::own)
        values_remark_ = "gradients stand in for the weights, which the file does not have";
    }
    if (values == ReplayedValues::own) {
      if (file->info().quantity != "gradient") values_remark_ = "replayed: " + quantity_text(file->info());
      return;
    }
    file = std::make_unique<ReplayedWeights>(std::move(file), values == ReplayedValues::differences);
    weights_ = true;
    values_remark_ = "replayed: " + quantity_text(file->info());
  }

  void add_cut(const GradientSource& source, const TensorChoice& selection, const Granularity& granularity,
               const std::string& name) {
    BenchCut cut{.source = source, .name = name, .selection = selection, .backward = backward_ ? &*backward_ : nullptr};
    cut.units = make_units(source.tensors(), cut.selection.tensors, granularity, reduced_in_);
    for (const auto& unit : cut.units) cut.elements += unit.elements;
    if (!cut.selection.skipped.empty()) {
      cut.remark = fmt::format("{} of {} tensors left out: not finite", cut.selection.skipped.size(),
                               cut.selection.skipped.size() + cut.selection.tensors.size());
    }
    if (device_.across_processes && ranks_ == 1 && source.workers() > 1)
      cut.remark = joined(cut.remark, fmt::format("one process: mpirun -n {} replays all workers", source.workers()));
    cuts_.push_back(std::move(cut));
  }

  /// Finds this process's place among the ranks. They must agree on everything before their first collective: ranks
  /// that do not match end in wrong results or in waiting for each other.
  void join_job() {
    place_ = processes_world(options_.processes(), options_.comm_timeout);
    if (place_.size == 1) return;
    const auto facts = facts_of(options_, sources_.empty() ? nullptr : sources_.front().get());
    std::optional<Error> different;
    run_processes(
        options_.processes(),
        [&](Communicator<Space::host>& comm) {
          // What all ranks throw alike is said once, behind the job.
          try {
            expect_same_on_all_ranks(facts, comm);
          } catch (const Error& error) {
            if (error.fault() != Fault::usage) throw;
            different = error;
          }
        },
        options_.comm_timeout);
    if (different) throw Error{*different};
  }

  /// Ranks whose gradients are in this machine's memory.
  [[nodiscard]] int ranks_here() const { return device_.across_processes ? place_.on_machine : ranks_; }

  /// Those of --synthetic that fit into memory, the same on all processes. Throws Fault::backend where none does.
  [[nodiscard]] std::vector<std::uint64_t> fitting_sizes() {
    std::vector<double> misfits;
    for (const std::uint64_t size : options_.sizes)
      misfits.push_back(too_large_for(machine_memory(), size / 4, ranks_here()).empty() ? 0.0 : 1.0);
    if (device_.across_processes) {
      run_processes(
          options_.processes(), [&](Communicator<Space::host>& comm) { comm.agree_max(misfits); },
          options_.comm_timeout);
    }
    std::vector<std::uint64_t> sizes;
    for (std::size_t i = 0; i < misfits.size(); ++i) {
      const std::uint64_t size = options_.sizes[i];
      if (misfits[i] == 0.0) {
        sizes.push_back(size);
      } else if (known_.left_out.empty()) {
        const std::string reason = too_large_for(machine_memory(), size / 4, ranks_here());
        known_.left_out = fmt::format("not benched, {} and whatever is as large: {}", size_name(size),
                                      reason.empty() ? "it does not fit into another machine's memory" : reason);
      }
    }
    if (sizes.empty()) throw Error{Fault::backend, known_.left_out};
    return sizes;
  }

  /// Throws Fault::backend where the largest unit of the chosen tensors cannot fit into memory.
  void expect_to_fit(const GradientSource& file) const {
    std::vector<std::size_t> chosen;
    for (std::size_t t = 0; t < file.tensors().size(); ++t) {
      if (options_.layers.empty() || matches(options_.layers, file.tensors()[t].name)) chosen.push_back(t);
    }
    for (const auto& granularity : options_.granularities) {
      std::size_t largest = 0;
      for (const auto& unit : make_units(file.tensors(), chosen, granularity, reduced_in_))
        largest = std::max(largest, unit.elements);
      const std::string reason = too_large_for(machine_memory(), largest, ranks_here());
      if (reason.empty()) continue;
      throw Error{Fault::backend,
                  fmt::format("{}: {}: leave such tensors out (--layers), replay fewer ranks (--ranks) or "
                              "give each a machine (--comm mpi)",
                              options_.file, reason)};
    }
  }

  /// Sets range_elements_, the same on all processes, and returns what this one may keep of the file in memory, in
  /// bytes.
  std::uint64_t divide_memory(const GradientSource& file) {
    const std::uint64_t mine = bench_memory() / static_cast<std::uint64_t>(std::max(1, place_.on_machine));
    std::vector<std::size_t> all(file.tensors().size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    std::uint64_t cache = mine;
    for (const auto& granularity : options_.granularities) {
      const auto units = make_units(file.tensors(), all, granularity, reduced_in_);
      const MemoryPlan plan = plan_memory(mine, units, device_.across_processes ? 1 : ranks_,
                                          options_.update_rule ? options_.update_rule->bytes_per_element() : 0);
      range_elements_ = plan.range_elements;
      cache = std::min(cache, plan.cache_bytes);
    }
    if (device_.across_processes) {
      run_processes(
          options_.processes(),
          [this](Communicator<Space::host>& comm) {
            std::array<double, 1> fewest{-static_cast<double>(range_elements_)};
            comm.agree_max(fewest);
            range_elements_ = static_cast<std::size_t>(-fewest[0]);
          },
          options_.comm_timeout);
    }
    return cache;
  }

  void open_reconstruction() {
    if (cuts_.front().units.empty()) throw Error{Fault::data, fmt::format("{}: {}", options_.file, kNothingFinite)};
    const auto open = [this] {
      reconstruction_ = std::make_unique<Reconstruction>(options_, cuts_.front().source,
                                                         cuts_.front().selection.tensors, options_.codecs.front());
    };
    if (!device_.across_processes) {
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
    if (reason.empty()) {
      for (const Way& way : options_.other_ways(spec, ranks_)) wanted.emplace_back(spec, Timing::isolated, way);
    }
    for (Measurement& m : wanted) {
      if (!reason.empty()) {
        m.status = ResultRow::Status::skipped;
        m.message = reason;
        measurements.push_back(std::move(m));
        continue;
      }
      show(progress, done_++, m);
      const Measurement* first = nullptr;
      for (std::size_t i = here; i < measurements.size() && first == nullptr; ++i) {
        const bool ok = measurements[i].status == ResultRow::Status::ok;
        if (ok && measurements[i].way == m.way) first = &measurements[i];
      }
      m.errors =
          first == nullptr || options_.pipeline_for(spec, m.timing) != options_.pipeline_for(spec, first->timing);
      try {
        m.result = replay(cut, m, 0, m.errors && first == nullptr);
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
        if (error.fault() == Fault::usage || device_.across_processes) throw;
        const bool skipped = error.fault() == Fault::unavailable || interrupted();
        if (is_wanted(spec)) reconstruction_.reset();  // what a second replay would add does not fit a broken step
        m.status = skipped ? ResultRow::Status::skipped : ResultRow::Status::failed;
        m.message = error.what();
        report_.failed = report_.failed || !skipped;
      }
      measurements.push_back(std::move(m));
    }
  }

  /// The errors of --received, once for both timings.
  void add_received(const BenchCut& cut, std::vector<Measurement>& measurements, Progress& progress) {
    for (std::size_t i = 0; i < options_.received.size(); ++i) {
      Measurement m{received_spec(received_[i]->path()), timings().front()};
      show(progress, done_++, m);
      m.errors = true;
      try {
        if (interrupted()) throw Error{Fault::check, std::string{kInterruptedMessage}};
        if (cut.units.empty()) throw Error{Fault::unavailable, std::string{kNothingFinite}};
        m.result = received_[i]->compare(cut, ranks_, range_elements_, options_.tensor_steps, options_.update_rule);
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
  void sample_again(const BenchCut& cut, Measurement& m, std::size_t round, Progress& progress) {
    show(progress, done_++, m);
    if (m.status != ResultRow::Status::ok || interrupted()) return;
    if (m.seconds >= m.limit) return;  // all processes have the same numbers, so they decide alike
    ReplayResult more;
    try {
      more = replay(cut, m, round, false);
    } catch (const Error& error) {
      if (device_.across_processes) throw;
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

  static void show(Progress& progress, std::uint64_t done, const Measurement& m) {
    progress.update(done,
                    fmt::format("{} {}", m.spec.name(), m.timing == Timing::isolated ? "isolated" : "concurrent"));
  }

  /// Throws Fault::usage where a codec does not go with the collective, the scheme, or what is replayed.
  void expect_carried(const CodecSpec& spec) const {
    static_cast<void>(options_.resolved(spec));
    const bool whole_weights = !sources_.empty() && sources_.front()->info().quantity == "weight";
    if (options_.op != Collective::all_gather || spec.feedback() == Feedback::off || !whole_weights) return;
    throw Error{
        Fault::usage,
        fmt::format("codec {} keeps a residual, which weights would be added to anew in every step; add ef=off to "
                    "the codec, or replay --values weight-difference",
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

  /// Of each rank: as in a real job, where the ranks on a machine share its cores.
  [[nodiscard]] int threads() const {
    if (options_.threads > 0) return options_.threads;
    const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
    return std::max(1, cores / (device_.across_processes ? place_.on_machine : ranks_));
  }

  /// memcpy with the threads of a rank, or from device to device, and what a thread must have to do to be worth waking.
  void measure_machine() {
#if GT_HAS_CUDA
    if (device_.cuda) {
      if (!known_.leads) return;
      known_.processor = cuda::device_info(device_.index).name;
      known_.copy_rate = measure_device_copy_rate(device_.index, 256U << 20);
      return;
    }
#endif
    known_.processor = processor_name();
    TaskPool pool{threads()};
    if (known_.leads) known_.copy_rate = measure_copy_rate({&pool}, copy_block_bytes());
    if (threads() > 1) known_.thread_bytes = measure_thread_bytes(pool);
  }

  /// `write`: also the files that were asked for.
  ReplayResult replay(const BenchCut& cut, const Measurement& m, std::size_t round, bool write) {
    write = write && is_wanted(m.spec);
    const bool writes = write && !(options_.payloads.empty() && options_.reconstruction.empty());
    ReplayPlan plan{.options = options_,
                    .reader = cut.source,
                    .units = cut.units,
                    .codec = m.spec,
                    .way = m.way,
                    .ranks = ranks_,
                    .threads = threads(),
                    .thread_bytes = report_.thread_bytes,
                    // Files are written step by step, which only one range is.
                    .range_elements = writes ? 0 : range_elements_,
                    .timing = m.timing,
                    .stop = (m.way ? other_ways_stop_ : stop_).share(round, options_.rounds),
                    .errors = m.errors && round == 0,
                    .write_payloads = write && !options_.payloads.empty()};
    if (write && reconstruction_) {
      plan.on_result = [this](std::size_t step, const Unit& unit, std::span<const float> result) {
        reconstruction_->put(step, unit, result);
      };
    }
    ReplayResult result = run_replay(device_, plan);
    if (plan.write_payloads) report_.written.push_back(options_.payloads);
    return result;
  }

  /// --reconstruction is for the one codec that was asked for, not for the baselines beside it.
  [[nodiscard]] bool is_wanted(const CodecSpec& spec) const {
    return spec.name() == options_.codecs.front().name() && spec.params_text() == options_.codecs.front().params_text();
  }

  void model_networks() {
    const std::vector<int> machines = options_.nodes.empty() ? std::vector<int>{ranks_} : options_.nodes;
    std::vector<double> tensor_bytes;
    if (options_.sizes.empty()) {
      const BenchCut& cut = cuts_.front();
      for (const std::size_t tensor : cut.selection.tensors) {
        const TensorInfo& info = cut.source.tensors()[tensor];
        tensor_bytes.push_back(static_cast<double>(size_of(reduced_in_.value_or(info.dtype)) * info.elements));
      }
    }
    const std::vector<Network> networks = carried_networks();
    const ModelSetting setting{
        .networks = networks,
        .machines = machines,
        .tensor_bytes = tensor_bytes,
        .compute = compute_,
        .overlap = options_.overlap.value_or(Overlap::bucket),
        .backward = backward_ ? BackwardPass{.share = backward_->share, .captured = true} : BackwardPass{}};
    if (!options_.codec_speed) return add_modelled(report_.rows, setting);
    std::vector<ResultRow> rows = with_codec_speed(report_.rows, *options_.codec_speed, report_.without_speed);
    const auto sources = static_cast<std::ptrdiff_t>(rows.size());
    add_modelled(rows, setting);
    report_.rows.insert(report_.rows.end(), std::make_move_iterator(rows.begin() + sources),
                        std::make_move_iterator(rows.end()));
  }

  /// The networks with the library that carries the job's collectives.
  [[nodiscard]] std::vector<Network> carried_networks() const {
    const std::string& used = sources_.front()->info().library;
    const auto captured = library_named(used).value_or(Library::best);
    std::vector<Network> networks = options_.networks;
    for (Network& network : networks) {
      network.library = options_.library.value_or(captured);
      const bool on_nccl = used.empty() ? device_.cuda : captured == Library::nccl;
      network.under_hook = on_nccl ? Library::nccl : Library::gloo;
    }
    return networks;
  }

  /// Gradients are added: what is replayed is a training's backward pass, not its weights or activations.
  [[nodiscard]] bool sums() const {
    return options_.op == Collective::all_reduce || options_.op == Collective::reduce_scatter;
  }

  const BenchOptions& options_;
  std::optional<Dtype> reduced_in_;   ///< the type of all gradients that nothing compresses; empty: as captured
  StopRule stop_ = options_.stop;     ///< of a row, over all its rounds
  StopRule other_ways_stop_ = stop_;  ///< the same of a row that models another way
  ReplayDevice device_;
  MpiPlace place_;
  std::unique_ptr<GradientSource> whole_;                 ///< the file, where some of its steps are replayed
  std::vector<std::unique_ptr<GradientSource>> sources_;  ///< the file, or one for each synthetic size
  std::vector<std::uint64_t> sizes_;                      ///< synthetic ones
  std::vector<BenchCut> cuts_;
  BenchReport known_;   ///< what every report begins with
  BenchReport report_;  ///< of this run
  std::string run_id_;
  bool weights_ = false;       ///< the capture's weights, or their differences, take the place of its values
  std::string values_remark_;  ///< what is replayed, where that is not gradients
  int ranks_ = 1;
  std::size_t range_elements_ = 0;  ///< see ReplayPlan
  std::uint64_t done_ = 0;          ///< of the progress
  ComputeTime compute_;
  std::optional<BackwardTiming> backward_;  ///< when the file's gradients are ready, where it says so
  std::unique_ptr<Reconstruction> reconstruction_;
  std::vector<std::unique_ptr<ReceivedMeans>> received_;  ///< of each file of --received
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
