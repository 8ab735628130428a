#include "lib/io/merge_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "lib/core/error.hpp"
#include "lib/core/text.hpp"

namespace gradtool {
namespace {

namespace fs = std::filesystem;

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

/// Puts the files in the order of their ranks, where all say which one they are.
void sort_by_rank(std::vector<MergePart>& parts, std::vector<std::string>& notes) {
  const auto says = [](const MergePart& part) { return part.info().rank.has_value(); };
  const auto count = static_cast<std::size_t>(std::count_if(parts.begin(), parts.end(), says));
  if (count < parts.size()) {
    if (parts.size() > 1) {
      notes.push_back(fmt::format("{} of {} files do not say of which rank they are; workers are in the order given",
                                  parts.size() - count, parts.size()));
    }
    return;
  }
  std::stable_sort(parts.begin(), parts.end(),
                   [](const MergePart& a, const MergePart& b) { return *a.info().rank < *b.info().rank; });
  for (std::size_t i = 1; i < parts.size(); ++i) {
    if (*parts[i].info().rank == *parts[i - 1].info().rank) {
      parts[i].refuse(fmt::format("is of rank {}, as {} is; give the file of each rank once", *parts[i].info().rank,
                                  parts[i - 1].path()));
    }
  }
}

std::string tensor_text(const TensorInfo& tensor) {
  return fmt::format("'{}' of shape [{}], {}{}", tensor.name, joined(tensor.shape, ", "), name_of(tensor.dtype),
                     tensor.has_second_moment ? ", with second moments" : "");
}

void expect_same_tensors(const MergePart& first, const MergePart& other) {
  const auto &a = first.reader->tensors(), &b = other.reader->tensors();
  if (a.size() != b.size()) {
    other.refuse(fmt::format("has {} tensors, but {} has {}; ranks of one job have the same tensors", b.size(),
                             first.path(), a.size()));
  }
  for (std::size_t t = 0; t < a.size(); ++t) {
    if (tensor_text(a[t]) == tensor_text(b[t])) continue;
    other.refuse(fmt::format("tensor {} is {}, but in {} it is {}; ranks of one job have the same tensors", t,
                             tensor_text(b[t]), first.path(), tensor_text(a[t])));
  }
}

std::map<std::int64_t, std::size_t> positions_of(const MergePart& part) {
  std::map<std::int64_t, std::size_t> positions;
  const auto& steps = part.reader->steps();
  for (std::size_t s = 0; s < steps.size(); ++s) {
    if (!positions.emplace(steps[s].iteration, s).second) {
      part.refuse(fmt::format("/steps/iteration: has the iteration {} twice, so that steps cannot be matched by it",
                              steps[s].iteration));
    }
  }
  return positions;
}

/// Matches the steps by iteration, in the order of the first file.
void match_steps(std::vector<MergePart>& parts, std::vector<std::string>& notes) {
  std::vector<std::map<std::int64_t, std::size_t>> positions;
  positions.reserve(parts.size());
  for (const MergePart& part : parts) positions.push_back(positions_of(part));
  std::map<std::int64_t, std::size_t> lacking;  // the iterations that some file lacks, and the first that does
  for (const auto& own : positions) {
    for (const auto& [iteration, unused] : own) {
      for (std::size_t i = 0; i < parts.size(); ++i) {
        if (!positions[i].contains(iteration)) {
          lacking.emplace(iteration, i);
          break;
        }
      }
    }
  }
  for (const StepInfo& step : parts.front().reader->steps()) {
    if (lacking.contains(step.iteration)) continue;
    for (std::size_t i = 0; i < parts.size(); ++i) parts[i].steps.push_back(positions[i].at(step.iteration));
  }
  if (parts.front().steps.empty()) {
    const auto& [iteration, i] = *lacking.begin();
    parts[i].refuse(
        fmt::format("lacks the iteration {}, and no other one is in all files either; the files of one "
                    "job have iterations in common",
                    iteration));
  }
  if (lacking.empty()) return;
  const auto& [iteration, i] = *lacking.begin();
  notes.push_back(fmt::format("{} left out because not all files have {}: the first is iteration {}, which {} lacks",
                              lacking.size() == 1 ? "1 step is" : fmt::format("{} steps are", lacking.size()),
                              lacking.size() == 1 ? "it" : "them", iteration, parts[i].path()));
}

/// The attributes of all files in one. Those that say what the values are must agree. Of those that only describe the
/// run, what differs is left out, because it is not true of all workers.
FileInfo merged_info(const std::vector<MergePart>& parts, const std::string& command, std::vector<std::string>& notes) {
  const auto must_agree = [&](const char* name, auto member) {
    for (const MergePart& part : parts) {
      if (part.info().*member != parts.front().info().*member) {
        part.refuse(
            fmt::format("has another '{}' than {}; the files of one job have the same", name, parts.front().path()));
      }
    }
  };
  must_agree("model", &FileInfo::model);
  must_agree("quantity", &FileInfo::quantity);
  must_agree("inner_steps", &FileInfo::inner_steps);
  must_agree("averaged", &FileInfo::averaged);
  must_agree("micro_batches", &FileInfo::micro_batches);
  must_agree("ranks", &FileInfo::ranks);
  FileInfo info = parts.front().info();
  std::vector<std::string> dropped;
  const auto keep_if_same = [&](const char* name, auto member) {
    const auto differs = [&](const MergePart& part) { return part.info().*member != info.*member; };
    if (std::none_of(parts.begin(), parts.end(), differs)) return;
    info.*member = {};
    dropped.emplace_back(name);
  };
  keep_if_same("dataset", &FileInfo::dataset);
  keep_if_same("optimizer", &FileInfo::optimizer);
  keep_if_same("library", &FileInfo::library);
  keep_if_same("reduce_dtype", &FileInfo::reduce_dtype);
  keep_if_same("seed", &FileInfo::seed);
  keep_if_same("batch_size", &FileInfo::batch_size);
  if (!dropped.empty()) {
    notes.push_back(fmt::format("{} {} left out because the files differ in {}", joined(dropped, ", "),
                                dropped.size() == 1 ? "is" : "are", dropped.size() == 1 ? "it" : "them"));
  }
  info.producer.clear(), info.created.clear(), info.rank.reset();
  // The ranks' own commands mostly differ in the rank's number, so the command is that of the merge.
  info.command = command;
  info.workers = 0;
  for (const MergePart& part : parts) info.workers += part.info().workers;
  const auto whole = [](const MergePart& part) { return part.info().complete; };
  const auto in_order = [](const MergePart& part) { return part.info().complete || part.info().interrupted; };
  info.complete = std::all_of(parts.begin(), parts.end(), whole);
  info.interrupted = !info.complete && std::all_of(parts.begin(), parts.end(), in_order);
  if (info.ranks && info.workers != *info.ranks) {
    notes.push_back(fmt::format("the job had {} ranks, the files have {}", *info.ranks, info.workers));
  }
  return info;
}

void plan_steps(MergePlan& plan, std::vector<std::string>& notes) {
  WriterOptions& layout = plan.layout;
  const auto any = [&](auto has) {
    return std::any_of(plan.parts.begin(), plan.parts.end(),
                       [&](const MergePart& part) { return has(part.reader->steps().front()); });
  };
  const auto has_overflow = [](const StepInfo& step) { return !step.overflow.empty(); };
  const auto& first = plan.parts.front();
  layout.with_epoch = first.reader->steps().front().epoch.has_value();
  layout.with_learning_rate = first.reader->steps().front().learning_rate.has_value();
  layout.with_loss = any([](const StepInfo& step) { return !step.loss.empty(); });
  layout.with_compute_seconds = any([](const StepInfo& step) { return !step.compute_seconds.empty(); });
  layout.with_overflow = !any([&](const StepInfo& step) { return !has_overflow(step); });
  // A mark has no value for "not known".
  if (!layout.with_overflow && any(has_overflow))
    notes.emplace_back("overflow is left out because not all files have it");
  // A worker counts for something beside others only where all say for what.
  std::size_t weighted = 0;
  std::size_t rows = 0;
  for (const MergePart& part : plan.parts) {
    rows += part.steps.size();
    weighted += static_cast<std::size_t>(std::count_if(part.steps.begin(), part.steps.end(), [&](std::size_t s) {
      return !part.reader->steps()[s].batch_weight.empty();
    }));
  }
  layout.with_batch_weight = weighted == rows;
  if (weighted > 0 && weighted < rows)
    notes.emplace_back("batch_weight is left out because not all files have it for all steps");
  for (std::size_t s = 0; s < first.steps.size(); ++s) {
    StepInfo step = first.reader->steps()[first.steps[s]];
    step.loss.clear(), step.compute_seconds.clear(), step.overflow.clear(), step.batch_weight.clear();
    for (const MergePart& part : plan.parts) {
      const StepInfo& own = part.reader->steps()[part.steps[s]];
      const auto append = [&](bool wanted, auto& to, const auto& from, auto unknown) {
        if (!wanted) return;
        if (from.empty()) to.insert(to.end(), part.reader->workers(), unknown);
        to.insert(to.end(), from.begin(), from.end());
      };
      append(layout.with_loss, step.loss, own.loss, std::numeric_limits<float>::quiet_NaN());
      append(layout.with_compute_seconds, step.compute_seconds, own.compute_seconds, kUnknown);
      append(layout.with_overflow, step.overflow, own.overflow, std::uint8_t{0});
      append(layout.with_batch_weight, step.batch_weight, own.batch_weight, kUnknown);
    }
    plan.steps.push_back(std::move(step));
  }
}

/// The workers of all files, where one of them has it. The tensors are the same in all.
std::optional<Readiness> merged_readiness(const std::vector<MergePart>& parts) {
  const auto has = [](const MergePart& part) { return part.reader->readiness().has_value(); };
  if (std::none_of(parts.begin(), parts.end(), has)) return std::nullopt;
  Readiness merged;
  for (const MergePart& part : parts) {
    const std::size_t workers = part.reader->workers();
    const Readiness unknown{.ready = std::vector<double>(workers * part.reader->tensors().size(), kUnknown),
                            .backward_share = std::vector<double>(workers, kUnknown)};
    const Readiness& own = has(part) ? *part.reader->readiness() : unknown;
    merged.ready.insert(merged.ready.end(), own.ready.begin(), own.ready.end());
    merged.backward_share.insert(merged.backward_share.end(), own.backward_share.begin(), own.backward_share.end());
  }
  return merged;
}

}  // namespace

std::vector<MergeRun> MergePart::runs() const {
  std::vector<MergeRun> runs;
  for (std::size_t s = 0; s < steps.size(); ++s) {
    if (!runs.empty() && steps[s] == runs.back().source_step + runs.back().count) {
      ++runs.back().count;
    } else {
      runs.push_back({s, steps[s], 1});
    }
  }
  return runs;
}

void MergePart::refuse(const std::string& problem) const {
  throw Error{Fault::data, path() + ": " + problem};
}

MergePlan plan_merge(const MergeOptions& options, std::vector<std::string>& notes) {
  MergePlan plan;
  std::set<fs::path> seen;
  for (const std::string& file : options.files) {
    MergePart part;
    part.reader = std::make_unique<GradientReader>(file);
    if (!seen.insert(fs::canonical(file)).second) throw Error{Fault::usage, file + ": is given twice"};
    plan.parts.push_back(std::move(part));
  }
  sort_by_rank(plan.parts, notes);
  for (const MergePart& part : plan.parts) expect_same_tensors(plan.parts.front(), part);
  plan.layout.info = merged_info(plan.parts, options.command, notes);
  match_steps(plan.parts, notes);
  std::size_t worker = 0;
  for (MergePart& part : plan.parts) part.first_worker = worker, worker += part.reader->workers();
  plan_steps(plan, notes);
  plan.readiness = merged_readiness(plan.parts);
  plan.layout.tensors = plan.tensors();
  plan.layout.with_readiness = plan.readiness.has_value();
  plan.layout.one_step = plan.steps.size() == 1;
  return plan;
}

}  // namespace gradtool
