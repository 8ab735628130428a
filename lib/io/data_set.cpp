#include "lib/io/data_set.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <memory>

#include "lib/core/error.hpp"
#include "lib/core/text.hpp"
#include "lib/core/utf8.hpp"
#include "lib/io/attributes.hpp"
#include "lib/io/chunk_cache.hpp"
#include "lib/io/schema.hpp"

namespace gradtool::hdf5 {
namespace {

/// a * b, or the largest 64-bit number when the product does not fit.
std::uint64_t saturating_product(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<std::uint64_t>::max() : product;
}

/// The number of filters that a data set has, at most, by HDF5's file format.
constexpr int kMostFilters = 32;
/// Deflate makes at most so many bytes of one: a match of 258 bytes takes two bits at least.
constexpr std::uint64_t kMostInflation = 1032;

/// Chunks of many small tensors, or several of a large one: what a study reads in turns.
constexpr std::size_t kCachedBytes = std::size_t{16} << 20;

/// Access properties without a cache for chunks: HDF5 reads those without filters directly, and never sees others.
Properties access_properties() {
  Properties access{checked_id(H5Pcreate(H5P_DATASET_ACCESS), "prepare HDF5")};
  checked(H5Pset_chunk_cache(access.get(), 7, 0, 1.0), "prepare HDF5");
  return access;
}

/// HDF5 allows no more than one thread, so all files of a process can share one cache.
ChunkCache& chunk_cache() {
  static ChunkCache cache{kCachedBytes};
  return cache;
}

std::uint64_t next_number() {
  static std::uint64_t last = 0;
  return ++last;
}

/// `values` with 1 or 0 in front, so that there are three.
std::array<hsize_t, 3> padded(const std::vector<hsize_t>& values, hsize_t missing) {
  std::array<hsize_t, 3> all{missing, missing, missing};
  std::copy(values.begin(), values.end(), all.end() - static_cast<std::ptrdiff_t>(values.size()));
  return all;
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

DataSet::DataSet(hid_t parent, const Place& parent_place, const std::string& name, int rank, Values values)
    : place_{parent_place.at(name)}, number_{next_number()} {
  if (!has_child(parent, parent_place, name)) place_.fail("is missing; must be a data set");
  const Properties access = access_properties();
  dataset_ = Dataset{H5Dopen2(parent, name.c_str(), access.get())};
  if (!dataset_) place_.fail("is not a data set, or damaged");
  const Properties creation{readable_id(H5Dget_create_plist(dataset_.get()), place_, "has a damaged layout")};
  // Before anything else: asked for the extent of a virtual data set, HDF5 may open the files that it names.
  virtual_ = H5Pget_layout(creation.get()) == H5D_VIRTUAL;
  if (virtual_ && values == Values::here) place_.fail("keeps its values in other files; must keep them itself");
  if (virtual_) mappings_ = read_mappings(creation.get(), place_, rank);
  type_ = Datatype{readable_id(H5Dget_type(dataset_.get()), place_, "has a damaged type")};
  space_ = Dataspace{readable_id(H5Dget_space(dataset_.get()), place_, "has a damaged extent")};
  if (H5Sget_simple_extent_type(space_.get()) != H5S_SIMPLE || H5Sget_simple_extent_ndims(space_.get()) != rank) {
    place_.fail(fmt::format("has the wrong number of dimensions; must be {}", rank));
  }
  dims_.resize(static_cast<std::size_t>(rank));
  readable(H5Sget_simple_extent_dims(space_.get(), dims_.data(), nullptr), place_, "has a damaged extent");
  if (virtual_) {
    expect_covered(mappings_, place_, dims_);
  } else {
    check_layout(creation.get());
  }
}

DataSet::DataSet(PlainSet plain, Place place, RawFile& file)
    : place_{std::move(place)},
      raw_{&file},
      plain_{std::move(plain)},
      dims_{plain_.dims},
      chunk_{plain_.chunk},
      number_{next_number()} {}

void DataSet::check_layout(hid_t creation) {
  const H5D_layout_t layout = H5Pget_layout(creation);
  if (layout == H5D_CONTIGUOUS && H5Pget_external_count(creation) != 0) {
    place_.fail("keeps its values in other files; must keep them itself");
  }
  if (layout != H5D_CHUNKED) {
    if (layout != H5D_CONTIGUOUS && layout != H5D_COMPACT) place_.fail("has a damaged layout");
    return;
  }
  chunk_.resize(dims_.size());
  const int rank = static_cast<int>(dims_.size());
  if (H5Pget_chunk(creation, rank, chunk_.data()) != rank) place_.fail("has a damaged layout");
  std::uint64_t chunk_bytes = H5Tget_size(type_.get());
  for (const hsize_t extent : chunk_) chunk_bytes = saturating_product(chunk_bytes, extent);
  if (chunk_bytes == 0) place_.fail("has a damaged layout");
  filters_ = check_filters(creation, chunk_bytes);
}

Filters DataSet::check_filters(hid_t creation, std::size_t chunk_bytes) const {
  const int count = H5Pget_nfilters(creation);
  readable(count, place_, "has damaged filters");
  if (count == 0) return {};
  if (count > kMostFilters) place_.fail("has damaged filters");
  const std::size_t value_bytes = H5Tget_size(type_.get());
  std::vector<Filters::Kind> kinds;
  for (int i = 0; i < count; ++i) {
    unsigned flags = 0;
    unsigned parameter = 0;
    std::size_t parameters = 1;
    std::array<char, 64> label{};
    const H5Z_filter_t filter = H5Pget_filter2(creation, static_cast<unsigned>(i), &flags, &parameters, &parameter,
                                               label.size() - 1, label.data(), nullptr);
    readable(filter, place_, "has damaged filters");
    if (filter == H5Z_FILTER_DEFLATE) {
      kinds.push_back(Filters::Kind::deflate);
    } else if (filter == H5Z_FILTER_SHUFFLE) {
      if (parameters != 1 || parameter != value_bytes) place_.fail("has a filter that shuffles values of another size");
      kinds.push_back(Filters::Kind::shuffle);
    } else if (filter == H5Z_FILTER_FLETCHER32) {
      kinds.push_back(Filters::Kind::fletcher32);
    } else {
      place_.fail(fmt::format(
          "is compressed with HDF5 filter {} ({}), which is not available here; must be deflate, shuffle or fletcher32",
          filter, label[0] == '\0' ? "unnamed" : printable(label.data())));
    }
  }
  // A second deflate would inflate to a size that nothing says.
  if (std::count(kinds.begin(), kinds.end(), Filters::Kind::deflate) > 1) place_.fail("is deflated more than once");
  unsigned options = 0;
  readable(H5Pget_chunk_opts(creation, &options), place_, "has a damaged layout");
  if (options != 0) place_.fail("leaves the chunks at its edges without filters; must have them on every chunk");
  if (chunk_bytes > schema::kMaxFilteredChunkBytes) {
    place_.fail("has compressed chunks of more than 64 MiB; must be at most 4 MiB");
  }
  return {std::move(kinds), value_bytes, chunk_bytes};
}

std::string DataSet::dims_text() const {
  return fmt::format("[{}]", joined(dims_, ", "));
}

Dtype DataSet::value_dtype() const {
  if (raw_ != nullptr) return plain_.dtype;
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
  if (virtual_) return;
  std::uint64_t bytes = raw_ != nullptr ? size_of(plain_.dtype) : H5Tget_size(type_.get());
  for (const hsize_t extent : dims_) bytes = saturating_product(bytes, extent);
  if (filters_.empty() && bytes > file_bytes) {
    place_.fail(fmt::format("declares the extent {}, more than the whole file holds", dims_text()));
  }
  if ((!all_written && filters_.empty()) || raw_ != nullptr) return;  // all chunks of a plain set exist
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
  if (!filters_.empty() && bytes / kMostInflation > file_bytes) {
    place_.fail(fmt::format("declares the extent {}, more than the whole file could inflate to", dims_text()));
  }
}

bool DataSet::only_copies() const {
  constexpr std::uint64_t kLongRun = 16'384;  // values
  if (virtual_) return std::all_of(sources_.begin(), sources_.end(), [](auto* set) { return set->only_copies(); });
  return filters_.empty() && (chunk_.empty() || chunk_.back() >= kLongRun || chunk_.back() >= dims_.back());
}

void DataSet::read(const std::vector<hsize_t>& start, const std::vector<hsize_t>& count, hid_t memory_type,
                   void* out) const {
  be_quiet();
  if (raw_ != nullptr) return read_plain(start, count, static_cast<std::byte*>(out));
  if (virtual_) return read_mapped(start, count, memory_type, static_cast<std::byte*>(out));
  if (!filters_.empty()) return read_filtered(start, count, memory_type, static_cast<std::byte*>(out));
  const int rank = static_cast<int>(count.size());
  const Dataspace memory{checked_id(H5Screate_simple(rank, count.data(), nullptr), "make a data space")};
  checked(H5Sselect_hyperslab(space_.get(), H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr),
          "select a part of a data set");
  readable(H5Dread(dataset_.get(), memory_type, memory.get(), space_.get(), H5P_DEFAULT, out), place_,
           "has values that cannot be read: the file is damaged or truncated");
}

void DataSet::read_mapped(const std::vector<hsize_t>& start, const std::vector<hsize_t>& count, hid_t memory_type,
                          std::byte* out) const {
  const bool has_workers = dims_.size() == 3;
  const hsize_t first_worker = has_workers ? start[1] : 0, workers = has_workers ? count[1] : 1;
  const std::size_t row_bytes = count.back() * H5Tget_size(memory_type);
  for (hsize_t step = start.front(); step < start.front() + count.front(); ++step) {
    for (hsize_t worker = first_worker; worker < first_worker + workers; ++worker, out += row_bytes) {
      const std::size_t i = mapping_of(mappings_, step, worker);
      const Mapping& mapping = mappings_[i];
      std::vector<hsize_t> from = start, one(count.size(), 1);
      from.front() = mapping.source_step + (step - mapping.step);
      if (has_workers) from[1] = mapping.source_worker + (worker - mapping.worker);
      one.back() = count.back();
      sources_.at(i)->read(from, one, memory_type, out);
    }
  }
}

template <class Open, class Copy>
void DataSet::walk(const std::vector<hsize_t>& start, const std::vector<hsize_t>& count, Open open, Copy copy) const {
  const Index chunk = padded(chunk_, 1), from = padded(start, 0), size = padded(count, 1), extent = padded(dims_, 1);
  Index end{};
  for (std::size_t i = 0; i < 3; ++i) {
    expects(size[i] <= extent[i] && from[i] <= extent[i] - size[i], "a box reaches past the end of a data set");
    if (size[i] == 0) return;
    end[i] = from[i] + size[i];
  }
  const auto copy_chunk = [&](const Index& corner) {
    Index low{}, high{};
    for (std::size_t i = 0; i < 3; ++i) {
      low[i] = std::max(from[i], corner[i]);
      high[i] = std::min(end[i], corner[i] + chunk[i]);
    }
    for (hsize_t a = low[0]; a < high[0]; ++a) {
      for (hsize_t b = low[1]; b < high[1]; ++b) {
        const hsize_t in = ((a - corner[0]) * chunk[1] + b - corner[1]) * chunk[2] + low[2] - corner[2];
        const hsize_t at = ((a - from[0]) * size[1] + b - from[1]) * size[2] + low[2] - from[2];
        copy(in, at, high[2] - low[2]);
      }
    }
  };
  Index corner{};
  for (corner[0] = from[0] / chunk[0] * chunk[0]; corner[0] < end[0]; corner[0] += chunk[0]) {
    for (corner[1] = from[1] / chunk[1] * chunk[1]; corner[1] < end[1]; corner[1] += chunk[1]) {
      for (corner[2] = from[2] / chunk[2] * chunk[2]; corner[2] < end[2]; corner[2] += chunk[2]) {
        open(corner);
        copy_chunk(corner);
      }
    }
  }
}

void DataSet::read_plain(const std::vector<hsize_t>& start, const std::vector<hsize_t>& count, std::byte* out) const {
  const std::size_t value_bytes = size_of(plain_.dtype);
  const Index chunk = padded(chunk_, 1), extent = padded(dims_, 1);
  const auto chunks = [&](std::size_t axis) { return (extent[axis] + chunk[axis] - 1) / chunk[axis]; };
  std::uint64_t address = 0;
  walk(
      start, count,
      [&](const Index& corner) {
        const hsize_t row = corner[0] / chunk[0] * chunks(1) + corner[1] / chunk[1];
        address = plain_.addresses[row * chunks(2) + corner[2] / chunk[2]];
      },
      [&](hsize_t in, hsize_t at, hsize_t length) {
        const std::span<std::byte> to{out + at * value_bytes, length * value_bytes};
        if (!raw_->read(address + in * value_bytes, {reinterpret_cast<unsigned char*>(to.data()), to.size()}))
          place_.fail("has values that cannot be read: the file is damaged or truncated");
      });
}

void DataSet::read_filtered(const std::vector<hsize_t>& start, const std::vector<hsize_t>& count, hid_t memory_type,
                            std::byte* out) const {
  const std::size_t stored_bytes = H5Tget_size(type_.get()), value_bytes = H5Tget_size(memory_type);
  const bool converts = H5Tequal(type_.get(), memory_type) <= 0;
  const auto missing = static_cast<std::ptrdiff_t>(3 - count.size());
  const std::vector<std::byte>* bytes = nullptr;
  std::vector<std::byte> row;
  walk(
      start, count,
      [&](const Index& corner) {
        const auto unpack_here = [&] { return unpack({corner.begin() + missing, corner.end()}); };
        bytes = &chunk_cache().get({number_, {corner[0], corner[1], corner[2]}}, unpack_here);
      },
      [&](hsize_t in, hsize_t at, hsize_t length) {
        const std::byte* const values = bytes->data() + in * stored_bytes;
        std::byte* const to = out + at * value_bytes;
        if (!converts) {
          std::memcpy(to, values, length * value_bytes);
          return;
        }
        row.resize(length * std::max(stored_bytes, value_bytes));
        std::memcpy(row.data(), values, length * stored_bytes);
        checked(H5Tconvert(type_.get(), memory_type, length, row.data(), nullptr, H5P_DEFAULT), "convert values");
        std::memcpy(to, row.data(), length * value_bytes);
      });
}

std::vector<std::byte> DataSet::unpack(const std::vector<hsize_t>& offset) const {
  hsize_t size = 0;
  readable(H5Dget_chunk_storage_size(dataset_.get(), offset.data(), &size), place_, "has a damaged chunk index");
  const std::size_t most = filters_.most_stored_bytes();
  std::vector<std::byte> bytes;
  if (size > 0 && size <= most) {
    // The buffer is as large as any chunk may be, because another program that writes the file may change the chunk in
    // between. Parts that are not written to take no memory.
    const auto stored = std::make_unique_for_overwrite<std::byte[]>(most);
    std::uint32_t skipped = 0;
    readable(H5Dread_chunk(dataset_.get(), H5P_DEFAULT, offset.data(), &skipped, stored.get()), place_,
             "has values that cannot be read: the file is damaged or truncated");
    bytes = filters_.undo({stored.get(), static_cast<std::size_t>(size)}, skipped);
  }
  if (bytes.empty()) {
    place_.fail(
        fmt::format("has a damaged chunk at [{}]: the {} bytes in the file do not unpack to the {} bytes of a chunk",
                    joined(offset, ", "), size, filters_.chunk_bytes()));
  }
  return bytes;
}

}  // namespace gradtool::hdf5
