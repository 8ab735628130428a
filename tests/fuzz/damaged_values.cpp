#include "tests/fuzz/damaged_values.hpp"

#include <array>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <vector>

#include "lib/io/hdf5.hpp"

namespace gradtool::fuzz {
namespace {

/// Bytes of the file that hold nothing but values.
struct Stored {
  haddr_t first = 0;
  hsize_t bytes = 0;
};

void add_stored(hid_t file, const char* path, std::vector<Stored>& found) {
  const hdf5::Dataset set{H5Dopen2(file, path, H5P_DEFAULT)};
  if (!set) return;
  const hdf5::Properties creation{H5Dget_create_plist(set.get())};
  if (H5Pget_external_count(creation.get()) > 0) return;
  if (const haddr_t first = H5Dget_offset(set.get()); first != HADDR_UNDEF) {
    found.push_back({first, H5Dget_storage_size(set.get())});
    return;
  }
  const hdf5::Dataspace space{H5Dget_space(set.get())};
  hsize_t chunks = 0;
  if (H5Pget_layout(creation.get()) != H5D_CHUNKED || H5Dget_num_chunks(set.get(), space.get(), &chunks) < 0) return;
  for (hsize_t i = 0; i < chunks; ++i) {
    std::array<hsize_t, H5S_MAX_RANK> corner{};
    unsigned left_out = 0;
    Stored chunk;
    if (H5Dget_chunk_info(set.get(), space.get(), i, corner.data(), &left_out, &chunk.first, &chunk.bytes) >= 0)
      found.push_back(chunk);
  }
}

std::vector<Stored> stored_values(const std::string& path) {
  std::vector<Stored> found;
  const hdf5::File file{H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT)};
  if (!file) return found;
  const hdf5::Properties creation{H5Fget_create_plist(file.get())};
  hsize_t before = 0;
  // HDF5 does not say whether the addresses of values count the bytes that a user put in front of the file.
  if (H5Pget_userblock(creation.get(), &before) < 0 || before > 0) return found;
  for (const char* name : {"steps/iteration", "steps/epoch", "steps/loss", "tensors/0000/gradient",
                           "tensors/0001/gradient", "tensors/0000/second_moment", "tensors/0000/weight"}) {
    add_stored(file.get(), name, found);
  }
  return found;
}

}  // namespace

void damage_values(const std::string& path, Choices& choices) {
  const unsigned changes = choices.odd(8);
  if (changes == 8) {
    std::error_code error;
    const auto bytes = std::filesystem::file_size(path, error);
    if (!error) std::filesystem::resize_file(path, bytes * choices.next() / 255, error);
    return;
  }
  if (changes == 0) return;
  const std::vector<Stored> values = stored_values(path);
  std::fstream file{path, std::ios::binary | std::ios::in | std::ios::out};
  for (unsigned i = 0; i < changes && !values.empty(); ++i) {
    const Stored& part = values[choices.any(static_cast<unsigned>(values.size()))];
    const unsigned position = choices.next() + 256U * choices.next();
    const char value = static_cast<char>(choices.next());
    if (part.bytes == 0) continue;
    file.seekp(static_cast<std::streamoff>(part.first + position % part.bytes));
    file.put(value);
  }
}

}  // namespace gradtool::fuzz
