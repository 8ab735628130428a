#include "lib/io/merge.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <optional>
#include <utility>

#include "lib/core/files.hpp"
#include "lib/core/interrupt.hpp"
#include "lib/core/throw_error.hpp"
#include "lib/io/attributes.hpp"
#include "lib/io/layout.hpp"
#include "lib/io/mapping.hpp"
#include "lib/io/merge_plan.hpp"
#include "lib/io/open_file.hpp"
#include "lib/io/readiness.hpp"
#include "lib/io/superblock.hpp"

namespace gradtool {
namespace {

namespace fs = std::filesystem;

/// Copies a step; false where the user stopped it before it was whole.
bool copy_step(const MergePlan& plan, std::size_t s, GradientWriter& writer,
               const std::function<void(std::size_t)>& copied) {
  std::vector<float> values;
  writer.begin_step(plan.steps[s]);
  for (std::size_t t = 0; t < plan.tensors().size(); ++t) {
    const TensorInfo& tensor = plan.tensors()[t];
    values.resize(tensor.elements);
    for (const MergePart& part : plan.parts) {
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
void write_copy(const MergePlan& plan, const std::string& out, bool replaces, const ReadProgress& progress,
                MergeReport& report) {
  WriterOptions layout = plan.layout;
  layout.all_or_nothing = replaces;
  GradientWriter writer{out, layout};
  if (plan.readiness) writer.put_readiness(*plan.readiness);
  const std::uint64_t step_elements =
      plan.parts.front().reader->elements() * static_cast<std::uint64_t>(plan.info().workers);
  std::uint64_t done = 0;
  const auto copied = [&](std::size_t t) {
    done += plan.tensors()[t].elements * static_cast<std::uint64_t>(plan.info().workers);
    if (progress) progress(done, step_elements * plan.steps.size());
  };
  for (std::size_t s = 0; s < plan.steps.size() && copy_step(plan, s, writer, copied); ++s) continue;
  report.steps = writer.steps();
  report.interrupted = report.steps < plan.steps.size();
  if (report.interrupted || plan.info().interrupted) {
    writer.close_early();
  } else if (plan.info().complete) {
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

void write_steps(hid_t file, const MergePlan& plan) {
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  const WriterOptions& with = plan.layout;
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
                 {plan.steps.size(), static_cast<hsize_t>(plan.info().workers)}, values);
  };
  column(true, "iteration", H5T_STD_I64LE, H5T_NATIVE_INT64, [](const StepInfo& step) { return step.iteration; });
  column(with.with_epoch, "epoch", H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE,
         [](const StepInfo& step) { return step.epoch.value_or(kUnknown); });
  column(with.with_learning_rate, "learning_rate", H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE,
         [](const StepInfo& step) { return step.learning_rate.value_or(kUnknown); });
  by_worker(with.with_loss, "loss", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, &StepInfo::loss);
  by_worker(with.with_compute_seconds, "compute_seconds", H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE,
            &StepInfo::compute_seconds);
  by_worker(with.with_overflow, "overflow", H5T_STD_U8LE, H5T_NATIVE_UINT8, &StepInfo::overflow);
  by_worker(with.with_batch_weight, "batch_weight", H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, &StepInfo::batch_weight);
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
void write_virtual(hid_t group, const char* name, const MergePlan& plan, std::size_t parts,
                   const std::vector<const SourceSet*>& sources) {
  const std::string doing = std::string{"create the data set '"} + name + "'";
  const SourceSet& first = *sources.front();
  for (std::size_t i = 0; i < parts; ++i) {
    if (sources[i]->dtype == first.dtype) continue;
    plan.parts[i].refuse(fmt::format("{}: is of type {}, but in {} it is {}; the ranks of one job have the same types",
                                     sources[i]->object, name_of(sources[i]->dtype), plan.parts.front().path(),
                                     name_of(first.dtype)));
  }
  const bool has_workers = first.dims.size() == 3;
  std::vector<hsize_t> dims = first.dims;
  dims.front() = plan.steps.size();
  if (has_workers) dims[1] = static_cast<hsize_t>(plan.info().workers);
  const auto type = hdf5::file_type(first.dtype);
  const hdf5::Properties creation{hdf5::checked_id(H5Pcreate(H5P_DATASET_CREATE), doing)};
  constexpr std::uint16_t kHalfNan = 0x7e00, kBrainNan = 0x7fc0;
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const void* const missing = first.dtype == Dtype::f32   ? static_cast<const void*>(&kNan)
                              : first.dtype == Dtype::f16 ? &kHalfNan
                                                          : &kBrainNan;
  hdf5::checked(H5Pset_fill_value(creation.get(), type.get(), missing), doing);
  for (std::size_t i = 0; i < parts; ++i) {
    const MergePart& part = plan.parts[i];
    for (const MergeRun& run : part.runs()) {
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
void expect_viewable(const MergePlan& plan, const std::string& out) {
  std::error_code error;
  const auto folder = fs::weakly_canonical(fs::absolute(follow_links(out)).parent_path(), error);
  for (const MergePart& part : plan.parts) {
    const fs::path path = fs::absolute(part.path());
    if (fs::canonical(path.parent_path()) != folder) {
      throw_error(Fault::usage,
                  "'{}' would refer to {}, which lies in another folder; write it beside its "
                  "files, or make it whole with --copy",
                  out, part.path());
    }
    if (!hdf5::is_plain_name(path.filename().string())) {
      throw_error(Fault::usage, "{}: a view cannot refer to a file of this name; rename it (without %), or use --copy",
                  part.path());
    }
    if (!part.reader->sources().empty()) {
      throw Error{Fault::usage, part.path() + ": is a merged view itself; give the files of its ranks, or use --copy"};
    }
  }
}

void write_view(const MergePlan& plan, const std::string& out) {
  hdf5::be_quiet();
  std::vector<std::vector<SourceTensor>> sources;
  sources.reserve(plan.parts.size());
  for (const MergePart& part : plan.parts) sources.push_back(source_tensors(part.path()));
  const FileInMemory file;
  hdf5::write_root(file.id(), plan.info());
  write_steps(file.id(), plan);
  if (plan.readiness) {
    hdf5::ReadinessSets{file.id(), static_cast<std::uint64_t>(plan.info().workers), plan.tensors().size()}.write(
        *plan.readiness);
  }
  const auto tensors = hdf5::make_group(file.id(), "tensors");
  for (std::size_t t = 0; t < plan.tensors().size(); ++t) {
    const TensorInfo& tensor = plan.tensors()[t];
    const auto group = hdf5::make_tensor(tensors.get(), t, plan.tensors().size(), tensor);
    std::vector<const SourceSet*> gradients, second_moments;
    for (const auto& source : sources) {
      gradients.push_back(&source[t].gradient);
      if (source[t].second_moment) second_moments.push_back(&*source[t].second_moment);
    }
    write_virtual(group.get(), "gradient", plan, sources.size(), gradients);
    if (tensor.has_second_moment) write_virtual(group.get(), "second_moment", plan, sources.size(), second_moments);
    if (tensor.has_weight) write_virtual(group.get(), "weight", plan, 1, {&*sources.front()[t].weight});
  }
  if (plan.info().complete) hdf5::overwrite_integer(file.id(), "complete", 1);
  if (plan.info().interrupted) hdf5::overwrite_integer(file.id(), "interrupted", 1);
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
  const MergePlan plan = plan_merge(options, report.notes);
  if (!options.copy) expect_viewable(plan, options.out);
  for (const MergePart& part : plan.parts) {
    for (const std::string& source : part.reader->sources()) {
      if (fs::equivalent(source, options.out, error))
        throw_error(Fault::usage, "--out {}: {} refers to this file; choose another name", options.out, part.path());
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
  report.workers = static_cast<std::size_t>(plan.info().workers);
  report.tensors = plan.tensors().size();
  const auto bytes = fs::file_size(options.out, error);
  report.bytes = error ? 0 : bytes;
  for (const MergePart& part : plan.parts) report.files.push_back(part.path());
  return report;
}

}  // namespace gradtool
