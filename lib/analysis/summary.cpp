#include "lib/analysis/summary.hpp"

#include <algorithm>
#include <string_view>

namespace gradtool {
namespace {

/// Columns of the summary, in order; each is taken from the first table that has it.
constexpr std::string_view kChosen[] = {"schema_version",
                                        "file",
                                        "model",
                                        "tensor",
                                        "kind",
                                        "elements",
                                        "workers",
                                        "first_step",
                                        "last_step",
                                        "status",
                                        "message",
                                        "raw_share_15",
                                        "fft_share_15",
                                        "fft_advantage_15_db",
                                        "lag1_autocorrelation",
                                        "worker_pearson_mean",
                                        "step_pearson_mean_gradient",
                                        "samples",
                                        "components_99",
                                        "components_limit",
                                        "holdout_nmse",
                                        "source",
                                        "ratio_q50",
                                        "pass_share_1",
                                        "pass_share_2",
                                        "noise_pass_share_1",
                                        "undefined_share",
                                        "std",
                                        "excess_kurtosis",
                                        "zero_fraction"};

/// Tables with one row for each tensor: the first of every analysis.
std::vector<const Table*> per_tensor(const std::vector<Table>& tables) {
  std::vector<const Table*> chosen;
  for (const auto& table : tables) {
    const auto& columns = table.columns();
    if (std::any_of(columns.begin(), columns.end(), [](const Column& c) { return c.name == "status"; })) {
      chosen.push_back(&table);
    }
  }
  return chosen;
}

struct Source {
  const Table* table;
  std::size_t column;
};

}  // namespace

Table summarise(const std::vector<Table>& tables) {
  const auto sources = per_tensor(tables);
  std::vector<Column> columns;
  std::vector<Source> from;
  for (const std::string_view name : kChosen) {
    for (const Table* table : sources) {
      const auto& theirs = table->columns();
      const auto found = std::find_if(theirs.begin(), theirs.end(), [&](const Column& c) { return c.name == name; });
      if (found == theirs.end()) continue;
      columns.push_back(*found);
      from.push_back({table, static_cast<std::size_t>(found - theirs.begin())});
      break;
    }
  }
  Table summary{"summary", std::move(columns)};
  const std::size_t rows = sources.empty() ? 0 : sources.front()->rows().size();
  for (std::size_t r = 0; r < rows; ++r) {
    std::vector<Cell> row;
    row.reserve(from.size());
    for (const auto& source : from) row.push_back(source.table->rows()[r][source.column]);
    summary.add(std::move(row));
  }
  return summary;
}

}  // namespace gradtool
