#include "lib/page/analysis_figures.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <numeric>
#include <set>

#include "lib/advice/trained_arms.hpp"
#include "lib/analysis/variance.hpp"

namespace gradtool {
namespace {

// A page is to stay below 6 MB: of more eigenvalues the first slice of each tensor is drawn, of more singular values
// a few of each tensor.
constexpr std::size_t kMostEigenvalues = 12'000;

constexpr std::array kNoiseQuartiles{std::pair{"noise_q25", 0.25}, std::pair{"noise_q50", 0.50},
                                     std::pair{"noise_q75", 0.75}};

class AnalysisCharts {
 public:
  AnalysisCharts(const AnalysisSource& source, const std::string& suffix) : source_{source}, suffix_{suffix} {}

  AnalysisFigures take() {
    out_.title = source_.capture.empty() ? "analysis" : source_.capture;
    notes();
    prediction();
    compaction();
    bases();
    lines("spectrum", "spectrum_bands", {"tensor", "band", "from_nyquist", "to_nyquist", "energy_share"},
          "tensors_or_all", [](const Table&, std::size_t) { return true; });
    lines("welch", "spectra", {"tensor", "order", "frequency", "share"}, "welch_tensors",
          [](const Table& table, std::size_t row) {
            return of_tensor_or_all(table, row) && text_at(table, row, "estimate") == "welch";
          });
    eigenvalues();
    lines("basis_age", "gradiveq_loss", {"tensor", "basis", "age", "nmse"}, "basis_tensors", of_tensor_or_all);
    ranks();
    singular_values();
    tails();
    lines("fits", "fits", {"tensor", "fit", "shape", "distance"}, "fit_tensors", of_tensor_or_all);
    through_layers("workers", "correlation",
                   {"worker_pearson_mean", "worker_pearson_min", "step_pearson_mean_gradient"});
    through_layers("signs", "certainty",
                   {"sign_majority", "chance_majority", "sign_unanimous_share", "chance_unanimous_share"});
    lines("step_lags", "step_lags", {"tensor", "lag", "pearson", "pairs"}, "lag_tensors", of_tensor_or_all);
    variance();
    lines("unambiguous", "unambiguous", {"tensor", "alpha", "pass_share", "sent_share", "wait_steps", "never_share"},
          "certain_tensors", of_tensor_or_all);
    lines("noise_scale", "noise_steps",
          {"tensor", "step", "iteration", "signal", "noise", "noise_scale", "noise_scale_samples"}, "noise_tensors",
          [](const Table& table, std::size_t row) {
            return !text_at(table, row, "noise_scale").empty() && !text_at(table, row, "iteration").empty();
          });
    lines("packets", "packets", {"tensor", "lost", "which", "nmse"}, "packet_tensors", of_tensor_or_all);
    lines("formats", "formats", {"tensor", "format", "vanish_share", "clip_share", "nmse"}, "format_tensors",
          of_tensor_or_all);
    return std::move(out_);
  }

 private:
  /// The table, or null where the run did not write it or it has no rows; `chart` is then missing.
  const Table* table_for(const std::string& name, const std::string& chart) {
    const auto found = source_.tables.find(name);
    if (found == source_.tables.end()) {
      out_.missing.push_back(missing_chart(chart, fmt::format("there is no table {}", name)));
      return nullptr;
    }
    origin_ = found->second.first;
    return &found->second.second;
  }
  void add(const std::string& chart, Table table, const Blanks& blanks) {
    if (table.rows().empty()) {
      out_.missing.push_back(missing_chart(chart, "its table has no numbers"));
      return;
    }
    out_.charts.push_back(make_chart(chart, suffix_, origin_, std::move(table), blanks));
  }

  /// A chart with a field in which a tensor is chosen, whose names are the blank `tensors`.
  void add_of_tensors(const std::string& chart, Table table, const std::string& tensors) {
    const auto names = all_first(tensors_of(table));
    add(chart, std::move(table), {{tensors, names}});
  }

  using Keeps = std::function<bool(const Table&, std::size_t)>;
  static std::vector<std::size_t> rows_where(const Table& table, const Keeps& keeps) {
    std::vector<std::size_t> rows;
    for (std::size_t i = 0; i < table.rows().size(); ++i) {
      if (keeps(table, i)) rows.push_back(i);
    }
    return rows;
  }

  /// Not of the rows that pool the tensors of a kind.
  static bool of_tensor_or_all(const Table& table, std::size_t row) {
    return text_at(table, row, "tensor") != "all" || text_at(table, row, "kind").empty();
  }

  /// A chart of some columns of a table.
  void lines(const std::string& chart, const std::string& from, const std::vector<std::string>& columns,
             const std::string& tensors, const Keeps& keeps) {
    if (const Table* all = table_for(from, chart))
      add_of_tensors(chart, selected(*all, columns, rows_where(*all, keeps)), tensors);
  }

  /// The curves of compaction.csv, and beside them that of PCA, whose basis is learned on other steps
  /// (gradiveq_curve.csv).
  void bases() {
    const Table* all = table_for("compaction", "bases");
    if (all == nullptr) return;
    Table table =
        selected(*all, {"tensor", "order", "basis", "kept", "energy_share"}, rows_where(*all, of_tensor_or_all));
    const auto pca = source_.tables.find("gradiveq_curve");
    for (std::size_t i = 0; pca != source_.tables.end() && i < pca->second.second.rows().size(); ++i) {
      const Table& curve = pca->second.second;
      if (text_at(curve, i, "later_share").empty()) continue;
      for (const char* order : {"native", "HWIO", "sorted"})
        table.add(
            {text_at(curve, i, "tensor"), order, "pca, later steps", curve.at(i, "kept"), curve.at(i, "later_share")});
    }
    const auto tensors = all_first(tensors_of(table));
    add("bases", std::move(table), {{"tensors_or_all", tensors}, {"orders", {"native", "HWIO", "sorted"}}});
  }

  /// The shares of low_rank.csv as one row for each rank.
  void ranks() {
    const Table* all = table_for("low_rank", "ranks");
    if (all == nullptr) return;
    Table table{"ranks",
                {{"tensor", "name of the parameter, or all"},
                 {"rank", "singular values that are kept"},
                 {"energy_share", "share of the energy of the mean gradient in them"}}};
    for (std::size_t i = 0; i < all->rows().size(); ++i) {
      for (const int rank : {1, 2, 4, 8, 16, 32}) {
        const std::string column = fmt::format("rank_{}_share", rank);
        if (!has_column(*all, column) || text_at(*all, i, column).empty()) continue;
        table.add({text_at(*all, i, "tensor"), std::int64_t{rank}, all->at(i, column)});
      }
    }
    add_of_tensors("ranks", std::move(table), "rank_tensors");
  }

  void singular_values() {
    const Table* all = table_for("singular_values", "singular_values");
    if (all == nullptr) return;
    const bool too_many = all->rows().size() > kMostEigenvalues;
    const auto rows = rows_where(*all, [&](const Table& table, std::size_t i) {
      const auto component = static_cast<std::size_t>(number_at(table, i, "component").value_or(1.0));
      const bool on_grid = std::has_single_bit(component) || (component % 3 == 0 && std::has_single_bit(component / 3));
      return !too_many || on_grid;
    });
    if (too_many) out_.notes.emplace_back("of the singular values those at 1, 2, 3, 4, 6, 8, 12, ... are drawn");
    Table table = selected(*all, {"tensor", "component", "energy_share", "cumulative_share"}, rows);
    const auto tensors = tensors_of(table);
    const std::string first = tensors.empty() ? "" : tensors.front();
    add("singular_values", std::move(table), {{"singular_tensors", tensors}, {"singular_first", first}});
  }

  /// The quantiles of distribution.csv as one row for each share of the elements that are larger.
  void tails() {
    const Table* all = table_for("distribution", "tails");
    if (all == nullptr) return;
    Table table{"tails",
                {{"tensor", "name of the parameter, or all"},
                 {"larger_share", "share of the elements whose magnitude is larger"},
                 {"magnitude", "the magnitude over the root mean square of a gradient"},
                 {"tail_index", "alpha: beyond 1 % the share falls as magnitude^-alpha"}}};
    for (std::size_t i = 0; i < all->rows().size(); ++i) {
      for (const auto& [column, share] : {std::pair{"magnitude_q50", 0.5}, std::pair{"magnitude_q90", 0.1},
                                          std::pair{"magnitude_q99", 0.01}, std::pair{"magnitude_q99_9", 0.001}}) {
        if (!of_tensor_or_all(*all, i) || number_at(*all, i, column).value_or(0.0) <= 0.0) continue;
        table.add({text_at(*all, i, "tensor"), share, all->at(i, column), all->at(i, "tail_index")});
      }
    }
    add_of_tensors("tails", std::move(table), "tail_tensors");
  }

  /// `columns` of a table with a row for each tensor, over the tensors' positions in the model; rows without the first
  /// of them are left out.
  void through_layers(const std::string& chart, const std::string& from, std::vector<std::string> columns) {
    const Table* all = table_for(from, chart);
    if (all == nullptr) return;
    std::vector<std::size_t> rows;
    std::vector<std::int64_t> positions;
    std::int64_t position = 0;
    for (std::size_t i = 0; i < all->rows().size(); ++i) {
      if (text_at(*all, i, "tensor") == "all") continue;
      ++position;
      if (text_at(*all, i, columns.front()).empty()) continue;
      rows.push_back(i);
      positions.push_back(position);
    }
    columns.insert(columns.begin(), {"tensor", "kind", "elements"});
    const Table known = selected(*all, columns, rows);
    std::vector<Column> with_position = known.columns();
    with_position.push_back({"position", "of the layer in the model, from 1"});
    Table table{chart, with_position};
    for (std::size_t i = 0; i < rows.size(); ++i) {
      std::vector<Cell> cells = known.rows()[i];
      cells.emplace_back(positions[i]);
      table.add(std::move(cells));
    }
    add(chart, std::move(table), {});
  }

  void prediction() {
    const Table* all = table_for("prediction", "prediction");
    if (all == nullptr) return;
    std::vector<std::size_t> rows(all->rows().size());
    std::iota(rows.begin(), rows.end(), std::size_t{0});
    std::stable_sort(rows.begin(), rows.end(), [&](std::size_t a, std::size_t b) {
      return number_at(*all, a, "predicted_nmse").value_or(0.0) < number_at(*all, b, "predicted_nmse").value_or(0.0);
    });
    Table table = selected(*all, {"codec", "ratio", "predicted_nmse", "from", "measured_nmse", "off"}, rows);
    std::vector<std::string> codecs;
    for (std::size_t i = 0; i < table.rows().size(); ++i) codecs.push_back(text_at(table, i, "codec"));
    const std::size_t height = 20 * std::max<std::size_t>(2, codecs.size());
    add("prediction", std::move(table),
        {{"prediction_codecs", codecs},
         {"prediction_height", height},
         {"harmless", fmt::format("{:.2g}", harmless_nmse(ErrorKind::other))}});
  }

  void notes() {
    for (const auto& [name, table] : source_.tables) {
      for (std::size_t i = 0; i < table.second.rows().size(); ++i) {
        const std::string status = text_at(table.second, i, "status");
        if (status.empty() || status == "ok") continue;
        out_.notes.push_back(fmt::format("{} of {}: {}: {}", name, text_at(table.second, i, "tensor"), status,
                                         text_at(table.second, i, "message")));
      }
    }
  }

  /// Names in the order in which they first appear.
  static std::vector<std::string> tensors_of(const Table& table) {
    std::vector<std::string> names;
    std::set<std::string> seen;
    for (std::size_t i = 0; i < table.rows().size(); ++i) {
      if (std::string name = text_at(table, i, "tensor"); seen.insert(name).second) names.push_back(std::move(name));
    }
    return names;
  }
  static std::vector<std::string> all_first(std::vector<std::string> names) {
    std::stable_partition(names.begin(), names.end(), [](const std::string& name) { return name == "all"; });
    return names;
  }

  void compaction() {
    const Table* spectrum = table_for("spectrum", "compaction");
    if (spectrum == nullptr) return;
    Table table{"compaction",
                {{"tensor", "name of the parameter, or all"},
                 {"kept", "values: the largest values; frequencies: the strongest ones"},
                 {"kept_percent", "share of the numbers that is kept, percent"},
                 {"energy_share", "share of the gradient's energy in them"}}};
    for (std::size_t i = 0; i < spectrum->rows().size(); ++i) {
      for (const auto& [kept, column] : {std::pair{"values", "raw_share_"}, std::pair{"frequencies", "fft_share_"}}) {
        for (const int percent : {1, 5, 10, 15, 25}) {
          const std::string name = fmt::format("{}{:02}", column, percent);
          if (!has_column(*spectrum, name) || text_at(*spectrum, i, name).empty()) continue;
          table.add({text_at(*spectrum, i, "tensor"), kept, std::int64_t{percent}, spectrum->at(i, name)});
        }
      }
    }
    add_of_tensors("compaction", std::move(table), "tensors_or_all");
  }

  void eigenvalues() {
    const Table* all = table_for("eigenvalues", "eigenvalues");
    if (all == nullptr) return;
    const bool too_many = all->rows().size() > kMostEigenvalues;
    const auto rows = rows_where(
        *all, [&](const Table& table, std::size_t i) { return !too_many || text_at(table, i, "slice") == "0"; });
    if (too_many) {
      out_.notes.push_back(fmt::format("of {} eigenvalues the {} of each tensor's first slice are drawn",
                                       all->rows().size(), rows.size()));
    }
    Table table = selected(*all, {"tensor", "slice", "component", "eigenvalue", "share", "cumulative_share"}, rows);
    const auto tensors = tensors_of(table);
    std::string largest = tensors.empty() ? "" : tensors.front();
    if (const auto found = source_.tables.find("correlation"); found != source_.tables.end()) {
      double most = 0.0;
      for (std::size_t i = 0; i < found->second.second.rows().size(); ++i) {
        const std::string name = text_at(found->second.second, i, "tensor");
        const double elements = number_at(found->second.second, i, "elements").value_or(0.0);
        if (elements <= most || std::find(tensors.begin(), tensors.end(), name) == tensors.end()) continue;
        most = elements;
        largest = name;
      }
    }
    add("eigenvalues", std::move(table), {{"eigen_tensors", tensors}, {"largest_tensor", largest}});
  }

  void variance() {
    const Table* all = table_for("variance", "variance");
    if (all == nullptr) return;
    const auto rows =
        rows_where(*all, [](const Table& table, std::size_t row) { return !text_at(table, row, "ratio_q50").empty(); });
    const Table known = selected(*all,
                                 {"tensor", "kind", "elements", "source", "ratio_q05", "ratio_q25", "ratio_q50",
                                  "ratio_q75", "ratio_q95", "pass_share_1", "noise_pass_share_1"},
                                 rows);
    // Beside them what pure noise would have, so that what is signal can be seen.
    std::vector<Column> columns = known.columns();
    for (const auto& [name, share] : kNoiseQuartiles)
      columns.push_back({name, fmt::format("{:.0f} % quantile that normal noise alone would have", 100 * share)});
    Table table{"variance", columns};
    for (std::size_t i = 0; i < rows.size(); ++i) {
      std::vector<Cell> cells = known.rows()[i];
      const std::string source = text_at(*all, rows[i], "source");
      const bool one_source = source == "second_moment" || source == "workers";
      const auto samples =
          number_at(*all, rows[i], source == "second_moment" ? "micro_batches" : "workers").value_or(0.0);
      for (const auto& [name, share] : kNoiseQuartiles) {
        if (one_source && samples >= 2.0)
          cells.emplace_back(noise_ratio_quantile(static_cast<std::int64_t>(samples), share));
        else
          cells.emplace_back();
      }
      table.add(std::move(cells));
    }
    const auto tensors = all_first(tensors_of(table));
    add("variance", std::move(table),
        {{"variance_tensors", tensors}, {"variance_height", 17 * std::max<std::size_t>(2, tensors.size())}});
  }

  const AnalysisSource& source_;
  std::string suffix_;
  Origin origin_;
  AnalysisFigures out_;
};

}  // namespace

AnalysisFigures analysis_figures(const AnalysisSource& source, const std::string& suffix) {
  return AnalysisCharts{source, suffix}.take();
}

}  // namespace gradtool
