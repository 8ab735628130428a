#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/core/dtype.hpp"
#include "lib/io/raw_file.hpp"

// Tensors as gradtool and its Python package write them, read without HDF5's library: opening three objects for each
// takes it 150 us, and a mixture of experts has tens of thousands of tensors.
namespace gradtool::hdf5 {

/// A data set whose chunks have no filters and hold little-endian values. A contiguous one is a single chunk.
struct PlainSet {
  Dtype dtype = Dtype::f32;
  std::vector<hsize_t> dims, chunk;
  std::vector<std::uint64_t> addresses;  ///< of the chunks in C order; all of them are there
};

/// The group of a tensor.
struct PlainTensor {
  std::string name, kind;
  std::optional<std::string> layout;
  std::vector<std::int64_t> shape;
  PlainSet gradient;
  std::optional<PlainSet> second_moment, weight;
};

/// Reads the group whose object header is at `address`. Returns nothing unless everything in it is as gradtool writes
/// it in HDF5 1.10's format, with the right checksums: the caller then asks HDF5, which reads every form and knows what
/// is wrong. `headers` and `texts` read the same file; each keeps a window of its own.
[[nodiscard]] std::optional<PlainTensor> read_plain_tensor(RawFile& headers, RawFile& texts, std::uint64_t address);

}  // namespace gradtool::hdf5
