#include "lib/bench/bench_inputs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <utility>

#include "lib/bench/agreement.hpp"
#include "lib/bench/cached_gradients.hpp"
#include "lib/bench/job_trace.hpp"
#include "lib/bench/memory.hpp"
#include "lib/bench/synthetic.hpp"
#include "lib/core/ended_arenas.hpp"
#include "lib/core/error.hpp"
#include "lib/core/interrupt.hpp"
#include "lib/core/text.hpp"
#include "lib/io/usable_steps.hpp"
#include "lib/io/weighted_gradients.hpp"

namespace gradtool {
namespace {

/// Those whose name matches `layers`; all when it is empty. Throws Fault::usage when none does.
TensorChoice choose_tensors(const GradientSource& reader, const std::string& layers) {
  TensorChoice selection;
  std::vector<NonFinite> bad;
  try {
    bad = find_non_finite(reader);
  } catch (const Interrupted&) {  // no row is measured then, and each says so
  }
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

/// --ranks, or the processes of the job; 0 where neither says. Throws Fault::usage where they contradict each other.
int wanted_ranks(const BenchOptions& options, const ReplayDevice& device, const MpiPlace& place) {
  if (!device.across_processes) return options.ranks;
  if (options.ranks > 0 && options.ranks != place.size) {
    throw Error{Fault::usage,
                fmt::format("--ranks {} but {} process{} started; leave --ranks out{}", options.ranks, place.size,
                            place.size == 1 ? " was" : "es were",
                            place.size == 1 ? fmt::format(", and start {}: mpirun -n {} gradtool bench ...",
                                                          options.ranks, options.ranks)
                                            : "")};
  }
  return place.size;
}

/// The number of ranks that was wanted, else that of the file's workers.
int choose_ranks(int wanted, const GradientSource& source) {
  const auto workers = static_cast<int>(source.workers());
  if (wanted > workers) {
    throw Error{Fault::usage, fmt::format("{} ranks, but {} has the gradients of {} worker{}; use at most {}", wanted,
                                          source.path(), workers, workers == 1 ? "" : "s", workers)};
  }
  return wanted > 0 ? wanted : workers;
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

class Opening {
 public:
  explicit Opening(const BenchOptions& options) : options_{options} { in_.device = choose_device(options); }

  BenchInputs run() && {
    if (options_.sizes.empty()) {
      auto reader = std::make_unique<GradientReader>(options_.file);
      for (const auto& path : reader->sources()) in_.known.source_sha256.emplace_back(path, "");
      if (reader->readiness()) {
        if (const auto timing = captured_timing(*reader->readiness()))
          in_.backward = std::make_unique<BackwardTiming>(*timing);
      }
      for (const ReceivedFile& file : options_.received)
        in_.received.push_back(std::make_unique<ReceivedMeans>(file.path, *reader));
      in_.sources.push_back(std::move(reader));
      if (const auto& range = options_.only_iterations) {
        in_.whole = std::move(in_.sources.front());
        in_.sources.front() = std::make_unique<PartOfSteps>(*in_.whole, *range);
      }
      look_for_computation(*in_.sources.front());
    }
    in_.reduced_in = options_.baseline;
    if (!in_.sources.empty() && !in_.reduced_in && sums()) in_.reduced_in = in_.sources.front()->info().reduce_dtype;
    if (in_.device.across_processes) join_job();
    if (in_.place.size > 1 && !in_.received.empty()) {
      throw Error{Fault::usage,
                  "--received is compared by one process, for which many would wait: leave it out here, and bench it "
                  "without mpirun"};
    }
    if (!in_.sources.empty()) {
      auto& file = in_.sources.front();
      auto usable = std::make_unique<UsableSteps>(std::move(file));
      in_.known.overflowed_steps = usable->left_out();
      file = std::move(usable);
      choose_values(file);
    }
    constexpr std::uint64_t kMostKept = std::uint64_t{5} << 28;  // more is hardly ever in use
    keep_ended_arenas(std::min(kMostKept, memory_here() / 2));
    in_.ranks = wanted_ranks(options_, in_.device, in_.place);
    if (in_.sources.empty()) {
      if (in_.ranks == 0) in_.ranks = kSyntheticRanks;
      in_.sizes = fitting_sizes();
      in_.sources = SyntheticGradients::make(in_.sizes, in_.ranks);
    }
    in_.ranks = choose_ranks(in_.ranks, *in_.sources.front());
    if (in_.ranks % options_.node != 0 || (options_.node > 1 && in_.ranks == options_.node)) {
      throw Error{Fault::usage, fmt::format("--levels node={} makes no machines of {} ranks: give a number that "
                                            "divides them, for two machines at least",
                                            options_.node, in_.ranks)};
    }
    if (in_.ranks == 1 && !options_.networks.empty()) {
      throw Error{
          Fault::usage,
          fmt::format("--network needs a replay of 2 ranks at least: between fewer, no collective can be counted. {}",
                      in_.device.across_processes && in_.sources.front()->workers() > 1
                          ? "Start several processes: mpirun -n 2 gradtool bench ..."
                          : "Capture with --workers 2 or more, or in Python with micro_batches_as_workers=True")};
    }
    if (options_.sizes.empty()) {
      if (sums() && !in_.weights && WeightedGradients::needed(*in_.sources.front())) {
        auto& file = in_.sources.front();
        file = std::make_unique<WeightedGradients>(std::move(file), static_cast<std::size_t>(in_.ranks));
        in_.values_remark = joined(in_.values_remark, "ranks count by their batches (batch_weight)");
      }
      expect_to_fit(*in_.sources.front());
      const std::uint64_t cache = divide_memory(*in_.sources.front());
      auto& source = in_.sources.front();
      const std::uint64_t captured = sizeof(float) * source->elements() * source->workers() * source->steps().size();
      source = std::make_unique<CachedGradients>(std::move(source), cache, captured <= machine_memory() / 2);
      const auto& file = *in_.sources.front();
      const TensorChoice selection = choose_tensors(file, options_.layers);
      for (const auto& granularity : options_.granularities) add_cut(file, selection, granularity, granularity.text());
      for (const auto& means : in_.received) means->expect_all_of(in_.cuts.front());
    } else {
      const TensorChoice whole{.tensors = {0}, .skipped = {}};  // finite by construction
      for (std::size_t i = 0; i < in_.sources.size(); ++i)
        add_cut(*in_.sources[i], whole, Granularity::parse("tensor"), size_name(in_.sizes[i]));
    }
    in_.known.leads = in_.place.rank == 0;
    return std::move(in_);
  }

 private:
  /// How long an iteration computes beside the gradients that are modelled. Unless it was asked for, the file's time
  /// stays out of it where what is replayed is not what the backward pass of an iteration brings.
  void look_for_computation(const GradientSource& file) {
    const bool whole_gradients = sums() && options_.layers.empty() && file.info().quantity == "gradient";
    const bool by_default = options_.computation == Computation::if_captured && whole_gradients;
    if (options_.computation == Computation::given) in_.compute = {.seconds = options_.compute_seconds};
    if (const auto& trace = options_.trace)
      in_.compute = {.seconds = trace->compute_seconds, .low = trace->compute_low, .high = trace->compute_high};
    if (options_.computation == Computation::captured || (by_default && !options_.networks.empty()))
      in_.compute = captured_compute_time(file.steps()).value_or(ComputeTime{});
    if (in_.compute.seconds > 0.0) return;
    if (options_.overlap && options_.computation == Computation::if_captured && !whole_gradients)
      throw Error{Fault::usage, "--overlap is about modelled iterations: give --compute-ms"};
    if (options_.computation == Computation::captured || options_.overlap) {
      throw Error{Fault::data, fmt::format("{} does not say how long an iteration computes (/steps/compute_seconds); "
                                           "give the time: --compute-ms 120",
                                           file.path())};
    }
  }

  /// Puts the capture's weights, or their differences, in the place of its values where that is asked for.
  void choose_values(std::unique_ptr<GradientSource>& file) {
    ReplayedValues values = options_.values;
    const bool gathers = options_.op == Collective::all_gather && file->info().quantity == "gradient";
    if (values == ReplayedValues::automatic) {
      values = gathers && ReplayedWeights::has_all(*file) ? ReplayedValues::weights : ReplayedValues::own;
      if (gathers && values == ReplayedValues::own)
        in_.values_remark = "gradients stand in for the weights, which the file does not have";
    }
    if (values == ReplayedValues::own) {
      if (file->info().quantity != "gradient") in_.values_remark = "replayed: " + quantity_text(file->info());
      return;
    }
    file = std::make_unique<ReplayedWeights>(std::move(file), values == ReplayedValues::differences);
    in_.weights = true;
    in_.values_remark = "replayed: " + quantity_text(file->info());
  }

  void add_cut(const GradientSource& source, const TensorChoice& selection, const Granularity& granularity,
               const std::string& name) {
    BenchCut cut{.source = source, .name = name, .selection = selection, .backward = in_.backward.get()};
    cut.units = make_units(source.tensors(), cut.selection.tensors, granularity, in_.reduced_in);
    for (const auto& unit : cut.units) cut.elements += unit.elements;
    if (!cut.selection.skipped.empty()) {
      std::uint64_t all = cut.elements;
      for (const auto& bad : cut.selection.skipped) all += source.tensors()[bad.tensor].elements;
      cut.remark = fmt::format("{} of {} {} ({:.3g} % of the elements)", cut.selection.skipped.size(),
                               cut.selection.skipped.size() + cut.selection.tensors.size(), kTensorsLeftOut,
                               100.0 * static_cast<double>(all - cut.elements) / static_cast<double>(all));
    }
    if (in_.device.across_processes && in_.ranks == 1 && source.workers() > 1)
      cut.remark = joined(cut.remark, fmt::format("one process: mpirun -n {} replays all workers", source.workers()));
    in_.cuts.push_back(std::move(cut));
  }

  /// Finds this process's place among the ranks. They must agree on everything before their first collective: ranks
  /// that do not match end in wrong results or in waiting for each other.
  void join_job() {
    in_.place = processes_world(options_.processes(), options_.comm_timeout);
    if (in_.place.size == 1) return;
    const auto facts = facts_of(options_, in_.sources.empty() ? nullptr : in_.sources.front().get());
    std::optional<Error> different;
    run_processes(
        options_.processes(),
        [&](Communicator<Space::host>& comm) {
          // An error that all ranks throw alike is reported once, after the job.
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

  /// The bytes that this process of the bench may take.
  [[nodiscard]] std::uint64_t memory_here() const {
    return bench_memory() / static_cast<std::uint64_t>(std::max(1, in_.place.on_machine));
  }
  /// Ranks whose gradients are in this machine's memory.
  [[nodiscard]] int ranks_here() const { return in_.device.across_processes ? in_.place.on_machine : in_.ranks; }

  /// Those of --synthetic that fit into memory, the same on all processes. Throws Fault::backend where none does.
  [[nodiscard]] std::vector<std::uint64_t> fitting_sizes() {
    std::vector<double> misfits;
    for (const std::uint64_t size : options_.sizes)
      misfits.push_back(too_large_for(machine_memory(), size / 4, ranks_here()).empty() ? 0.0 : 1.0);
    if (in_.device.across_processes) {
      run_processes(
          options_.processes(), [&](Communicator<Space::host>& comm) { comm.agree_max(misfits); },
          options_.comm_timeout);
    }
    std::vector<std::uint64_t> sizes;
    for (std::size_t i = 0; i < misfits.size(); ++i) {
      const std::uint64_t size = options_.sizes[i];
      if (misfits[i] == 0.0) {
        sizes.push_back(size);
      } else if (in_.known.left_out.empty()) {
        const std::string reason = too_large_for(machine_memory(), size / 4, ranks_here());
        in_.known.left_out = fmt::format("not benched, {} and whatever is as large: {}", size_name(size),
                                         reason.empty() ? "it does not fit into another machine's memory" : reason);
      }
    }
    if (sizes.empty()) throw Error{Fault::backend, in_.known.left_out};
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
      for (const auto& unit : make_units(file.tensors(), chosen, granularity, in_.reduced_in))
        largest = std::max(largest, unit.elements);
      const std::string reason = too_large_for(machine_memory(), largest, ranks_here());
      if (reason.empty()) continue;
      throw Error{Fault::backend, fmt::format("{}: {}: leave such tensors out (--layers), replay fewer ranks (--ranks) "
                                              "or give each a machine (--comm mpi)",
                                              options_.file, reason)};
    }
  }

  /// Sets in_.range_elements, the same on all processes, and returns what this one may keep of the file in memory, in
  /// bytes.
  std::uint64_t divide_memory(const GradientSource& file) {
    const std::uint64_t mine = memory_here();
    std::vector<std::size_t> all(file.tensors().size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    std::uint64_t cache = mine;
    for (const auto& granularity : options_.granularities) {
      const auto units = make_units(file.tensors(), all, granularity, in_.reduced_in);
      const MemoryPlan plan = plan_memory(mine, units, in_.device.across_processes ? 1 : in_.ranks,
                                          options_.update_rule ? options_.update_rule->bytes_per_element() : 0);
      in_.range_elements = plan.range_elements;
      cache = std::min(cache, plan.cache_bytes);
    }
    if (in_.device.across_processes) {
      run_processes(
          options_.processes(),
          [this](Communicator<Space::host>& comm) {
            std::array<double, 1> fewest{-static_cast<double>(in_.range_elements)};
            comm.agree_max(fewest);
            in_.range_elements = static_cast<std::size_t>(-fewest[0]);
          },
          options_.comm_timeout);
    }
    return cache;
  }

  [[nodiscard]] bool sums() const { return sums_gradients(options_); }

  const BenchOptions& options_;
  BenchInputs in_;
};

}  // namespace

bool sums_gradients(const BenchOptions& options) {
  return options.op == Collective::all_reduce || options.op == Collective::reduce_scatter;
}

BenchInputs open_inputs(const BenchOptions& options) {
  return Opening{options}.run();
}

}  // namespace gradtool
