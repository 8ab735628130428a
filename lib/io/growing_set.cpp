#include "lib/io/growing_set.hpp"

#include <algorithm>
#include <array>

#include "kernels/law/half.hpp"
#include "lib/io/attributes.hpp"
#include "lib/io/chunking.hpp"

namespace gradtool::hdf5 {
namespace {

Datatype file_type(Dtype dtype) {
  if (dtype == Dtype::f16) return half_type();
  return Datatype{checked_id(H5Tcopy(dtype == Dtype::f32 ? H5T_IEEE_F32LE : H5T_STD_U16LE), "make a type")};
}

std::vector<std::uint64_t> value_chunk(Dtype dtype, std::uint64_t workers, std::uint64_t elements) {
  auto chunk = chunk_shape(std::max<std::uint64_t>(workers, 1), elements, size_of(dtype));
  if (workers == 0) chunk.erase(chunk.begin() + 1);
  return chunk;
}

std::vector<hsize_t> row_dims(std::uint64_t workers, std::uint64_t elements) {
  return workers == 0 ? std::vector<hsize_t>{elements} : std::vector<hsize_t>{workers, elements};
}

}  // namespace

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
  // A chunk of one row is written straight to the disk, whole. One of several rows waits in the cache for the others;
  // the rows that never come must be zeros and not what the memory held before.
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

ValueSet::ValueSet(hid_t parent, const std::string& name, Dtype dtype, std::uint64_t workers, std::uint64_t elements)
    : set_{parent, name, file_type(dtype).get(), row_dims(workers, elements), value_chunk(dtype, workers, elements)},
      dtype_{dtype},
      has_workers_{workers > 0} {
  if (dtype == Dtype::bf16) write_text(set_.id(), "dtype", "bfloat16");
}

void ValueSet::write_row(std::uint64_t step, std::uint64_t worker, std::span<const float> values) {
  if (steps_ <= step) set_.grow_to(steps_ = step + 1);
  if (dtype_ == Dtype::f32) return write_part(step, worker, 0, values.size(), H5T_NATIVE_FLOAT, values.data());
  const Datatype half = half_type();
  std::array<std::uint16_t, std::size_t{1} << 15> narrow;
  for (std::size_t first = 0; first < values.size(); first += narrow.size()) {
    const auto part = values.subspan(first, std::min(narrow.size(), values.size() - first));
    if (dtype_ == Dtype::f16) {
      std::transform(part.begin(), part.end(), narrow.begin(), [](float x) { return law::f16_from_f32(x); });
      write_part(step, worker, first, part.size(), half.get(), narrow.data());
    } else {
      std::transform(part.begin(), part.end(), narrow.begin(), [](float x) { return law::bf16_from_f32(x); });
      write_part(step, worker, first, part.size(), H5T_NATIVE_UINT16, narrow.data());
    }
  }
}

void ValueSet::write_part(std::uint64_t step, std::uint64_t worker, std::uint64_t first, std::uint64_t count,
                          hid_t type, const void* values) {
  if (has_workers_) {
    set_.write({step, worker, first}, {1, 1, count}, type, values);
  } else {
    set_.write({step, first}, {1, count}, type, values);
  }
}

}  // namespace gradtool::hdf5
