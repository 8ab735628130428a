#include "lib/io/layout.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "gradtool_version.hpp"
#include "lib/io/attributes.hpp"
#include "lib/io/schema.hpp"

namespace gradtool::hdf5 {

Datatype file_type(Dtype dtype) {
  if (dtype == Dtype::f16) return half_type();
  return Datatype{checked_id(H5Tcopy(dtype == Dtype::f32 ? H5T_IEEE_F32LE : H5T_STD_U16LE), "make a type")};
}

std::uint64_t element_count(const std::vector<std::int64_t>& shape) {
  std::uint64_t count = 1;
  for (const std::int64_t extent : shape) {
    expects(extent >= 1 && !__builtin_mul_overflow(count, static_cast<std::uint64_t>(extent), &count),
            "a tensor's shape has an extent below 1, or too many elements");
  }
  return count;
}

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

void write_root(hid_t root, const FileInfo& info) {
  write_text(root, "format", std::string{schema::kFormat});
  write_integer(root, "schema_version", schema::kVersion);
  write_integer(root, "complete", 0);
  write_integer(root, "interrupted", 0);
  write_text(root, "producer",
             info.producer.empty() ? "gradtool " GRADTOOL_VERSION " (" GRADTOOL_COMMIT ")" : info.producer);
  write_text(
      root, "created",
      info.created.empty() ? fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr))) : info.created);
  write_text(root, "model", info.model);
  write_text(root, "dataset", info.dataset);
  write_text(root, "optimizer", info.optimizer);
  if (info.seed) write_integer(root, "seed", *info.seed);
  write_integer(root, "workers", info.workers);
  if (info.batch_size) write_integer(root, "batch_size", *info.batch_size);
  write_integer(root, "micro_batches", info.micro_batches);
  write_text(root, "command", info.command);
  if (!info.library.empty()) write_text(root, "library", info.library);
  for (const auto& [name, type] : schema::kReduceDtypes) {
    if (info.reduce_dtype == type) write_text(root, "reduce_dtype", std::string{name});
  }
  write_text(root, "quantity", info.quantity);
  if (info.inner_steps) write_integer(root, "inner_steps", *info.inner_steps);
  write_integer(root, "averaged", info.averaged ? 1 : 0);
  if (info.rank) write_integer(root, "rank", *info.rank);
  if (info.ranks) write_integer(root, "ranks", *info.ranks);
}

Group make_tensor(hid_t tensors, std::size_t position, std::size_t count, const TensorInfo& tensor) {
  // Room for the attributes in the header from the beginning, as for four links with names of 60 bytes. Otherwise HDF5
  // moves the header for each, which takes a quarter of the time that it needs for a tensor.
  static const Properties creation = [] {
    Properties made = group_properties(H5P_GROUP_CREATE);
    checked(H5Pset_est_link_info(made.get(), 4, 60), "prepare HDF5");
    return made;
  }();
  const std::size_t digits = std::max<std::size_t>(4, std::to_string(count - 1).size());
  const std::string number = fmt::format("{:0{}}", position, digits);
  Group group{checked_id(H5Gcreate2(tensors, number.c_str(), H5P_DEFAULT, creation.get(), H5P_DEFAULT),
                         "create the group '" + number + "'")};
  write_text(group.get(), "name", tensor.name);
  write_integers(group.get(), "shape", tensor.shape);
  write_text(group.get(), "kind", tensor.kind);
  if (!tensor.layout.empty()) write_text(group.get(), "layout", tensor.layout);
  return group;
}

}  // namespace gradtool::hdf5
