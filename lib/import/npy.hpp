#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lib/import/array_file.hpp"

namespace gradtool {

/// The header of a .npy file.
struct NpyHeader {
  ArrayInfo info;
  std::uint64_t bytes = 0;  ///< of the header; the values follow
  bool big_endian = false;
  bool fortran = false;  ///< the first axis is the fastest, and there is more than one that matters
};

/// The most bytes of a header; NumPy's own are mostly 128.
constexpr std::size_t kMostNpyHeader = std::size_t{64} << 10;

/// Parses the header at the beginning of `bytes`, of which the whole file has `file_bytes`; as many as it has, at most
/// kMostNpyHeader, must be given. Throws Fault::data, beginning with `what`, when it is none, or when the values that
/// it promises are not exactly what follows.
[[nodiscard]] NpyHeader parse_npy_header(std::span<const std::byte> bytes, std::uint64_t file_bytes,
                                         const std::string& what);

/// Reverses the bytes of each value.
void swap_bytes(std::span<std::byte> values, std::size_t value_bytes);

/// The largest array in Fortran order: it is turned in memory.
constexpr std::uint64_t kMostFortranBytes = std::uint64_t{512} << 20;
/// Turns an array in Fortran order: `read(offset, out)` reads its bytes, in order from the first to the last. Throws
/// Fault::data, beginning with `what`, for one that is larger than the above.
template <class Read>
std::vector<std::byte> turn_fortran(const ArrayInfo& info, const std::string& what, Read read) {
  const std::size_t size = size_of(info.element);
  if (info.elements > kMostFortranBytes / size) {
    throw Error{Fault::data,
                what + ": is in Fortran order and larger than 512 MiB; save numpy.ascontiguousarray() of it"};
  }
  std::vector<std::byte> turned(info.elements * size), part(std::size_t{1} << 20);
  // In the file the indices count up from the first axis; `at` follows them in C order.
  std::vector<std::uint64_t> stride(info.shape.size()), index(info.shape.size());
  std::uint64_t step = size;
  for (std::size_t i = stride.size(); i-- > 0; step *= static_cast<std::uint64_t>(info.shape[i])) stride[i] = step;
  std::uint64_t at = 0;
  for (std::uint64_t offset = 0; offset < turned.size();) {
    const std::size_t count = std::min<std::uint64_t>(part.size(), turned.size() - offset);
    read(offset, std::span{part}.first(count));
    for (std::size_t i = 0; i < count; i += size) {
      std::copy_n(part.begin() + static_cast<std::ptrdiff_t>(i), size,
                  turned.begin() + static_cast<std::ptrdiff_t>(at));
      for (std::size_t axis = 0; axis < index.size(); ++axis) {
        at += stride[axis];
        if (++index[axis] < static_cast<std::uint64_t>(info.shape[axis])) break;
        at -= stride[axis] * index[axis];
        index[axis] = 0;
      }
    }
    offset += count;
  }
  return turned;
}

}  // namespace gradtool
