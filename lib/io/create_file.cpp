#include "lib/io/create_file.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <set>

#include "gradtool_version.hpp"
#include "lib/io/attributes.hpp"
#include "lib/io/chunking.hpp"
#include "lib/io/kill_safe_driver.hpp"
#include "lib/io/schema.hpp"
#include "lib/io/utf8.hpp"

namespace gradtool::hdf5 {
namespace {

std::uint64_t element_count(const std::vector<std::int64_t>& shape) {
  std::uint64_t count = 1;
  for (const std::int64_t extent : shape) {
    expects(extent >= 1 && !__builtin_mul_overflow(count, static_cast<std::uint64_t>(extent), &count),
            "a tensor's shape has an extent below 1, or too many elements");
  }
  return count;
}

void check_tensor(const TensorInfo& tensor, std::set<std::string>& names) {
  expects(!tensor.name.empty() && tensor.name.size() <= schema::kMaxName && is_utf8(tensor.name) &&
              !has_control(tensor.name),
          "a tensor's name must be 1 to 1024 bytes of UTF-8 without control characters");
  expects(names.insert(tensor.name).second, "two tensors of a gradient file have the same name");
  expects(std::find(schema::kKinds.begin(), schema::kKinds.end(), tensor.kind) != schema::kKinds.end(),
          "a tensor's kind must be conv, linear, embedding, recurrent, norm, bias or other");
  expects(tensor.shape.size() <= schema::kMaxRank, "a tensor has more than 32 dimensions");
  static_cast<void>(element_count(tensor.shape));
}

/// Properties of groups with few attributes: kept in the object header, where each is written at once. The default
/// would move more than eight of them to a heap, which HDF5's single-writer mode does not cover.
Properties group_properties(hid_t kind) {
  Properties creation{checked_id(H5Pcreate(kind), "prepare HDF5")};
  checked(H5Pset_attr_phase_change(creation.get(), 64, 0), "prepare HDF5");
  return creation;
}

Group make_group(hid_t parent, const std::string& name) {
  const auto creation = group_properties(H5P_GROUP_CREATE);
  return Group{checked_id(H5Gcreate2(parent, name.c_str(), H5P_DEFAULT, creation.get(), H5P_DEFAULT),
                          "create the group '" + name + "'")};
}

GrowingSet make_column(hid_t group, const char* name, hid_t type) {
  constexpr std::uint64_t kRows = 128;  // 1 KiB of doubles
  return {group, name, type, {}, {kRows}};
}

}  // namespace

void check_options(const WriterOptions& options) {
  expects(options.info.workers >= 1 && options.info.workers <= schema::kMaxWorkers,
          "a gradient file needs 1 to 1048576 workers");
  expects(!options.tensors.empty() && options.tensors.size() <= schema::kMaxTensors,
          "a gradient file needs 1 to 1048576 tensors");
  std::set<std::string> names;
  for (const TensorInfo& tensor : options.tensors) check_tensor(tensor, names);
}

File create_file(const std::string& path, const FileInfo& info, int& error) {
  if (std::error_code status; std::filesystem::exists(path, status)) {
    throw Error{Fault::usage, "'" + path + "' exists already; remove it or choose another name"};
  }
  const auto access = kill_safe_access(error);
  // Whatever HDF5 is linked, the file is one that HDF5 1.10 reads. Its format is also what single-writer mode needs.
  checked(H5Pset_libver_bounds(access.get(), H5F_LIBVER_V110, H5F_LIBVER_V110), "prepare HDF5");
  const auto creation = group_properties(H5P_FILE_CREATE);
  // Space in pages of 4 KiB: a piece of metadata then never crosses a page of the system's cache, between two of which
  // a write can be cut off by a kill.
  checked(H5Pset_file_space_strategy(creation.get(), H5F_FSPACE_STRATEGY_PAGE, false, 1), "prepare HDF5");
  File file{checked_id(H5Fcreate(path.c_str(), H5F_ACC_EXCL, creation.get(), access.get()), "create '" + path + "'")};
  const hid_t root = file.get();
  write_text(root, "format", std::string{schema::kFormat});
  write_integer(root, "schema_version", schema::kVersion);
  write_integer(root, "complete", 0);
  write_text(root, "producer", info.producer.empty() ? "gradtool " GRADTOOL_VERSION : info.producer);
  write_text(
      root, "created",
      info.created.empty() ? fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr))) : info.created);
  write_text(root, "model", info.model);
  write_text(root, "dataset", info.dataset);
  write_text(root, "optimizer", info.optimizer);
  write_integer(root, "seed", info.seed);
  write_integer(root, "workers", info.workers);
  write_integer(root, "batch_size", info.batch_size);
  write_integer(root, "micro_batches", info.micro_batches);
  write_text(root, "command", info.command);
  return file;
}

WritableSteps create_steps(hid_t file, const WriterOptions& options) {
  const auto group = make_group(file, "steps");
  WritableSteps steps{make_column(group.get(), "iteration", H5T_STD_I64LE), {}, {}, {}, {}};
  if (options.with_epoch) steps.epoch = make_column(group.get(), "epoch", H5T_IEEE_F64LE);
  if (options.with_learning_rate) steps.learning_rate = make_column(group.get(), "learning_rate", H5T_IEEE_F64LE);
  const auto make_by_worker = [&](const char* name, hid_t type, std::size_t size) {
    const auto workers = static_cast<std::uint64_t>(options.info.workers);
    const auto chunk = chunk_shape(1, workers, size);
    return GrowingSet{group.get(), name, type, {workers}, {chunk.front(), chunk.back()}};
  };
  if (options.with_loss) steps.loss = make_by_worker("loss", H5T_IEEE_F32LE, sizeof(float));
  if (options.with_compute_seconds)
    steps.compute_seconds = make_by_worker("compute_seconds", H5T_IEEE_F64LE, sizeof(double));
  return steps;
}

std::vector<WritableTensor> create_tensors(hid_t file, const WriterOptions& options) {
  const auto workers = static_cast<std::uint64_t>(options.info.workers);
  std::vector<WritableTensor> tensors;
  const auto parent = make_group(file, "tensors");
  const std::size_t digits = std::max<std::size_t>(4, std::to_string(options.tensors.size() - 1).size());
  for (const TensorInfo& tensor : options.tensors) {
    const auto group = make_group(parent.get(), fmt::format("{:0{}}", tensors.size(), digits));
    write_text(group.get(), "name", tensor.name);
    write_integers(group.get(), "shape", tensor.shape);
    write_text(group.get(), "kind", tensor.kind);
    write_text(group.get(), "layout", tensor.layout);
    const std::uint64_t n = element_count(tensor.shape);
    WritableTensor made{n, {group.get(), "gradient", tensor.dtype, workers, n}, {}, {}};
    // Squares of small gradients vanish in 16 bits, and a weight is a training's exact state: both stay float32.
    if (tensor.has_second_moment) made.second_moment.emplace(group.get(), "second_moment", Dtype::f32, workers, n);
    if (tensor.has_weight) made.weight.emplace(group.get(), "weight", Dtype::f32, 0, n);
    tensors.push_back(std::move(made));
  }
  return tensors;
}

}  // namespace gradtool::hdf5
