#pragma once

#include "lib/bench/result.hpp"

namespace gradtool {

/// The network as the row's collectives meet it: beside a hook uncompressed gradients ride the library itself, because
/// a job without a codec registers no hook.
[[nodiscard]] Network carrying(const ResultRow& row, Network network);

/// Sets what a modelled row's units, network, ranks, and times of encoding and decoding come to: the time of
/// communication, the total, bytes on the wire, and the iteration, of which `compute_seconds` and `overlap` are set.
void set_modelled_times(ResultRow& row);

}  // namespace gradtool
