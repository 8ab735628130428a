#pragma once

#include <cstddef>
#include <string>

#include "lib/io/hdf5.hpp"

namespace gradtool::hdf5 {

/// The value of `attribute`, one text of variable length, which lies in a global heap of the file.
///
/// HDF5 1.10 believes every number in such a heap: a damaged one makes it loop for ever, overrun memory or ask for
/// gigabytes. So HDF5 only hands out the reference, and the heap is read here, with checks.
/// Fault::data at `place`, with `name`, when it is damaged or longer than `max_bytes`.
[[nodiscard]] std::string read_heap_text(hid_t attribute, std::size_t max_bytes, const Place& place, const char* name);

}  // namespace gradtool::hdf5
