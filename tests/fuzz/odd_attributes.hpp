#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/io/hdf5.hpp"
#include "tests/fuzz/choices.hpp"

namespace gradtool::fuzz {

/// Attributes that may be missing, of any type, of any extent, or of an unlikely value.
void put_text(hid_t object, const char* name, std::string value, Choices& choices);
void put_integer(hid_t object, const char* name, std::int64_t value, Choices& choices);
void put_integers(hid_t object, const char* name, std::vector<std::int64_t> values, Choices& choices);

}  // namespace gradtool::fuzz
