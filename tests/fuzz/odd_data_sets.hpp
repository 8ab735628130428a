#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/io/hdf5.hpp"
#include "tests/fuzz/choices.hpp"

namespace gradtool::fuzz {

enum class Values { float32, float16, bfloat16, int64, float64 };

/// A data set of these extents, or an odd one: missing, a group, a link, of another type, rank, extent or layout,
/// without values, in compressed chunks, elsewhere, or with values of random bits.
void put_data_set(hid_t parent, const char* name, Values values, std::vector<hsize_t> dims, Choices& choices);

/// A link of an odd kind in place of an object; false where the choice is to have none.
bool put_odd_link(hid_t parent, const char* name, Choices& choices);

}  // namespace gradtool::fuzz
