#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "lib/bench/bench.hpp"
#include "lib/bench/cost_model.hpp"

namespace gradtool {

/// A measured row, and what the model needs to know about it.
struct ModelBasis {
  std::size_t row = 0;  ///< isolated, all tensors, status ok
  CodecSpec spec;
  Scheme scheme = Scheme::automatic;  ///< as it rides
  CollectiveUses uses = no_uses();
};

/// For every network and number of nodes a row for every basis: measured encode and decode times, counted bytes, and
/// the alpha-beta model between them (cost_model.hpp); time_source is `modelled`, `ranks` nodes times the ranks of a
/// node. A gather decodes every rank's payload, so its decode time grows with the ranks; other schemes' does not.
/// Errors are those of the measured ranks, which the message says. speedup_vs_none, headroom_vs_noop and pareto compare
/// rows of the same network and ranks.
void add_modelled(Table& table, const std::vector<ModelBasis>& bases, const std::vector<Network>& networks,
                  const std::vector<int>& nodes);

/// For people: how much faster than uncompressed each codec is, a column for each network and number of nodes.
/// Empty when there are no modelled rows.
[[nodiscard]] std::string modelled_table(const Table& table);

/// One sentence for each network and number of nodes: which codec with an error of at most `max_nmse` is fastest, what
/// it gains over no compression, or that none does. The error of a codec that delays what it sends (error feedback, or
/// a memory of its own) is cumulative_nmse, of others nmse.
[[nodiscard]] std::string advise(const Table& table, std::optional<double> max_nmse);

}  // namespace gradtool
