#pragma once

#include <string>

#include "tests/fuzz/choices.hpp"

namespace gradtool::fuzz {

/// Writes at `path` an HDF5 file that is a gradient file, or almost one: every attribute, type, extent, layout, link
/// and member may, as `choices` decide, be odd, missing or wrong. All of it is made through HDF5, so that what the
/// reader meets are HDF5's truths and not HDF5's own troubles with damaged files.
void build_gradient_file(const std::string& path, Choices& choices);

}  // namespace gradtool::fuzz
