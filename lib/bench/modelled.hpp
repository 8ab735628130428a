#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lib/bench/bench.hpp"

namespace gradtool {

/// A measured row, and what the model needs to know about it.
struct ModelBasis {
  std::size_t row = 0;  ///< isolated, all tensors, status ok
  CodecSpec spec;
  Scheme scheme = Scheme::automatic;  ///< as it rides
  std::vector<UnitProfile> units;
};

/// For every network and number of nodes a row for every basis: measured encode and decode times, counted bytes, and
/// the alpha-beta model between them (cost_model.hpp), unit by unit; time_source is `modelled`, `ranks` nodes times the
/// ranks of a node. A gather decodes every rank's payload, so its decode time grows with the ranks; other schemes' does
/// not. Errors are those of the measured ranks, which the message says. With options.compute_seconds above 0 the row
/// also has the iteration that this makes (iteration.hpp); `ready` has the units' share of the backward pass.
void add_modelled(Table& table, const std::vector<ModelBasis>& bases, const std::vector<double>& ready,
                  const BenchOptions& options);

/// For people: how much faster than uncompressed each codec is, for each network a table with a column for each number
/// of ranks; where iterations were modelled also their scaling efficiency. Empty when there are no modelled rows.
[[nodiscard]] std::string modelled_tables(const Table& table);

/// For each network and number of ranks: which codec with an error (judged_error) of at most `max_nmse` is fastest, by
/// the iteration where it was modelled, and what it gains over no compression; or that none is worth it, and why. A
/// gain of less than 5 % is not. Neighbouring numbers of ranks with the same answer share a line.
[[nodiscard]] std::string advise(const Table& table, double max_nmse);

}  // namespace gradtool
