#pragma once

#include <string>

#include "tests/fuzz/choices.hpp"

namespace gradtool::fuzz {

/// Changes single bytes of the values that the file at `path` stores, compressed or not, or cuts its end off; mostly
/// does neither. The structure of the file is left alone: gradtool reads values of chunks itself, while HDF5 1.10 has
/// known faults of its own where it parses damaged structure.
void damage_values(const std::string& path, Choices& choices);

}  // namespace gradtool::fuzz
