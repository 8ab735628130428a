#include "lib/bench/modelled.hpp"

#include <fmt/format.h>

#include "lib/bench/cells.hpp"
#include "lib/bench/cost_model.hpp"
#include "lib/bench/iteration.hpp"

namespace gradtool {
namespace {

/// A measured row's cells without what was measured and is not what a modelled row says.
std::vector<Cell> cleared(const Table& table, std::size_t row) {
  std::vector<Cell> cells = table.rows()[row];
  for (std::size_t c = 0; c < cells.size(); ++c) {
    for (const char* what :
         {"_us_", "_noise", "_gbps", "_share", "samples", "breakeven", "speedup", "headroom", "pareto"}) {
      if (table.columns()[c].name.find(what) != std::string::npos) cells[c] = {};
    }
  }
  return cells;
}

void add_row(Table& table, const ModelBasis& basis, const std::vector<double>& ready, const Network& network, int nodes,
             const BenchOptions& options) {
  const int ranks = nodes * network.node;
  const auto measured = static_cast<int>(number(table, basis.row, "ranks").value_or(1));
  std::vector<Cell> cells = cleared(table, basis.row);
  const auto set = [&](std::string_view column, Cell value) { cells[table.index_of(column)] = std::move(value); };
  const bool decodes_all = basis.scheme == Scheme::gather && basis.spec.descriptor->aggregation != Aggregation::none;
  const double decodes = decodes_all ? static_cast<double>(ranks) / measured : 1.0;
  ModelledStep step;
  std::vector<UnitCost> costs;
  for (std::size_t u = 0; u < basis.units.size(); ++u) {
    const UnitProfile& unit = basis.units[u];
    const ModelledStep sent = model_step(unit.uses, network, measured, ranks);
    step.seconds += sent.seconds;
    step.wire_bytes += sent.wire_bytes;
    costs.push_back(
        {.ready = ready[u], .encode = unit.encode, .communicate = sent.seconds, .decode = unit.decode * decodes});
  }
  const double encode = number(table, basis.row, "encode_us_median").value_or(0.0);
  const double decode = number(table, basis.row, "decode_us_median").value_or(0.0) * decodes;
  const double raw = number(table, basis.row, "raw_bytes").value_or(0.0);
  const double p = ranks;
  set("network", network.name);
  set("time_source", std::string{"modelled"});
  set("comm", std::string{"model"});
  set("all_reduce", {});
  set("ranks", std::int64_t{ranks});
  set("alpha_us", network.link.alpha * 1e6);
  set("link_gbit_s", network.link.beta * 8e-9);
  set("node", std::int64_t{network.node});
  set("wire_bytes_per_rank", step.wire_bytes);
  set("wire_ratio", step.wire_bytes > 0.0 ? Cell{2.0 * (p - 1.0) / p * raw / step.wire_bytes} : Cell{});
  set("encode_us_median", encode);
  set("comm_us_median", step.seconds * 1e6);
  set("decode_us_median", decode);
  const double total = encode + step.seconds * 1e6 + decode;
  set("total_us_median", total);
  if (total > 0.0) set("algbw_gbps", raw / total / 1e3);
  if (total > 0.0) set("busbw_gbps", raw / total / 1e3 * 2.0 * (p - 1.0) / p);
  if (options.compute_seconds > 0.0) {
    set("compute_ms", options.compute_seconds * 1e3);
    set("overlap", std::string{options.overlap == Overlap::bucket ? "bucket" : "none"});
    set("iteration_ms", iteration_seconds(costs, options.compute_seconds, options.overlap) * 1e3);
  }
  const std::string before = text(table, basis.row, "message");
  set("message",
      fmt::format("{}{}errors and payload as measured on {} ranks", before, before.empty() ? "" : "; ", measured));
  table.add(std::move(cells));
}

}  // namespace

void add_modelled(Table& table, const std::vector<ModelBasis>& bases, const std::vector<double>& ready,
                  const BenchOptions& options) {
  for (const auto& network : options.networks) {
    for (const int count : options.nodes) {
      for (const auto& basis : bases) add_row(table, basis, ready, network, count, options);
    }
  }
}

}  // namespace gradtool
