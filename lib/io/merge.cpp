#include "lib/io/merge.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "lib/core/files.hpp"
#include "lib/core/interrupt.hpp"
#include "lib/core/text.hpp"
#include "lib/io/attributes.hpp"
#include "lib/io/layout.hpp"
#include "lib/io/mapping.hpp"
#include "lib/io/open_file.hpp"
#include "lib/io/readiness.hpp"
#include "lib/io/superblock.hpp"

namespace gradtool {
namespace {

namespace fs = std::filesystem;

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

/// Consecutive steps of the merged file that are consecutive steps of a source, too.
struct Run {
  std::size_t step, source_step, count;
};

/// One of the files, and where its workers and steps go.
struct Part {
  std::unique_ptr<GradientReader> reader;
  std::size_t first_worker = 0;
  std::vector<std::size_t> steps;  ///< for each step of the merged file, the position in this one

  [[nodiscard]] const std::string& path() const { return reader->path(); }
  [[nodiscard]] const FileInfo& info() const { return reader->info(); }
  [[nodiscard]] std::vector<Run> runs() const {
    std::vector<Run> runs;
    for (std::size_t s = 0; s < steps.size(); ++s) {
      if (!runs.empty() && steps[s] == runs.back().source_step + runs.back().count) {
        ++runs.back().count;
      } else {
        runs.push_back({s, steps[s], 1});
      }
    }
    return runs;
  }
};

/// The planned contents of the merged file.
struct Plan {
  std::vector<Part> parts;
  FileInfo info;
  std::vector<StepInfo> steps;
  bool with_epoch = false, with_learning_rate = false, with_loss = false, with_compute_seconds = false,
       with_overflow = false, with_batch_weight = false;
  std::optional<Readiness> readiness = {};

  [[nodiscard]] const std::vector<TensorInfo>& tensors() const { return parts.front().reader->tensors(); }
};

[[noreturn]] void refuse(const Part& part, const std::string& problem) {
  throw Error{Fault::data, part.path() + ": " + problem};
}

/// Puts the files in the order of their ranks, where all say which one they are.
void sort_by_rank(std::vector<Part>& parts, std::vector<std::string>& notes) {
  const auto says = [](const Part& part) { return part.info().rank.has_value(); };
  const auto count = static_cast<std::size_t>(std::count_if(parts.begin(), parts.end(), says));
  if (count < parts.size()) {
    if (parts.size() > 1) {
      notes.push_back(fmt::format("{} of {} files do not say of which rank they are; workers are in the order given",
                                  parts.size() - count, parts.size()));
    }
    return;
  }
  std::stable_sort(parts.begin(), parts.end(),
                   [](const Part& a, const Part& b) { return *a.info().rank < *b.info().rank; });
  for (std::size_t i = 1; i < parts.size(); ++i) {
    if (*parts[i].info().rank == *parts[i - 1].info().rank) {
      refuse(parts[i], fmt::format("is of rank {}, as {} is; give the file of each rank once", *parts[i].info().rank,
                                   parts[i - 1].path()));
    }
  }
}

std::string tensor_text(const TensorInfo& tensor) {
  return fmt::format("'{}' of shape [{}], {}{}", tensor.name, joined(tensor.shape, ", "), name_of(tensor.dtype),
                     tensor.has_second_moment ? ", with second moments" : "");
}

void expect_same_tensors(const Part& first, const Part& other) {
  const auto &a = first.reader->tensors(), &b = other.reader->tensors();
  if (a.size() != b.size()) {
    refuse(other, fmt::format("has {} tensors, but {} has {}; ranks of one job have the same tensors", b.size(),
                              first.path(), a.size()));
  }
  for (std::size_t t = 0; t < a.size(); ++t) {
    if (tensor_text(a[t]) == tensor_text(b[t])) continue;
    refuse(other, fmt::format("tensor {} is {}, but in {} it is {}; ranks of one job have the same tensors", t,
                              tensor_text(b[t]), first.path(), tensor_text(a[t])));
  }
}

std::map<std::int64_t, std::size_t> positions_of(const Part& part) {
  std::map<std::int64_t, std::size_t> positions;
  const auto& steps = part.reader->steps();
  for (std::size_t s = 0; s < steps.size(); ++s) {
    if (!positions.emplace(steps[s].iteration, s).second) {
      refuse(part, fmt::format("/steps/iteration: has the iteration {} twice, so that steps cannot be matched by it",
                               steps[s].iteration));
    }
  }
  return positions;
}

/// Matches the steps by iteration, in the order of the first file.
void match_steps(std::vector<Part>& parts, std::vector<std::string>& notes) {
  std::vector<std::map<std::int64_t, std::size_t>> positions;
  positions.reserve(parts.size());
  for (const Part& part : parts) positions.push_back(positions_of(part));
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
    refuse(parts[i], fmt::format("lacks the iteration {}, and no other one is in all files either; the files of one "
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
FileInfo merged_info(const std::vector<Part>& parts, const std::string& command, std::vector<std::string>& notes) {
  const auto must_agree = [&](const char* name, auto member) {
    for (const Part& part : parts) {
      if (part.info().*member != parts.front().info().*member) {
        refuse(part,
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
    const auto differs = [&](const Part& part) { return part.info().*member != info.*member; };
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
  for (const Part& part : parts) info.workers += part.info().workers;
  const auto whole = [](const Part& part) { return part.info().complete; };
  const auto in_order = [](const Part& part) { return part.info().complete || part.info().interrupted; };
  info.complete = std::all_of(parts.begin(), parts.end(), whole);
  info.interrupted = !info.complete && std::all_of(parts.begin(), parts.end(), in_order);
  if (info.ranks && info.workers != *info.ranks) {
    notes.push_back(fmt::format("the job had {} ranks, the files have {}", *info.ranks, info.workers));
  }
  return info;
}

void plan_steps(Plan& plan, std::vector<std::string>& notes) {
  const auto any = [&](auto has) {
    return std::any_of(plan.parts.begin(), plan.parts.end(),
                       [&](const Part& part) { return has(part.reader->steps().front()); });
  };
  const auto has_overflow = [](const StepInfo& step) { return !step.overflow.empty(); };
  const auto& first = plan.parts.front();
  plan.with_epoch = first.reader->steps().front().epoch.has_value();
  plan.with_learning_rate = first.reader->steps().front().learning_rate.has_value();
  plan.with_loss = any([](const StepInfo& step) { return !step.loss.empty(); });
  plan.with_compute_seconds = any([](const StepInfo& step) { return !step.compute_seconds.empty(); });
  plan.with_overflow = !any([&](const StepInfo& step) { return !has_overflow(step); });
  // A mark has no value for "not known".
  if (!plan.with_overflow && any(has_overflow))
    notes.emplace_back("overflow is left out because not all files have it");
  // A worker counts for something beside others only where all say for what.
  std::size_t weighted = 0;
  std::size_t rows = 0;
  for (const Part& part : plan.parts) {
    rows += part.steps.size();
    weighted += static_cast<std::size_t>(std::count_if(part.steps.begin(), part.steps.end(), [&](std::size_t s) {
      return !part.reader->steps()[s].batch_weight.empty();
    }));
  }
  plan.with_batch_weight = weighted == rows;
  if (weighted > 0 && weighted < rows)
    notes.emplace_back("batch_weight is left out because not all files have it for all steps");
  for (std::size_t s = 0; s < first.steps.size(); ++s) {
    StepInfo step = first.reader->steps()[first.steps[s]];
    step.loss.clear(), step.compute_seconds.clear(), step.overflow.clear(), step.batch_weight.clear();
    for (const Part& part : plan.parts) {
      const StepInfo& own = part.reader->steps()[part.steps[s]];
      const auto append = [&](bool wanted, auto& to, const auto& from, auto unknown) {
        if (!wanted) return;
        if (from.empty()) to.insert(to.end(), part.reader->workers(), unknown);
        to.insert(to.end(), from.begin(), from.end());
      };
      append(plan.with_loss, step.loss, own.loss, std::numeric_limits<float>::quiet_NaN());
      append(plan.with_compute_seconds, step.compute_seconds, own.compute_seconds, kUnknown);
      append(plan.with_overflow, step.overflow, own.overflow, std::uint8_t{0});
      append(plan.with_batch_weight, step.batch_weight, own.batch_weight, kUnknown);
    }
    plan.steps.push_back(std::move(step));
  }
}

/// The workers of all files, where one of them has it. The tensors are the same in all.
std::optional<Readiness> merged_readiness(const std::vector<Part>& parts) {
  const auto has = [](const Part& part) { return part.reader->readiness().has_value(); };
  if (std::none_of(parts.begin(), parts.end(), has)) return std::nullopt;
  Readiness merged;
  for (const Part& part : parts) {
    const std::size_t workers = part.reader->workers();
    const Readiness unknown{.ready = std::vector<double>(workers * part.reader->tensors().size(), kUnknown),
                            .backward_share = std::vector<double>(workers, kUnknown)};
    const Readiness& own = has(part) ? *part.reader->readiness() : unknown;
    merged.ready.insert(merged.ready.end(), own.ready.begin(), own.ready.end());
    merged.backward_share.insert(merged.backward_share.end(), own.backward_share.begin(), own.backward_share.end());
  }
  return merged;
}

Plan make_plan(const MergeOptions& options, std::vector<std::string>& notes) {
  Plan plan;
  std::set<fs::path> seen;
  for (const std::string& file : options.files) {
    Part part;
    part.reader = std::make_unique<GradientReader>(file);
    if (!seen.insert(fs::canonical(file)).second) throw Error{Fault::usage, file + ": is given twice"};
    plan.parts.push_back(std::move(part));
  }
  sort_by_rank(plan.parts, notes);
  for (const Part& part : plan.parts) expect_same_tensors(plan.parts.front(), part);
  plan.info = merged_info(plan.parts, options.command, notes);
  match_steps(plan.parts, notes);
  std::size_t worker = 0;
  for (Part& part : plan.parts) part.first_worker = worker, worker += part.reader->workers();
  plan_steps(plan, notes);
  plan.readiness = merged_readiness(plan.parts);
  return plan;
}

/// Copies a step; false where the user stopped it before it was whole.
bool copy_step(const Plan& plan, std::size_t s, GradientWriter& writer,
               const std::function<void(std::size_t)>& copied) {
  std::vector<float> values;
  writer.begin_step(plan.steps[s]);
  for (std::size_t t = 0; t < plan.tensors().size(); ++t) {
    const TensorInfo& tensor = plan.tensors()[t];
    values.resize(tensor.elements);
    for (const Part& part : plan.parts) {
      for (std::size_t w = 0; w < part.reader->workers(); ++w) {
        if (interrupted()) return false;
        part.reader->read_gradient(t, part.steps[s], w, values);
        writer.put_gradient(t, part.first_worker + w, values);
        if (!tensor.has_second_moment) continue;
        part.reader->read_second_moment(t, part.steps[s], w, values);
        writer.put_second_moment(t, part.first_worker + w, values);
      }
    }
    if (tensor.has_weight) {
      plan.parts.front().reader->read_weight(t, plan.parts.front().steps[s], values);
      writer.put_weight(t, values);
    }
    copied(t);
  }
  writer.end_step();
  return true;
}

/// Reads every value and writes it.
void write_copy(const Plan& plan, const std::string& out, bool replaces, const ReadProgress& progress,
                MergeReport& report) {
  WriterOptions layout{.info = plan.info,
                       .tensors = plan.tensors(),
                       .with_epoch = plan.with_epoch,
                       .with_learning_rate = plan.with_learning_rate,
                       .with_loss = plan.with_loss,
                       .with_compute_seconds = plan.with_compute_seconds,
                       .with_overflow = plan.with_overflow,
                       .with_batch_weight = plan.with_batch_weight,
                       .with_readiness = plan.readiness.has_value(),
                       .one_step = plan.steps.size() == 1,
                       .all_or_nothing = replaces};
  GradientWriter writer{out, layout};
  if (plan.readiness) writer.put_readiness(*plan.readiness);
  const std::uint64_t step_elements =
      plan.parts.front().reader->elements() * static_cast<std::uint64_t>(plan.info.workers);
  std::uint64_t done = 0;
  const auto copied = [&](std::size_t t) {
    done += plan.tensors()[t].elements * static_cast<std::uint64_t>(plan.info.workers);
    if (progress) progress(done, step_elements * plan.steps.size());
  };
  for (std::size_t s = 0; s < plan.steps.size() && copy_step(plan, s, writer, copied); ++s) continue;
  report.steps = writer.steps();
  report.interrupted = report.steps < plan.steps.size();
  if (report.interrupted || plan.info.interrupted) {
    writer.close_early();
  } else if (plan.info.complete) {
    writer.close();
  }  // else the file stays marked as that of a writer that died, as one of the files is
}

/// An HDF5 file in memory, until it is written to its place in one go: HDF5 ends the process where a disk is full.
class FileInMemory {
 public:
  FileInMemory() {
    const auto creation = hdf5::group_properties(H5P_FILE_CREATE);
    const hdf5::Properties access{hdf5::checked_id(H5Pcreate(H5P_FILE_ACCESS), "prepare HDF5")};
    hdf5::checked(H5Pset_libver_bounds(access.get(), H5F_LIBVER_V110, H5F_LIBVER_V110), "prepare HDF5");
    hdf5::checked(H5Pset_fapl_core(access.get(), std::size_t{1} << 20, false), "prepare HDF5");
    file_ = hdf5::File{hdf5::checked_id(H5Fcreate(random_name().c_str(), H5F_ACC_EXCL, creation.get(), access.get()),
                                        "make a file in memory")};
  }

  [[nodiscard]] hid_t id() const { return file_.get(); }
  void write_to(const std::string& path) const {
    hdf5::checked(H5Fflush(file_.get(), H5F_SCOPE_GLOBAL), "finish a file in memory");
    const ssize_t size = H5Fget_file_image(file_.get(), nullptr, 0);
    std::vector<std::byte> image(static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
    hdf5::Superblock start;
    // HDF5 1.10 clears the mark of a file that is open and leaves the checksum as it was.
    if (size <= 0 || H5Fget_file_image(file_.get(), image.data(), image.size()) != size ||
        !start.assign(std::span{image}.first(hdf5::Superblock::kBytes)))
      throw Error{Fault::backend, "cannot write '" + path + "': HDF5 gives no image of it"};
    start.clear_flags();
    std::copy(start.bytes().begin(), start.bytes().end(), image.begin());
    OutputFile out{path};
    out.write({reinterpret_cast<const char*>(image.data()), image.size()});
    out.commit();
  }

 private:
  hdf5::File file_;
};

template <class Value>
void write_column(hid_t group, const char* name, hid_t file_type, hid_t memory_type, const std::vector<hsize_t>& dims,
                  const std::vector<Value>& values) {
  const std::string doing = std::string{"write the column '"} + name + "'";
  const hdf5::Dataspace space{
      hdf5::checked_id(H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr), doing)};
  const hdf5::Dataset set{
      hdf5::checked_id(H5Dcreate2(group, name, file_type, space.get(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), doing)};
  hdf5::checked(H5Dwrite(set.get(), memory_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), doing);
}

void write_steps(hid_t file, const Plan& plan) {
  const auto group = hdf5::make_group(file, "steps");
  const auto column = [&](bool wanted, const char* name, hid_t file_type, hid_t memory_type, auto value_of) {
    if (!wanted) return;
    std::vector<decltype(value_of(plan.steps.front()))> values;
    values.reserve(plan.steps.size());
    for (const StepInfo& step : plan.steps) values.push_back(value_of(step));
    write_column(group.get(), name, file_type, memory_type, {plan.steps.size()}, values);
  };
  const auto by_worker = [&](bool wanted, const char* name, hid_t file_type, hid_t memory_type, auto member) {
    if (!wanted) return;
    auto values = plan.steps.front().*member;
    for (std::size_t s = 1; s < plan.steps.size(); ++s) {
      const auto& row = plan.steps[s].*member;
      values.insert(values.end(), row.begin(), row.end());
    }
    write_column(group.get(), name, file_type, memory_type,
                 {plan.steps.size(), static_cast<hsize_t>(plan.info.workers)}, values);
  };
  column(true, "iteration", H5T_STD_I64LE, H5T_NATIVE_INT64, [](const StepInfo& step) { return step.iteration; });
  column(plan.with_epoch, "epoch", H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE,
         [](const StepInfo& step) { return step.epoch.value_or(kUnknown); });
  column(plan.with_learning_rate, "learning_rate", H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE,
         [](const StepInfo& step) { return step.learning_rate.value_or(kUnknown); });
  by_worker(plan.with_loss, "loss", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, &StepInfo::loss);
  by_worker(plan.with_compute_seconds, "compute_seconds", H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE,
            &StepInfo::compute_seconds);
  by_worker(plan.with_overflow, "overflow", H5T_STD_U8LE, H5T_NATIVE_UINT8, &StepInfo::overflow);
  by_worker(plan.with_batch_weight, "batch_weight", H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, &StepInfo::batch_weight);
}

/// One data set of a source, to which a virtual one refers.
struct SourceSet {
  std::string file, object;
  std::vector<hsize_t> dims;
  Dtype dtype;
};

/// The data sets of one tensor in one file, as the virtual data sets of the same names need to know them.
struct SourceTensor {
  SourceSet gradient;
  std::optional<SourceSet> second_moment, weight;
};

std::vector<SourceTensor> source_tensors(const std::string& path) {
  const auto opened = hdf5::open_gradient_file(path);
  const std::string file = fs::path{path}.filename().string();
  std::vector<SourceTensor> tensors;
  for (const auto& tensor : opened.tensors) {
    const auto set_of = [&](const char* name, const hdf5::DataSet& set) {
      return SourceSet{file, fmt::format("/tensors/{}/{}", tensor.number, name), set.dims(), set.value_dtype()};
    };
    SourceTensor found{set_of("gradient", tensor.gradient), {}, {}};
    if (tensor.second_moment) found.second_moment = set_of("second_moment", *tensor.second_moment);
    if (tensor.weight) found.weight = set_of("weight", *tensor.weight);
    tensors.push_back(std::move(found));
  }
  return tensors;
}

hdf5::Dataspace selected(const std::vector<hsize_t>& dims, const std::vector<hsize_t>& start,
                         const std::vector<hsize_t>& count) {
  hdf5::Dataspace space{
      hdf5::checked_id(H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr), "make a data space")};
  hdf5::checked(H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr),
                "select a part of a data set");
  return space;
}

/// A virtual data set [S, W, n], or [S, n], of the parts whose source sets are given. Where another program misses a
/// file it reads NaN, because HDF5's own choice, zero, would look like a gradient.
void write_virtual(hid_t group, const char* name, const Plan& plan, std::size_t parts,
                   const std::vector<const SourceSet*>& sources) {
  const std::string doing = std::string{"create the data set '"} + name + "'";
  const SourceSet& first = *sources.front();
  for (std::size_t i = 0; i < parts; ++i) {
    if (sources[i]->dtype == first.dtype) continue;
    refuse(plan.parts[i], fmt::format("{}: is of type {}, but in {} it is {}; the ranks of one job have the same types",
                                      sources[i]->object, name_of(sources[i]->dtype), plan.parts.front().path(),
                                      name_of(first.dtype)));
  }
  const bool has_workers = first.dims.size() == 3;
  std::vector<hsize_t> dims = first.dims;
  dims.front() = plan.steps.size();
  if (has_workers) dims[1] = static_cast<hsize_t>(plan.info.workers);
  const auto type = hdf5::file_type(first.dtype);
  const hdf5::Properties creation{hdf5::checked_id(H5Pcreate(H5P_DATASET_CREATE), doing)};
  constexpr std::uint16_t kHalfNan = 0x7e00, kBrainNan = 0x7fc0;
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const void* const missing = first.dtype == Dtype::f32   ? static_cast<const void*>(&kNan)
                              : first.dtype == Dtype::f16 ? &kHalfNan
                                                          : &kBrainNan;
  hdf5::checked(H5Pset_fill_value(creation.get(), type.get(), missing), doing);
  for (std::size_t i = 0; i < parts; ++i) {
    const Part& part = plan.parts[i];
    for (const Run& run : part.runs()) {
      std::vector<hsize_t> to(dims.size()), from(dims.size()), count = sources[i]->dims;
      to.front() = run.step, from.front() = run.source_step, count.front() = run.count;
      if (has_workers) to[1] = part.first_worker;
      const auto own = selected(dims, to, count), other = selected(sources[i]->dims, from, count);
      hdf5::checked(
          H5Pset_virtual(creation.get(), own.get(), sources[i]->file.c_str(), sources[i]->object.c_str(), other.get()),
          doing);
    }
  }
  const hdf5::Dataspace space{
      hdf5::checked_id(H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr), doing)};
  const hdf5::Dataset set{hdf5::checked_id(
      H5Dcreate2(group, name, type.get(), space.get(), H5P_DEFAULT, creation.get(), H5P_DEFAULT), doing)};
  if (first.dtype == Dtype::bf16) hdf5::write_text(set.get(), "dtype", "bfloat16");
}

/// The files must be beside the view, and be named so that their names can stand in it.
void expect_viewable(const Plan& plan, const std::string& out) {
  std::error_code error;
  const auto folder = fs::weakly_canonical(fs::absolute(follow_links(out)).parent_path(), error);
  for (const Part& part : plan.parts) {
    const fs::path path = fs::absolute(part.path());
    if (fs::canonical(path.parent_path()) != folder) {
      throw Error{Fault::usage, fmt::format("'{}' would refer to {}, which lies in another folder; write it beside its "
                                            "files, or make it whole with --copy",
                                            out, part.path())};
    }
    if (!hdf5::is_plain_name(path.filename().string())) {
      throw Error{Fault::usage,
                  fmt::format("{}: a view cannot refer to a file of this name; rename it (without %), or use --copy",
                              part.path())};
    }
    if (!part.reader->sources().empty()) {
      throw Error{Fault::usage, part.path() + ": is a merged view itself; give the files of its ranks, or use --copy"};
    }
  }
}

void write_view(const Plan& plan, const std::string& out) {
  hdf5::be_quiet();
  std::vector<std::vector<SourceTensor>> sources;
  sources.reserve(plan.parts.size());
  for (const Part& part : plan.parts) sources.push_back(source_tensors(part.path()));
  const FileInMemory file;
  hdf5::write_root(file.id(), plan.info);
  write_steps(file.id(), plan);
  if (plan.readiness) {
    hdf5::ReadinessSets{file.id(), static_cast<std::uint64_t>(plan.info.workers), plan.tensors().size()}.write(
        *plan.readiness);
  }
  const auto tensors = hdf5::make_group(file.id(), "tensors");
  for (std::size_t t = 0; t < plan.tensors().size(); ++t) {
    const TensorInfo& tensor = plan.tensors()[t];
    const auto group = hdf5::make_group(tensors.get(), hdf5::tensor_number(t, plan.tensors().size()));
    hdf5::write_tensor(group.get(), tensor);
    std::vector<const SourceSet*> gradients, second_moments;
    for (const auto& source : sources) {
      gradients.push_back(&source[t].gradient);
      if (source[t].second_moment) second_moments.push_back(&*source[t].second_moment);
    }
    write_virtual(group.get(), "gradient", plan, sources.size(), gradients);
    if (tensor.has_second_moment) write_virtual(group.get(), "second_moment", plan, sources.size(), second_moments);
    if (tensor.has_weight) write_virtual(group.get(), "weight", plan, 1, {&*sources.front()[t].weight});
  }
  if (plan.info.complete) hdf5::overwrite_integer(file.id(), "complete", 1);
  if (plan.info.interrupted) hdf5::overwrite_integer(file.id(), "interrupted", 1);
  file.write_to(out);
}

}  // namespace

MergeReport merge_gradient_files(const MergeOptions& options, const ReadProgress& progress) {
  expect_valid(!options.files.empty(), "there is nothing to merge: give the files of a job's ranks");
  expect_valid(!options.out.empty(), "--out is empty; give the name of the merged file");
  std::error_code error;
  if (fs::exists(fs::symlink_status(options.out, error)) && !options.force) {
    throw Error{Fault::usage, "'" + options.out + "' exists already; remove it, choose another name, or use --force"};
  }
  if (options.force) expect_replaceable(options.out);
  MergeReport report;
  const Plan plan = make_plan(options, report.notes);
  if (!options.copy) expect_viewable(plan, options.out);
  for (const Part& part : plan.parts) {
    for (const std::string& source : part.reader->sources()) {
      if (fs::equivalent(source, options.out, error)) {
        throw Error{Fault::usage,
                    fmt::format("--out {}: {} refers to this file; choose another name", options.out, part.path())};
      }
    }
  }
  ReplacingFile file{options.out, options.force};
  report.steps = plan.steps.size();
  file.write([&](const std::string& path) {
    if (options.copy) {
      write_copy(plan, path, file.replaces(), progress, report);
    } else {
      write_view(plan, path);
    }
  });
  if (report.interrupted && file.replaces()) {
    report.steps = 0;  // the part of a file does not replace a whole one
  } else {
    file.commit();
  }
  report.workers = static_cast<std::size_t>(plan.info.workers);
  report.tensors = plan.tensors().size();
  const auto bytes = fs::file_size(options.out, error);
  report.bytes = error ? 0 : bytes;
  for (const Part& part : plan.parts) report.files.push_back(part.path());
  return report;
}

}  // namespace gradtool
