#include <fmt/format.h>

#include "lib/bench/cost_model.hpp"
#include "lib/bench/result.hpp"

namespace gradtool {
namespace {

ResultRow modelled_row(const ResultRow& measured, const Network& network, int machines, const ModelSetting& setting) {
  const int ranks = machines * network.node;
  const bool decodes_all =
      measured.scheme == Scheme::gather && measured.codec.descriptor->aggregation != Aggregation::none;
  const double decodes = decodes_all ? static_cast<double>(ranks) / measured.ranks : 1.0;
  ModelledStep step;
  std::vector<UnitCost> costs;
  for (std::size_t u = 0; u < measured.units.size(); ++u) {
    const UnitProfile& unit = measured.units[u];
    const ModelledStep sent = model_step(unit.uses, network, measured.ranks, ranks);
    step.seconds += sent.seconds;
    step.wire_bytes += sent.wire_bytes;
    costs.push_back({.ready = setting.ready[u],
                     .encode = unit.encode,
                     .communicate = sent.seconds,
                     .decode = unit.decode * decodes});
  }
  ResultRow row = measured;
  row.network = network;
  row.comm = "model";
  row.ranks = ranks;
  row.bytes->wire_per_rank = step.wire_bytes;
  row.encode = PhaseSummary{.median = measured.encode->median};
  row.communicate = PhaseSummary{.median = step.seconds};
  row.decode = PhaseSummary{.median = measured.decode->median * decodes};
  row.total = PhaseSummary{.median = row.encode->median + step.seconds + row.decode->median};
  row.samples.clear();
  row.units.clear();
  row.verdict = {};
  if (setting.compute_seconds > 0.0) {
    row.iteration = {.compute_seconds = setting.compute_seconds,
                     .overlap = setting.overlap,
                     .seconds = iteration_seconds(costs, setting.compute_seconds, setting.overlap)};
  }
  row.message = fmt::format("{}{}errors and payload as measured on {} ranks", measured.message,
                            measured.message.empty() ? "" : "; ", measured.ranks);
  return row;
}

}  // namespace

void add_modelled(std::vector<ResultRow>& rows, const ModelSetting& setting) {
  const std::size_t measured = rows.size();
  for (const auto& network : setting.networks) {
    for (const int machines : setting.machines) {
      for (std::size_t i = 0; i < measured; ++i) {
        if (rows[i].units.empty()) continue;  // concurrent, not timed, or of one tensor
        rows.push_back(modelled_row(rows[i], network, machines, setting));
      }
    }
  }
}

}  // namespace gradtool
