#pragma once

#include "lib/bench/result.hpp"

namespace gradtool {

/// The network as the collectives of a unit of the row meet it: uncompressed gradients ride the library that lies below
/// the hook, because a job without a codec registers no hook, and the hook hands small buckets to the library.
[[nodiscard]] Network carrying(const ResultRow& row, const UnitProfile& unit, Network network);

/// The ranks on which the collectives of a modelled row count as measured: those of the replay, and of two levels as
/// many machines as it had, of the ranks that the network's machines have.
[[nodiscard]] int counted_ranks(const ResultRow& row);

/// Sets what a modelled row's units, network, ranks, and times of encoding and decoding come to: the time of
/// communication, the total, bytes on the wire, and the iteration, of which `compute_seconds` and `overlap` are set.
void set_modelled_times(ResultRow& row);

/// Sets `in_ddp` of modelled rows of one network and number of ranks, which need the units that all compress: the row
/// as gradtool.ddp_hook sends it over gloo or NCCL, whichever carries it now, else gloo, with gates of its own; a cast
/// as PyTorch's own hook does where that is faster, because it leaves the sum to the library. Rows that DDP cannot send
/// have none: other collectives, two levels, sizes of a sweep. Nor has anything where --library is the hook.
void set_in_ddp(std::span<ResultRow> modelled);

}  // namespace gradtool
