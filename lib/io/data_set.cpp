#include "lib/io/data_set.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <limits>

#include "lib/io/attributes.hpp"
#include "lib/io/schema.hpp"
#include "lib/io/utf8.hpp"

namespace gradtool::hdf5 {
namespace {

/// a * b, or the largest 64-bit number when the product does not fit.
std::uint64_t saturating_product(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<std::uint64_t>::max() : product;
}

/// Access properties with a cache of `bytes` for unpacked chunks. With 0 bytes chunks are read directly and never held
/// in memory.
Properties access_properties(std::size_t bytes) {
  Properties access{checked_id(H5Pcreate(H5P_DATASET_ACCESS), "prepare HDF5")};
  checked(H5Pset_chunk_cache(access.get(), 7, bytes, 1.0), "prepare HDF5");
  return access;
}

}  // namespace

bool has_child(hid_t group, const Place& place, const std::string& name) {
  be_quiet();
  const htri_t exists = H5Lexists(group, name.c_str(), H5P_DEFAULT);
  readable(exists, place, "is damaged: its members cannot be read");
  if (exists == 0) return false;
  H5L_info_t info;
  readable(H5Lget_info(group, name.c_str(), &info, H5P_DEFAULT), place, "is damaged: its members cannot be read");
  if (info.type != H5L_TYPE_HARD)
    place.at(printable(name)).fail("is a soft or external link; must be the object itself");
  return true;
}

Group open_group(hid_t parent, const Place& place, const std::string& name) {
  const Place here = place.at(printable(name));
  if (!has_child(parent, place, name)) here.fail("is missing; must be a group");
  Group group{H5Gopen2(parent, name.c_str(), H5P_DEFAULT)};
  if (!group) here.fail("is not a group, or damaged");
  return group;
}

DataSet::DataSet(hid_t parent, const Place& parent_place, const std::string& name, int rank)
    : place_{parent_place.at(name)} {
  if (!has_child(parent, parent_place, name)) place_.fail("is missing; must be a data set");
  const Properties access = access_properties(0);
  dataset_ = Dataset{H5Dopen2(parent, name.c_str(), access.get())};
  if (!dataset_) place_.fail("is not a data set, or damaged");
  type_ = Datatype{readable_id(H5Dget_type(dataset_.get()), place_, "has a damaged type")};
  space_ = Dataspace{readable_id(H5Dget_space(dataset_.get()), place_, "has a damaged extent")};
  if (H5Sget_simple_extent_type(space_.get()) != H5S_SIMPLE || H5Sget_simple_extent_ndims(space_.get()) != rank) {
    place_.fail(fmt::format("has the wrong number of dimensions; must be {}", rank));
  }
  dims_.resize(static_cast<std::size_t>(rank));
  readable(H5Sget_simple_extent_dims(space_.get(), dims_.data(), nullptr), place_, "has a damaged extent");
  check_layout(parent, name);
}

void DataSet::check_layout(hid_t parent, const std::string& name) {
  const Properties creation{readable_id(H5Dget_create_plist(dataset_.get()), place_, "has a damaged layout")};
  const H5D_layout_t layout = H5Pget_layout(creation.get());
  if (layout == H5D_VIRTUAL || (layout == H5D_CONTIGUOUS && H5Pget_external_count(creation.get()) != 0)) {
    place_.fail("keeps its values in other files; must keep them itself");
  }
  if (layout != H5D_CHUNKED) {
    if (layout != H5D_CONTIGUOUS && layout != H5D_COMPACT) place_.fail("has a damaged layout");
    return;
  }
  chunk_.resize(dims_.size());
  const int rank = static_cast<int>(dims_.size());
  if (H5Pget_chunk(creation.get(), rank, chunk_.data()) != rank) place_.fail("has a damaged layout");
  std::uint64_t chunk_bytes = H5Tget_size(type_.get());
  for (const hsize_t extent : chunk_) chunk_bytes = saturating_product(chunk_bytes, extent);
  if (chunk_bytes == 0) place_.fail("has a damaged layout");

  const int filters = H5Pget_nfilters(creation.get());
  readable(filters, place_, "has damaged filters");
  filtered_ = filters > 0;
  for (int i = 0; i < filters; ++i) {
    unsigned flags = 0;
    std::size_t parameters = 0;
    std::array<char, 64> label{};
    const H5Z_filter_t filter = H5Pget_filter2(creation.get(), static_cast<unsigned>(i), &flags, &parameters, nullptr,
                                               label.size() - 1, label.data(), nullptr);
    readable(filter, place_, "has damaged filters");
    if (H5Zfilter_avail(filter) <= 0) {
      place_.fail(fmt::format("is compressed with HDF5 filter {} ({}), which is not available here", filter,
                              label[0] == '\0' ? "unnamed" : printable(label.data())));
    }
  }
  if (!filtered_) return;
  if (chunk_bytes > schema::kMaxFilteredChunkBytes) {
    place_.fail("has compressed chunks of more than 64 MiB; must be at most 4 MiB");
  }
  dataset_.reset();
  const Properties access = access_properties(static_cast<std::size_t>(chunk_bytes));
  dataset_ = Dataset{readable_id(H5Dopen2(parent, name.c_str(), access.get()), place_, "is damaged")};
}

std::string DataSet::dims_text() const {
  return fmt::format("[{}]", fmt::join(dims_, ", "));
}

Dtype DataSet::value_dtype() const {
  for (const hid_t type : {H5T_IEEE_F32LE, H5T_IEEE_F32BE}) {
    if (H5Tequal(type_.get(), type) > 0) return Dtype::f32;
  }
  for (const H5T_order_t order : {H5T_ORDER_LE, H5T_ORDER_BE}) {
    const Datatype half = half_type(order);
    if (H5Tequal(type_.get(), half.get()) > 0) return Dtype::f16;
  }
  const bool word = H5Tequal(type_.get(), H5T_STD_U16LE) > 0 || H5Tequal(type_.get(), H5T_STD_U16BE) > 0;
  if (!word)
    place_.fail("has the wrong type; must be float32, float16, or uint16 with the attribute dtype=\"bfloat16\"");
  if (read_text(dataset_.get(), place_, "dtype") != "bfloat16") {
    place_.fail("is of type uint16 without the attribute dtype=\"bfloat16\"");
  }
  return Dtype::bf16;
}

void DataSet::expect_integers() const {
  if (H5Tget_class(type_.get()) != H5T_INTEGER || H5Tget_size(type_.get()) > 8) {
    place_.fail("has the wrong type; must be int64");
  }
}

void DataSet::expect_floats() const {
  if (H5Tget_class(type_.get()) != H5T_FLOAT || H5Tget_size(type_.get()) > 8) {
    place_.fail("has the wrong type; must be a floating-point type");
  }
}

void DataSet::expect_stored(std::uint64_t file_bytes, bool all_written) const {
  std::uint64_t bytes = H5Tget_size(type_.get());
  for (const hsize_t extent : dims_) bytes = saturating_product(bytes, extent);
  if (!filtered_ && bytes > file_bytes) {
    place_.fail(fmt::format("declares the extent {}, more than the whole file holds", dims_text()));
  }
  if (!all_written && !filtered_) return;
  if (chunk_.empty()) {
    if (H5Dget_storage_size(dataset_.get()) < bytes) place_.fail("was never written in full");
    return;
  }
  std::uint64_t expected = 1;
  for (std::size_t i = 0; i < dims_.size(); ++i) {
    expected = saturating_product(expected, dims_[i] / chunk_[i] + (dims_[i] % chunk_[i] != 0 ? 1 : 0));
  }
  hsize_t present = 0;
  readable(H5Dget_num_chunks(dataset_.get(), space_.get(), &present), place_, "has a damaged chunk index");
  if (present < expected) {
    place_.fail(fmt::format("was never written in full: {} of {} chunks exist", present, expected));
  }
}

void DataSet::read(const std::vector<hsize_t>& start, const std::vector<hsize_t>& count, hid_t memory_type,
                   void* out) const {
  be_quiet();
  const int rank = static_cast<int>(count.size());
  const Dataspace memory{checked_id(H5Screate_simple(rank, count.data(), nullptr), "make a data space")};
  checked(H5Sselect_hyperslab(space_.get(), H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr),
          "select a part of a data set");
  readable(H5Dread(dataset_.get(), memory_type, memory.get(), space_.get(), H5P_DEFAULT, out), place_,
           "has values that cannot be read: the file is damaged or truncated");
}

}  // namespace gradtool::hdf5
