#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lib/core/dtype.hpp"
#include "lib/io/hdf5.hpp"

namespace gradtool::hdf5 {

/// A data set [S, row...] that is written step by step; S is unlimited and starts at 0.
class GrowingSet {
 public:
  /// `row` are the dimensions behind the step axis, `chunk` has one entry more. Throws Fault::backend.
  GrowingSet(hid_t parent, const std::string& name, hid_t file_type, std::vector<hsize_t> row,
             const std::vector<std::uint64_t>& chunk);

  [[nodiscard]] hid_t id() const { return dataset_.get(); }
  /// Makes room for `steps` steps.
  void grow_to(std::uint64_t steps);
  /// The box [start, start + count) from `values` of `memory_type`. Throws Fault::backend, on a full disk for example.
  void write(const std::vector<hsize_t>& start, const std::vector<hsize_t>& count, hid_t memory_type,
             const void* values);

 private:
  std::string name_;
  Dataset dataset_;
  std::vector<hsize_t> dims_;
};

/// A GrowingSet of a tensor's values, [S, W, n] or [S, n] (where `workers` is 0), stored as `dtype`.
class ValueSet {
 public:
  ValueSet(hid_t parent, const std::string& name, Dtype dtype, std::uint64_t workers, std::uint64_t elements);
  /// One row: step `step` (from 0) of `worker` (ignored without worker axis). Rounds to nearest even where narrower.
  void write_row(std::uint64_t step, std::uint64_t worker, std::span<const float> values);

 private:
  void write_part(std::uint64_t step, std::uint64_t worker, std::uint64_t first, std::uint64_t count, hid_t type,
                  const void* values);

  GrowingSet set_;
  Dtype dtype_;
  bool has_workers_;
  std::uint64_t steps_ = 0;
};

}  // namespace gradtool::hdf5
