#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/core/dtype.hpp"
#include "lib/io/hdf5.hpp"

namespace gradtool::hdf5 {

/// True when `group` has a child of that name inside this very file. A soft or external link of that name is
/// Fault::data: it could lead anywhere.
[[nodiscard]] bool has_child(hid_t group, const Place& place, const std::string& name);

/// The child group, or Fault::data when there is none.
[[nodiscard]] Group open_group(hid_t parent, const Place& place, const std::string& name);

/// A data set opened for reading: of known extent, stored in this file, with filters that are available.
class DataSet {
 public:
  /// Fault::data when the object is no data set, or its rank is not `rank`, or it cannot be read here.
  DataSet(hid_t parent, const Place& parent_place, const std::string& name, int rank);

  [[nodiscard]] const Place& place() const { return place_; }
  [[nodiscard]] hid_t id() const { return dataset_.get(); }
  [[nodiscard]] const std::vector<hsize_t>& dims() const { return dims_; }
  /// "[3, 2, 10]", for sentences.
  [[nodiscard]] std::string dims_text() const;

  /// How values of a tensor are stored, from the type and, for 16-bit integers, the attribute dtype="bfloat16".
  /// Fault::data for every other type.
  [[nodiscard]] Dtype value_dtype() const;
  void expect_integers() const;  ///< Fault::data unless integers of at most 64 bits
  void expect_floats() const;    ///< Fault::data unless floating-point numbers of at most 64 bits

  /// Fault::data unless the file holds what the extent promises: `file_bytes` bounds what can be stored plainly, and
  /// when `all_written`, every chunk must exist. To be called before memory is sized by the extent.
  void expect_stored(std::uint64_t file_bytes, bool all_written) const;

  /// The box [start, start + count) as values of `memory_type` (converted by HDF5). Fault::data when that fails.
  void read(const std::vector<hsize_t>& start, const std::vector<hsize_t>& count, hid_t memory_type, void* out) const;

 private:
  void check_layout(hid_t parent, const std::string& name);

  Place place_;
  Dataset dataset_;
  Datatype type_;
  Dataspace space_;
  std::vector<hsize_t> dims_;
  std::vector<hsize_t> chunk_;  ///< empty unless chunked
  bool filtered_ = false;
};

}  // namespace gradtool::hdf5
