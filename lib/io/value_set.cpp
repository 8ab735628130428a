#include "lib/io/value_set.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <utility>

#include "kernels/float_bits.hpp"
#include "lib/core/error.hpp"
#include "lib/io/attributes.hpp"
#include "lib/io/layout.hpp"
#include "lib/io/schema.hpp"

namespace gradtool::hdf5 {
namespace {

std::vector<std::uint64_t> value_chunk(Dtype dtype, std::uint64_t workers, std::uint64_t elements) {
  auto chunk = chunk_shape(std::max<std::uint64_t>(workers, 1), elements, size_of(dtype));
  if (workers == 0) chunk.erase(chunk.begin() + 1);
  return chunk;
}

std::vector<hsize_t> row_dims(std::uint64_t workers, std::uint64_t elements) {
  return workers == 0 ? std::vector<hsize_t>{elements} : std::vector<hsize_t>{workers, elements};
}

}  // namespace

int descriptor_of(hid_t file) {
  void* handle = nullptr;
  checked(H5Fget_vfd_handle(file, H5P_DEFAULT, &handle), "find the descriptor of a file");
  return *static_cast<int*>(handle);
}

GrowingSet::GrowingSet(hid_t parent, const std::string& name, hid_t file_type, std::vector<hsize_t> row,
                       const std::vector<std::uint64_t>& chunk)
    : name_{name}, dims_{std::move(row)} {
  const std::string doing = "create the data set '" + name + "'";
  dims_.insert(dims_.begin(), 0);
  std::vector<hsize_t> most = dims_;
  most.front() = H5S_UNLIMITED;
  const std::vector<hsize_t> chunk_dims(chunk.begin(), chunk.end());
  const int rank = static_cast<int>(dims_.size());

  const Properties creation{checked_id(H5Pcreate(H5P_DATASET_CREATE), doing)};
  checked(H5Pset_chunk(creation.get(), rank, chunk_dims.data()), doing);
  // A chunk of one row is written to the disk as a whole, at once. A chunk of several rows waits in the cache until its
  // rows have arrived; rows that never arrive must be zeros and not what the memory held before.
  const bool gathers = chunk.front() > 1 || (rank == 3 && chunk[1] > 1);
  checked(H5Pset_fill_time(creation.get(), gathers ? H5D_FILL_TIME_ALLOC : H5D_FILL_TIME_NEVER), doing);
  std::size_t bytes = H5Tget_size(file_type);
  for (const std::uint64_t extent : chunk) bytes *= extent;
  const Properties access{checked_id(H5Pcreate(H5P_DATASET_ACCESS), doing)};
  checked(H5Pset_chunk_cache(access.get(), 7, gathers ? bytes : 0, 1.0), doing);

  const Dataspace space{checked_id(H5Screate_simple(rank, dims_.data(), most.data()), doing)};
  dataset_ = Dataset{checked_id(
      H5Dcreate2(parent, name.c_str(), file_type, space.get(), H5P_DEFAULT, creation.get(), access.get()), doing)};
}

void GrowingSet::grow_to(std::uint64_t steps) {
  dims_.front() = steps;
  checked(H5Dset_extent(dataset_.get(), dims_.data()), "extend the data set '" + name_ + "'");
}

void GrowingSet::write(const std::vector<hsize_t>& start, const std::vector<hsize_t>& count, hid_t memory_type,
                       const void* values) {
  const int rank = static_cast<int>(dims_.size());
  const Dataspace file{checked_id(H5Dget_space(dataset_.get()), "write a data set")};
  const Dataspace memory{checked_id(H5Screate_simple(rank, count.data(), nullptr), "write a data set")};
  checked(H5Sselect_hyperslab(file.get(), H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr),
          "write a data set");
  checked(H5Dwrite(dataset_.get(), memory_type, memory.get(), file.get(), H5P_DEFAULT, values),
          "write the data set '" + name_ + "'");
}

PlacedSet::PlacedSet(hid_t file, hid_t parent, const std::string& name, hid_t file_type,
                     const std::vector<hsize_t>& row, int& error)
    : descriptor_{descriptor_of(file)}, error_{&error} {
  const std::string doing = "create the data set '" + name + "'";
  std::vector<hsize_t> dims{1};
  dims.insert(dims.end(), row.begin(), row.end());
  static const Properties creation = [] {
    Properties made{checked_id(H5Pcreate(H5P_DATASET_CREATE), "prepare HDF5")};
    checked(H5Pset_alloc_time(made.get(), H5D_ALLOC_TIME_EARLY), "prepare HDF5");
    checked(H5Pset_fill_time(made.get(), H5D_FILL_TIME_NEVER), "prepare HDF5");
    return made;
  }();
  const Dataspace space{checked_id(H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr), doing)};
  const Dataset made{checked_id(
      H5Dcreate2(parent, name.c_str(), file_type, space.get(), H5P_DEFAULT, creation.get(), H5P_DEFAULT), doing)};
  address_ = H5Dget_offset(made.get());
  expects(address_ != HADDR_UNDEF, "HDF5 gave a data set no place in the file");
}

void PlacedSet::write(std::uint64_t offset, std::span<const std::byte> values) const {
  while (!values.empty() && *error_ == 0) {
    const ssize_t written = pwrite(descriptor_, values.data(), values.size(), static_cast<off_t>(address_ + offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      *error_ = written < 0 ? errno : EIO;
      return;
    }
    offset += static_cast<std::uint64_t>(written);
    values = values.subspan(static_cast<std::size_t>(written));
  }
}

ValueSet::ValueSet(hid_t file, hid_t parent, const std::string& name, Dtype dtype, std::uint64_t workers,
                   std::uint64_t elements, int* error)
    : set_{error == nullptr
               ? std::variant<GrowingSet, PlacedSet>{std::in_place_type<GrowingSet>, parent, name,
                                                     file_type(dtype).get(), row_dims(workers, elements),
                                                     value_chunk(dtype, workers, elements)}
               : std::variant<GrowingSet, PlacedSet>{std::in_place_type<PlacedSet>, file, parent, name,
                                                     file_type(dtype).get(), row_dims(workers, elements), *error}},
      dtype_{dtype},
      has_workers_{workers > 0},
      elements_{elements} {
  if (dtype != Dtype::bf16) return;
  const Dataset made{checked_id(H5Dopen2(parent, name.c_str(), H5P_DEFAULT), "open the data set '" + name + "'")};
  write_text(made.get(), "dtype", "bfloat16");
}

void ValueSet::write_row(std::uint64_t step, std::uint64_t worker, std::span<const float> values) {
  if (dtype_ == Dtype::f32) return write_bits(step, worker, 0, std::as_bytes(values));
  std::array<std::uint16_t, std::size_t{1} << 15> narrow;
  for (std::size_t first = 0; first < values.size(); first += narrow.size()) {
    const auto part = values.subspan(first, std::min(narrow.size(), values.size() - first));
    if (dtype_ == Dtype::f16) {
      std::transform(part.begin(), part.end(), narrow.begin(), [](float x) { return format::f16_from_f32(x); });
    } else {
      std::transform(part.begin(), part.end(), narrow.begin(), [](float x) { return format::bf16_from_f32(x); });
    }
    write_bits(step, worker, first, std::as_bytes(std::span{narrow}.first(part.size())));
  }
}

void ValueSet::write_bits(std::uint64_t step, std::uint64_t worker, std::uint64_t first,
                          std::span<const std::byte> bits) {
  static_assert(std::endian::native == std::endian::little, "gradient files are written as memory has them");
  if (const auto* placed = std::get_if<PlacedSet>(&set_)) {
    return placed->write(((has_workers_ ? worker : 0) * elements_ + first) * size_of(dtype_), bits);
  }
  auto& set = std::get<GrowingSet>(set_);
  if (steps_ <= step) set.grow_to(steps_ = step + 1);
  const std::uint64_t count = bits.size() / size_of(dtype_);
  const auto type = file_type(dtype_);
  if (has_workers_) {
    set.write({step, worker, first}, {1, 1, count}, type.get(), bits.data());
  } else {
    set.write({step, first}, {1, count}, type.get(), bits.data());
  }
}

}  // namespace gradtool::hdf5
