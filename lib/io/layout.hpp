#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lib/core/dtype.hpp"
#include "lib/io/gradient_file.hpp"
#include "lib/io/hdf5.hpp"

// The groups and attributes that every writer of a gradient file lays out alike (docs/gradient-file.md).
namespace gradtool::hdf5 {

/// The type in which values of `dtype` are stored: little-endian, bf16 as its bits.
[[nodiscard]] Datatype file_type(Dtype dtype);

/// The product of a tensor's shape. Throws Fault::internal for an extent below 1 and a product beyond 64 bits.
[[nodiscard]] std::uint64_t element_count(const std::vector<std::int64_t>& shape);

/// Creation properties of a group that keep its attributes in the object header, where each is written at once. By
/// default HDF5 moves more than eight attributes to a heap, which its single-writer mode does not protect. `kind` is
/// H5P_GROUP_CREATE, or H5P_FILE_CREATE for the root.
[[nodiscard]] Properties group_properties(hid_t kind);
[[nodiscard]] Group make_group(hid_t parent, const std::string& name);

/// The attributes of the root, with `complete` and `interrupted` 0; `producer` and `created` are filled in when empty.
void write_root(hid_t root, const FileInfo& info);

/// The group of tensor `position` of `count` in /tensors, with its attributes.
[[nodiscard]] Group make_tensor(hid_t tensors, std::size_t position, std::size_t count, const TensorInfo& tensor);

}  // namespace gradtool::hdf5
