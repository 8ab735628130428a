#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/core/dtype.hpp"
#include "lib/io/filters.hpp"
#include "lib/io/hdf5.hpp"
#include "lib/io/mapping.hpp"
#include "lib/io/plain_tensor.hpp"

namespace gradtool::hdf5 {

/// True when `group` has a child of that name that lies in this file. Throws Fault::data when the child is a soft or
/// external link, which could lead anywhere.
[[nodiscard]] bool has_child(hid_t group, const Place& place, const std::string& name);

/// Opens the child group; throws Fault::data when there is none.
[[nodiscard]] Group open_group(hid_t parent, const Place& place, const std::string& name);

/// A data set that is open for reading. Its extent is known, and its filters are among those of Filters. Its values lie
/// in this file, or it is virtual: then they are read from the data sets of other files that attach() names, and HDF5's
/// own way to read them is never used, because it fills in zeros for a file that it does not find.
class DataSet {
 public:
  /// Whether a data set may be virtual.
  enum class Values : std::uint8_t { here, here_or_mapped };

  /// Throws Fault::data when the object is not a data set, has another number of dimensions than `rank`, or cannot be
  /// read here.
  DataSet(hid_t parent, const Place& parent_place, const std::string& name, int rank, Values values = Values::here);

  /// A set that was read without HDF5, whose values `file`, which must outlive this, has.
  DataSet(PlainSet plain, Place place, RawFile& file);

  [[nodiscard]] const Place& place() const { return place_; }
  [[nodiscard]] hid_t id() const { return dataset_.get(); }
  [[nodiscard]] const std::vector<hsize_t>& dims() const { return dims_; }
  /// The extent as text for messages, for example "[3, 2, 10]".
  [[nodiscard]] std::string dims_text() const;

  /// How the values of a tensor are stored. 16-bit integers with the attribute dtype="bfloat16" are bf16. Throws
  /// Fault::data for a type that a gradient file does not have.
  [[nodiscard]] Dtype value_dtype() const;
  [[nodiscard]] bool is_virtual() const { return virtual_; }
  /// The blocks of a virtual data set; they cover it. Empty for any other.
  [[nodiscard]] const std::vector<Mapping>& mappings() const { return mappings_; }
  /// Says for each of mappings() which data set has its values. They must outlive this one, hold each block, and have
  /// the same type of values. Nothing may be read before.
  void attach(std::vector<const DataSet*> sources) { sources_ = std::move(sources); }

  void expect_integers() const;  ///< throws Fault::data unless the values are integers of at most 64 bits
  void expect_floats() const;    ///< throws Fault::data unless the values are floats of at most 64 bits

  /// Throws Fault::data unless the file can hold what the extent promises: without filters not more than `file_bytes`
  /// bytes, with them not more than deflate can make of so many, and with `all_written` every chunk must exist. Of a
  /// virtual one nothing is asked: its sources' are asked it. Call it before allocating memory by the extent.
  void expect_stored(std::uint64_t file_bytes, bool all_written) const;

  /// Reads the box [start, start + count), which lies in the extent, as values of `memory_type`, to which HDF5
  /// converts; of a plain set its own type must be asked for. Throws Fault::data when that fails. Chunks with filters
  /// are unpacked into a cache that all data sets of the process share and that holds 16 MiB at most, or one chunk.
  void read(const std::vector<hsize_t>& start, const std::vector<hsize_t>& count, hid_t memory_type, void* out) const;
  /// Whether read() copies long runs of values, and unpacks nothing.
  [[nodiscard]] bool only_copies() const;

 private:
  using Index = std::array<hsize_t, 3>;  ///< of a chunk, or a value; leading axes that the data set lacks are 0
  void check_layout(hid_t creation);
  /// Walks over the box [start, start + count): calls open(corner) for each chunk that has a part of it, and then
  /// copy(in, at, length) for each row of values along the last axis: its place in the chunk, in the box, its length.
  template <class Open, class Copy>
  void walk(const std::vector<hsize_t>& start, const std::vector<hsize_t>& count, Open open, Copy copy) const;
  void read_plain(const std::vector<hsize_t>& start, const std::vector<hsize_t>& count, std::byte* out) const;
  void read_mapped(const std::vector<hsize_t>& start, const std::vector<hsize_t>& count, hid_t memory_type,
                   std::byte* out) const;
  [[nodiscard]] Filters check_filters(hid_t creation, std::size_t chunk_bytes) const;
  void read_filtered(const std::vector<hsize_t>& start, const std::vector<hsize_t>& count, hid_t memory_type,
                     std::byte* out) const;
  [[nodiscard]] std::vector<std::byte> unpack(const std::vector<hsize_t>& offset) const;

  Place place_;
  RawFile* raw_ = nullptr;  ///< of a plain set, which needs no object of HDF5
  PlainSet plain_;
  Dataset dataset_;
  Datatype type_;
  Dataspace space_;
  std::vector<hsize_t> dims_;
  std::vector<hsize_t> chunk_;  ///< empty unless chunked
  Filters filters_;
  bool virtual_ = false;
  std::vector<Mapping> mappings_;
  std::vector<const DataSet*> sources_;  ///< of each mapping
  std::uint64_t number_;                 ///< tells data sets apart in the cache
};

}  // namespace gradtool::hdf5
