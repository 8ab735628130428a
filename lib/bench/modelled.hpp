#pragma once

#include "lib/bench/result.hpp"

namespace gradtool {

/// Sets what a modelled row's units, network, ranks, and times of encoding and decoding come to: the time of
/// communication, the total, bytes on the wire, and the iteration, of which `compute_seconds` and `overlap` are set.
void set_modelled_times(ResultRow& row);

}  // namespace gradtool
