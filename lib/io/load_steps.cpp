#include <fmt/format.h>

#include <algorithm>

#include "lib/io/attributes.hpp"
#include "lib/io/load.hpp"
#include "lib/io/schema.hpp"
#include "lib/io/utf8.hpp"

namespace gradtool::hdf5 {
namespace {

std::optional<DataSet> optional_column(hid_t group, const Place& place, const char* name, int rank) {
  if (!has_child(group, place, name)) return std::nullopt;
  std::optional<DataSet> column{std::in_place, group, place, name, rank};
  column->expect_floats();
  return column;
}

/// Every data set of the file with the step axis in front.
std::vector<const DataSet*> data_sets(const StoredSteps& steps, const std::vector<StoredTensor>& tensors) {
  std::vector<const DataSet*> sets{&steps.iteration};
  const auto add = [&](const std::optional<DataSet>& set) {
    if (set) sets.push_back(&*set);
  };
  add(steps.epoch), add(steps.learning_rate), add(steps.loss), add(steps.compute_seconds);
  for (const auto& tensor : tensors) {
    sets.push_back(&tensor.gradient);
    add(tensor.second_moment), add(tensor.weight);
  }
  return sets;
}

}  // namespace

FileInfo load_root(hid_t file, const Place& root) {
  const auto format = read_text(file, root, "format");
  if (!format) root.fail("is not a gradient file: lacks the attribute 'format'");
  if (*format != schema::kFormat) {
    root.fail(fmt::format("is not a gradient file: its format is '{}', not '{}'", printable(*format), schema::kFormat));
  }
  const std::int64_t version = required(read_integer(file, root, "schema_version"), root, "schema_version");
  if (version > schema::kVersion) {
    root.fail(fmt::format("has schema_version {}, newer than this gradtool, which reads up to {}", version,
                          schema::kVersion));
  }
  if (version < 1) root.fail(fmt::format("has schema_version {}; must be {}", version, schema::kVersion));

  FileInfo info;
  info.schema_version = static_cast<int>(version);
  const std::int64_t complete = required(read_integer(file, root, "complete"), root, "complete");
  if (complete != 0 && complete != 1) root.fail("the attribute 'complete' must be 0 or 1");
  info.complete = complete == 1;
  info.workers = required(read_integer(file, root, "workers"), root, "workers");
  if (info.workers < 1 || info.workers > schema::kMaxWorkers) {
    root.fail(fmt::format("the attribute 'workers' is {}; must be 1 to {}", info.workers, schema::kMaxWorkers));
  }
  info.seed = read_integer(file, root, "seed").value_or(0);
  info.batch_size = read_integer(file, root, "batch_size").value_or(0);
  if (info.batch_size < 0) root.fail("the attribute 'batch_size' is negative");
  info.micro_batches = read_integer(file, root, "micro_batches").value_or(1);
  if (info.micro_batches < 1) root.fail("the attribute 'micro_batches' must be at least 1");
  for (const auto& [name, member] : {std::pair{"producer", &FileInfo::producer},
                                     {"created", &FileInfo::created},
                                     {"model", &FileInfo::model},
                                     {"dataset", &FileInfo::dataset},
                                     {"optimizer", &FileInfo::optimizer},
                                     {"command", &FileInfo::command}}) {
    info.*member = read_text(file, root, name).value_or("");
  }
  return info;
}

StoredSteps open_steps(hid_t file, const Place& root, std::int64_t workers) {
  const Group group = open_group(file, root, "steps");
  const Place place = root.at("steps");
  StoredSteps steps{DataSet{group.get(), place, "iteration", 1}, optional_column(group.get(), place, "epoch", 1),
                    optional_column(group.get(), place, "learning_rate", 1),
                    optional_column(group.get(), place, "loss", 2),
                    optional_column(group.get(), place, "compute_seconds", 2)};
  steps.iteration.expect_integers();
  for (const auto* set : {&steps.loss, &steps.compute_seconds}) {
    if (!*set || (*set)->dims()[1] == static_cast<std::uint64_t>(workers)) continue;
    (*set)->place().fail(fmt::format("has the extent {}, but the file's attribute 'workers' is {} (dimension 2)",
                                     (*set)->dims_text(), workers));
  }
  return steps;
}

std::size_t settle_steps(const StoredSteps& steps, const std::vector<StoredTensor>& tensors, bool complete) {
  const auto length = [](const DataSet* set) { return set->dims()[0]; };
  std::uint64_t least = length(&steps.iteration);
  std::uint64_t most = least;
  for (const DataSet* set : data_sets(steps, tensors)) {
    least = std::min<std::uint64_t>(least, length(set));
    most = std::max<std::uint64_t>(most, length(set));
    if (most - least <= (complete ? 0U : 1U)) continue;
    set->place().fail(fmt::format("has {} steps, but {} has {}{}", length(set), steps.iteration.place().object,
                                  length(&steps.iteration),
                                  complete ? "" : "; more than the one unfinished step apart"));
  }
  if (least == 0) steps.iteration.place().fail("there is no whole step in this file; must have at least one");
  if (least > static_cast<std::uint64_t>(schema::kMaxSteps)) {
    steps.iteration.place().fail(fmt::format("declares {} steps; at most {} are possible", most, schema::kMaxSteps));
  }
  return static_cast<std::size_t>(least);
}

void expect_stored(const StoredSteps& steps, const std::vector<StoredTensor>& tensors, std::uint64_t file_bytes,
                   bool complete) {
  for (const DataSet* set : data_sets(steps, tensors)) set->expect_stored(file_bytes, complete);
}

std::vector<StepInfo> load_steps(const StoredSteps& steps, std::size_t count, std::size_t workers) {
  std::vector<StepInfo> rows(count);
  std::vector<std::int64_t> iterations(count);
  steps.iteration.read({0}, {count}, H5T_NATIVE_INT64, iterations.data());
  for (std::size_t s = 0; s < count; ++s) rows[s].iteration = iterations[s];
  std::vector<double> column(count);
  for (const auto& [set, member] :
       {std::pair{&steps.epoch, &StepInfo::epoch}, {&steps.learning_rate, &StepInfo::learning_rate}}) {
    if (!*set) continue;
    (*set)->read({0}, {count}, H5T_NATIVE_DOUBLE, column.data());
    for (std::size_t s = 0; s < count; ++s) rows[s].*member = column[s];
  }
  for (std::size_t s = 0; steps.loss && s < count; ++s) {
    rows[s].loss.resize(workers);
    steps.loss->read({s, 0}, {1, workers}, H5T_NATIVE_FLOAT, rows[s].loss.data());
  }
  for (std::size_t s = 0; steps.compute_seconds && s < count; ++s) {
    rows[s].compute_seconds.resize(workers);
    steps.compute_seconds->read({s, 0}, {1, workers}, H5T_NATIVE_DOUBLE, rows[s].compute_seconds.data());
  }
  return rows;
}

}  // namespace gradtool::hdf5
