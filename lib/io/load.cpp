#include "lib/io/load.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>
#include <unordered_set>

#include "lib/core/parse.hpp"
#include "lib/core/text.hpp"
#include "lib/core/utf8.hpp"
#include "lib/io/attributes.hpp"
#include "lib/io/schema.hpp"

namespace gradtool::hdf5 {
namespace {

std::optional<DataSet> optional_column(hid_t group, const Place& place, const char* name, int rank,
                                       void (DataSet::*expect_type)() const = &DataSet::expect_floats) {
  if (!has_child(group, place, name)) return std::nullopt;
  std::optional<DataSet> column{std::in_place, group, place, name, rank};
  ((*column).*expect_type)();
  return column;
}

/// The attribute, of which no value below `least` makes sense.
std::optional<std::int64_t> read_count(hid_t object, const Place& place, const char* name, std::int64_t least) {
  const auto value = read_integer(object, place, name);
  if (value && *value < least) {
    place.fail(fmt::format("the attribute '{}' is {}; must be at least {}", name, *value, least));
  }
  return value;
}

/// The attribute, which is 0 where it is absent.
bool read_flag(hid_t object, const Place& place, const char* name) {
  const std::int64_t value = read_integer(object, place, name).value_or(0);
  if (value != 0 && value != 1) place.fail(fmt::format("the attribute '{}' must be 0 or 1", name));
  return value == 1;
}

/// All data sets of the file that have a step axis, which is their first axis.
std::vector<const DataSet*> data_sets(const StoredSteps& steps, const std::vector<StoredTensor>& tensors) {
  std::vector<const DataSet*> sets{&steps.iteration};
  const auto add = [&](const std::optional<DataSet>& set) {
    if (set) sets.push_back(&*set);
  };
  add(steps.epoch), add(steps.learning_rate), add(steps.loss), add(steps.compute_seconds), add(steps.overflow);
  add(steps.batch_weight);
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
  static_cast<void>(required(read_integer(file, root, "complete"), root, "complete"));
  info.complete = read_flag(file, root, "complete");
  const bool interrupted = read_flag(file, root, "interrupted");
  info.interrupted = !info.complete && interrupted;
  info.workers = required(read_integer(file, root, "workers"), root, "workers");
  if (info.workers < 1 || info.workers > schema::kMaxWorkers) {
    root.fail(fmt::format("the attribute 'workers' is {}; must be 1 to {}", info.workers, schema::kMaxWorkers));
  }
  info.seed = read_integer(file, root, "seed");
  info.batch_size = read_integer(file, root, "batch_size");
  if (info.batch_size && *info.batch_size < 0) root.fail("the attribute 'batch_size' is negative");
  info.micro_batches = read_integer(file, root, "micro_batches").value_or(1);
  if (info.micro_batches < 1) root.fail("the attribute 'micro_batches' must be at least 1");
  for (const auto& [name, member] : {std::pair{"producer", &FileInfo::producer},
                                     {"created", &FileInfo::created},
                                     {"model", &FileInfo::model},
                                     {"dataset", &FileInfo::dataset},
                                     {"optimizer", &FileInfo::optimizer},
                                     {"command", &FileInfo::command},
                                     {"library", &FileInfo::library}}) {
    info.*member = read_text(file, root, name).value_or("");
  }
  if (const auto type = read_text(file, root, "reduce_dtype")) {
    const auto* known = std::find_if(schema::kReduceDtypes.begin(), schema::kReduceDtypes.end(),
                                     [&](const auto& one) { return one.first == *type; });
    if (known == schema::kReduceDtypes.end()) {
      root.fail(
          fmt::format("the attribute 'reduce_dtype' is '{}'; must be float32, float16 or bfloat16", printable(*type)));
    }
    info.reduce_dtype = known->second;
  }
  info.quantity = read_text(file, root, "quantity").value_or(info.quantity);
  if (std::find(schema::kQuantities.begin(), schema::kQuantities.end(), info.quantity) == schema::kQuantities.end()) {
    root.fail(fmt::format("the attribute 'quantity' is '{}'; must be one of {}", printable(info.quantity),
                          joined(schema::kQuantities, ", ")));
  }
  info.inner_steps = read_count(file, root, "inner_steps", 1);
  info.averaged = read_flag(file, root, "averaged");
  info.rank = read_count(file, root, "rank", 0);
  info.ranks = read_count(file, root, "ranks", 1);
  if (info.rank && info.ranks && *info.rank >= *info.ranks) {
    root.fail(
        fmt::format("the attribute 'rank' is {}; must be below the attribute 'ranks', {}", *info.rank, *info.ranks));
  }
  return info;
}

StoredSteps open_steps(hid_t file, const Place& root, std::int64_t workers) {
  const Group group = open_group(file, root, "steps");
  const Place place = root.at("steps");
  StoredSteps steps{DataSet{group.get(), place, "iteration", 1},
                    optional_column(group.get(), place, "epoch", 1),
                    optional_column(group.get(), place, "learning_rate", 1),
                    optional_column(group.get(), place, "loss", 2),
                    optional_column(group.get(), place, "compute_seconds", 2),
                    optional_column(group.get(), place, "overflow", 2, &DataSet::expect_integers),
                    optional_column(group.get(), place, "batch_weight", 2)};
  steps.iteration.expect_integers();
  for (const auto* set : {&steps.loss, &steps.compute_seconds, &steps.overflow, &steps.batch_weight}) {
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

namespace {

/// The weights of one step; none where they are not known.
std::vector<double> load_batch_weight(const DataSet& column, std::size_t step, std::size_t workers) {
  std::vector<double> weights(workers);
  column.read({step, 0}, {1, workers}, H5T_NATIVE_DOUBLE, weights.data());
  if (std::all_of(weights.begin(), weights.end(), [](double weight) { return std::isnan(weight); })) return {};
  for (const double weight : weights) {
    if (std::isfinite(weight) && weight >= 0.0) continue;
    column.place().fail(fmt::format(
        "has the value {} at step {}; must be finite and at least 0, or NaN for all workers of a step", weight, step));
  }
  return weights;
}

}  // namespace

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
  std::vector<std::int64_t> overflow(workers);
  for (std::size_t s = 0; steps.overflow && s < count; ++s) {
    steps.overflow->read({s, 0}, {1, workers}, H5T_NATIVE_INT64, overflow.data());
    for (const std::int64_t value : overflow) {
      if (value != 0 && value != 1) {
        steps.overflow->place().fail(fmt::format("has the value {} at step {}; must be 0 or 1", value, s));
      }
    }
    rows[s].overflow.assign(overflow.begin(), overflow.end());
  }
  for (std::size_t s = 0; steps.batch_weight && s < count; ++s) {
    rows[s].batch_weight = load_batch_weight(*steps.batch_weight, s, workers);
  }
  return rows;
}

namespace {

/// A member of /tensors.
struct Member {
  std::string name;
  std::uint64_t address;  ///< of its object header; 0 where it is not known
};

/// The members of /tensors by their numbers, which decide the order. "0010" and "10" are the same number.
std::map<std::uint64_t, Member> numbered_members(hid_t group, const Place& place) {
  struct Visit {
    std::map<std::uint64_t, Member> members;
    std::string bad, twice;
    bool too_many = false;
  } visit;
  const auto note = [](hid_t, const char* name, const H5L_info_t* info, void* out) -> herr_t {
    auto& seen = *static_cast<Visit*>(out);
    const std::string text{name};
    const auto number = number_of<std::uint64_t>(text);
    if (!number) return seen.bad = text, 1;
    std::uint64_t address = 0;
#if !H5_VERSION_GE(1, 12, 0)  // newer ones have a token in its place
    if (info->type == H5L_TYPE_HARD) address = info->u.address;
#else
    static_cast<void>(info);
#endif
    if (!seen.members.emplace(*number, Member{text, address}).second) return seen.twice = text, 1;
    return (seen.too_many = seen.members.size() > schema::kMaxTensors) ? 1 : 0;
  };
  hsize_t position = 0;
  readable(H5Literate(group, H5_INDEX_NAME, H5_ITER_NATIVE, &position, note, &visit), place,
           "is damaged: its members cannot be listed");
  if (!visit.bad.empty()) place.fail(fmt::format("has a member '{}'; members must be numbers", printable(visit.bad)));
  if (!visit.twice.empty()) place.fail(fmt::format("has two members with the number of '{}'", visit.twice));
  if (visit.too_many) place.fail(fmt::format("has more than {} members", schema::kMaxTensors));
  if (visit.members.empty()) place.fail("has no tensors; must have at least one");
  return std::move(visit.members);
}

/// Checks the attributes of a tensor's group, which `text(name)` and `shape()` read in this order, so that the first
/// one that is wrong is named. `elements` becomes the product of the shape, which must not overflow.
template <class Text, class Shape>
TensorInfo checked_info(const Place& place, Text text, Shape shape) {
  TensorInfo info;
  info.name = required(text("name"), place, "name");
  if (info.name.empty() || info.name.size() > schema::kMaxName || has_control(info.name)) {
    place.fail(fmt::format("the attribute 'name' must be 1 to {} bytes without control characters", schema::kMaxName));
  }
  info.shape = required(shape(), place, "shape");
  info.elements = 1;
  for (const std::int64_t extent : info.shape) {
    if (extent < 1) place.fail(fmt::format("the attribute 'shape' has the extent {}; must be at least 1", extent));
    if (__builtin_mul_overflow(info.elements, static_cast<std::uint64_t>(extent), &info.elements)) {
      place.fail("the attribute 'shape' has a product beyond 2^64");
    }
  }
  info.kind = required(text("kind"), place, "kind");
  if (std::find(schema::kKinds.begin(), schema::kKinds.end(), info.kind) == schema::kKinds.end()) {
    place.fail(fmt::format("the attribute 'kind' is '{}'; must be one of {}", printable(info.kind),
                           joined(schema::kKinds, ", ")));
  }
  info.layout = text("layout").value_or("");
  return info;
}

void expect_extent(const DataSet& set, std::size_t axis, std::uint64_t extent, const char* whose) {
  if (set.dims()[axis] == extent) return;
  set.place().fail(
      fmt::format("has the extent {}, but {} is {} (dimension {})", set.dims_text(), whose, extent, axis + 1));
}

/// A tensor of its data sets, which must have the extents that `workers` and the shape say.
StoredTensor stored_tensor(const std::string& number, TensorInfo info, DataSet gradient,
                           std::optional<DataSet> second_moment, std::optional<DataSet> weight, std::uint64_t workers) {
  info.dtype = gradient.value_dtype();
  info.has_second_moment = second_moment.has_value();
  info.has_weight = weight.has_value();
  StoredTensor tensor{number, std::move(info), std::move(gradient), Dtype::f32, std::nullopt, std::nullopt};
  tensor.gradient_dtype = tensor.info.dtype;
  constexpr const char* kShape = "the product of the attribute 'shape'";
  expect_extent(tensor.gradient, 1, workers, "the file's attribute 'workers'");
  expect_extent(tensor.gradient, 2, tensor.info.elements, kShape);
  if (second_moment) {
    tensor.second_moment_dtype = second_moment->value_dtype();
    expect_extent(*second_moment, 1, workers, "the file's attribute 'workers'");
    expect_extent(*second_moment, 2, tensor.info.elements, kShape);
    tensor.second_moment = std::move(second_moment);
  }
  if (weight) {
    tensor.weight_dtype = weight->value_dtype();
    expect_extent(*weight, 1, tensor.info.elements, kShape);
    tensor.weight = std::move(weight);
  }
  return tensor;
}

StoredTensor open_tensor(hid_t tensors, const Place& place, const std::string& number, std::uint64_t workers) {
  const Group group = open_group(tensors, place, number);
  const Place here = place.at(number);
  TensorInfo info = checked_info(
      here, [&](const char* name) { return read_text(group.get(), here, name); },
      [&] { return read_integers(group.get(), here, "shape", schema::kMaxRank); });
  const auto optional_set = [&](const char* name, int rank) -> std::optional<DataSet> {
    if (!has_child(group.get(), here, name)) return std::nullopt;
    return std::optional<DataSet>{std::in_place, group.get(), here, name, rank, DataSet::Values::here_or_mapped};
  };
  DataSet gradient{group.get(), here, "gradient", 3, DataSet::Values::here_or_mapped};
  return stored_tensor(number, std::move(info), std::move(gradient), optional_set("second_moment", 3),
                       optional_set("weight", 2), workers);
}

/// Does what open_tensor() does, for a tensor that was read without HDF5.
StoredTensor plain_tensor(PlainTensor plain, const Place& here, const std::string& number, std::uint64_t workers,
                          RawFile& file) {
  TensorInfo info = checked_info(
      here,
      [&](const std::string& name) {
        return name == "name" ? std::optional{plain.name} : name == "kind" ? std::optional{plain.kind} : plain.layout;
      },
      [&] { return std::optional{plain.shape}; });
  const auto optional_set = [&](std::optional<PlainSet>& set, const char* name) -> std::optional<DataSet> {
    if (!set) return std::nullopt;
    return DataSet{*std::move(set), here.at(name), file};
  };
  return stored_tensor(number, std::move(info), DataSet{std::move(plain.gradient), here.at("gradient"), file},
                       optional_set(plain.second_moment, "second_moment"), optional_set(plain.weight, "weight"),
                       workers);
}

}  // namespace

std::vector<StoredTensor> open_tensors(hid_t file, const Place& root, std::int64_t workers, RawFile& raw) {
  const Group group = open_group(file, root, "tensors");
  const Place place = root.at("tensors");
  RawFile texts{file};
  std::vector<StoredTensor> tensors;
  std::unordered_set<std::string_view> names;
  std::uint64_t total = 0;
  const auto members = numbered_members(group.get(), place);
  tensors.reserve(members.size());  // so that the names stay where they are
  for (const auto& [number, member] : members) {
    auto plain = member.address != 0 ? read_plain_tensor(raw, texts, member.address) : std::nullopt;
    tensors.push_back(plain ? plain_tensor(*std::move(plain), place.at(member.name), member.name,
                                           static_cast<std::uint64_t>(workers), raw)
                            : open_tensor(group.get(), place, member.name, static_cast<std::uint64_t>(workers)));
    const TensorInfo& info = tensors.back().info;
    if (!names.insert(info.name).second)
      place.at(member.name).fail("has the name '" + info.name + "', which another tensor has");
    if (__builtin_add_overflow(total, info.elements, &total)) place.fail("has more than 2^64 elements in all");
  }
  return tensors;
}

}  // namespace gradtool::hdf5
