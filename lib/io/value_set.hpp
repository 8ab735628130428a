#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "lib/core/dtype.hpp"
#include "lib/io/hdf5.hpp"

// The data sets that a writer of a gradient file fills.
namespace gradtool::hdf5 {

/// The POSIX descriptor behind an open file, to which it belongs.
[[nodiscard]] int descriptor_of(hid_t file);

/// A data set of shape [S, row...] that grows step by step; S is unlimited and starts at 0.
class GrowingSet {
 public:
  /// `row` holds the dimensions behind the step axis; `chunk` is the chunk shape, with the step axis in front. Throws
  /// Fault::backend when the data set cannot be created.
  GrowingSet(hid_t parent, const std::string& name, hid_t file_type, std::vector<hsize_t> row,
             const std::vector<std::uint64_t>& chunk);

  [[nodiscard]] hid_t id() const { return dataset_.get(); }
  /// Extends the data set to `steps` steps.
  void grow_to(std::uint64_t steps);
  /// Writes `values`, which have the type `memory_type`, to the box [start, start + count). Throws Fault::backend when
  /// that fails, for example on a full disk.
  void write(const std::vector<hsize_t>& start, const std::vector<hsize_t>& count, hid_t memory_type,
             const void* values);

 private:
  std::string name_;
  Dataset dataset_;
  std::vector<hsize_t> dims_;
};

/// A data set of one step that has its place in the file at once, so that values are written there without HDF5, which
/// needs a quarter of a millisecond for a data set that grows, and looks through all open ones at each flush.
class PlacedSet {
 public:
  /// Throws as GrowingSet does. `error` receives the errno of the first write that fails.
  PlacedSet(hid_t file, hid_t parent, const std::string& name, hid_t file_type, const std::vector<hsize_t>& row,
            int& error);
  /// Writes values, which have the type of the data set, from the byte `offset` of the data set on.
  void write(std::uint64_t offset, std::span<const std::byte> values) const;

 private:
  int descriptor_;
  haddr_t address_;
  int* error_;
};

/// The data set with the values of a tensor, stored as `dtype`: of shape [S, W, n], or [S, n] when `workers` is 0.
class ValueSet {
 public:
  /// The file has one step alone where `error`, which write errors go to, is given.
  ValueSet(hid_t file, hid_t parent, const std::string& name, Dtype dtype, std::uint64_t workers,
           std::uint64_t elements, int* error);
  /// Writes the row of step `step` (from 0) and `worker` (ignored when there is no worker axis). Values are rounded to
  /// nearest even when `dtype` is narrower than float32.
  void write_row(std::uint64_t step, std::uint64_t worker, std::span<const float> values);
  /// A part of a row, from element `first` on, as it is to be stored.
  void write_bits(std::uint64_t step, std::uint64_t worker, std::uint64_t first, std::span<const std::byte> bits);

 private:
  std::variant<GrowingSet, PlacedSet> set_;
  Dtype dtype_;
  bool has_workers_;
  std::uint64_t elements_;
  std::uint64_t steps_ = 0;
};

}  // namespace gradtool::hdf5
