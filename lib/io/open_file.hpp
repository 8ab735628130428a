#pragma once

#include <string>

#include "lib/io/hdf5.hpp"

namespace gradtool::hdf5 {

/// Opens `path` read-only, also while or after a SWMR writer has it. Fault::data when it is no regular file, not HDF5,
/// truncated, damaged, or open elsewhere for plain writing.
[[nodiscard]] File open_for_reading(const std::string& path);

}  // namespace gradtool::hdf5
