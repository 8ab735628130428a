#include "lib/analysis/summary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "lib/report/table.hpp"

namespace gradtool {
namespace {

/// The columns of the summary, in order. Each is taken from the first table that has it.
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
                                        "best_basis",
                                        "spectral_entropy",
                                        "worker_pearson_mean",
                                        "step_pearson_mean_gradient",
                                        "step_lag_4",
                                        "samples",
                                        "components_99",
                                        "components_limit",
                                        "holdout_nmse",
                                        "own_nmse",
                                        "other_nmse",
                                        "rows",
                                        "columns",
                                        "rank_4_share",
                                        "source",
                                        "ratio_q50",
                                        "pass_share_1",
                                        "pass_share_2",
                                        "noise_pass_share_1",
                                        "undefined_share",
                                        "sign_majority",
                                        "noise_scale",
                                        "noise_scale_samples",
                                        "std",
                                        "excess_kurtosis",
                                        "zero_fraction",
                                        "tail_index",
                                        "best_fit",
                                        "lossless_ratio_limit",
                                        "lost_largest_10",
                                        "importance_q50",
                                        "compared_workers"};

/// The tables with one row for each tensor, which are the first table of every analysis.
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

namespace {

constexpr std::size_t kWidth = 100;
constexpr std::size_t kShownTensors = 8;

/// Access to a row of the summary by column names. A column that was not computed reads as empty.
class Row {
 public:
  Row(const Table& table, std::size_t row) : table_{table}, row_{row} {}

  [[nodiscard]] const Cell* cell(std::string_view column) const {
    const auto& columns = table_.columns();
    const auto found = std::find_if(columns.begin(), columns.end(), [&](const Column& c) { return c.name == column; });
    return found == columns.end() ? nullptr : &table_.rows()[row_][static_cast<std::size_t>(found - columns.begin())];
  }
  [[nodiscard]] std::optional<double> number(std::string_view column) const {
    const Cell* found = cell(column);
    if (found == nullptr) return {};
    if (const auto* real = std::get_if<double>(found)) return *real;
    if (const auto* integer = std::get_if<std::int64_t>(found)) return static_cast<double>(*integer);
    return {};
  }
  [[nodiscard]] std::string text(std::string_view column) const {
    const Cell* found = cell(column);
    return found == nullptr ? std::string{} : to_text(*found);
  }

 private:
  const Table& table_;
  std::size_t row_;
};

std::string wrap(const std::string& text) {
  std::string out = "- ";
  std::size_t length = 2;
  std::size_t start = 0;
  while (start < text.size()) {
    const std::size_t end = std::min(text.find(' ', start), text.size());
    const std::string word = text.substr(start, end - start);
    if (length > 2 && length + 1 + word.size() > kWidth) {
      out += "\n  ";
      length = 2;
    } else if (length > 2) {
      out += ' ';
      ++length;
    }
    out += word;
    length += word.size();
    start = end + 1;
  }
  return out + '\n';
}

struct Shown {
  std::string_view column, header;
  double scale;
  int decimals;
};
constexpr Shown kShown[] = {{"raw_share_15", "topk%", 100, 1},
                            {"fft_share_15", "fft%", 100, 1},
                            {"lag1_autocorrelation", "lag1", 1, 2},
                            {"worker_pearson_mean", "workers", 1, 3},
                            {"step_pearson_mean_gradient", "steps", 1, 3},
                            {"components_99", "d99", 1, 1},
                            {"holdout_nmse", "holdout", 1, 2},
                            {"pass_share_1", "pass%", 100, 1},
                            {"excess_kurtosis", "kurtosis", 1, 1}};

std::string shown_number(std::optional<double> value, const Shown& column) {
  if (!value) return "-";
  std::string text = fmt::format("{:.{}f}", *value * column.scale, column.decimals);
  if (text.front() == '-' && text.find_first_not_of("-0.") == std::string::npos) text.erase(0, 1);
  return text;
}

std::string rows_of(const Table& summary) {
  std::vector<std::string> header{"tensor", "elements"};
  std::vector<const Shown*> shown;
  for (const auto& column : kShown) {
    if (Row{summary, 0}.cell(column.column) == nullptr) continue;
    shown.push_back(&column);
    header.emplace_back(column.header);
  }
  std::vector<std::size_t> order;
  for (std::size_t r = 0; r + 1 < summary.rows().size(); ++r) order.push_back(r);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return Row{summary, a}.number("elements") > Row{summary, b}.number("elements");
  });
  if (order.size() > kShownTensors) order.resize(kShownTensors);
  order.push_back(summary.rows().size() - 1);

  std::vector<std::vector<std::string>> rows;
  for (const std::size_t r : order) {
    const Row row{summary, r};
    std::vector<std::string> cells{row.text("tensor"), row.text("elements")};
    for (const auto* column : shown) {
      cells.push_back(shown_number(row.number(column->column), *column));
    }
    if (row.text("status") == "skipped") cells.back() = "skipped";
    rows.push_back(std::move(cells));
  }
  std::vector<bool> right(header.size(), true);
  right[0] = false;
  // Names of tensors are shortened when the numbers need the width.
  constexpr std::size_t kLongestName = 30, kShortestName = 10;
  for (std::size_t longest = kLongestName;; --longest) {
    std::vector<std::vector<std::string>> cut = rows;
    for (auto& row : cut) row.front() = cut_in_the_middle(row.front(), longest);
    std::string text = format_rows(header, cut, right, longest);
    if (text.find('\n') <= kWidth || longest == kShortestName) return text;
  }
}

std::string about_frequencies(const Table& summary, const Row& all) {
  const auto raw = all.number("raw_share_15"), fft = all.number("fft_share_15");
  if (!raw || !fft) return {};
  std::size_t ahead = 0, counted = 0;
  double ahead_elements = 0, elements = 0;
  for (std::size_t r = 0; r + 1 < summary.rows().size(); ++r) {
    const Row row{summary, r};
    const auto advantage = row.number("fft_advantage_15_db");
    if (!advantage) continue;
    ++counted;
    elements += row.number("elements").value_or(0);
    if (*advantage <= 0) continue;
    ++ahead;
    ahead_elements += row.number("elements").value_or(0);
  }
  return wrap(
      fmt::format("Frequencies: of the energy, the largest 15 % of values hold {:.1f} %, the strongest 15 % of "
                  "frequencies {:.1f} % (white noise: 55.8 and 43.5). {} hold more; frequencies do in {} of {} "
                  "tensors, {:.0f} % of the elements. Whether a codec that keeps them pays, bench decides: it also "
                  "counts the bytes of their places, what rounding loses, and the time.",
                  100 * *raw, 100 * *fft, *fft > *raw ? "Frequencies" : "Values", ahead, counted,
                  elements > 0 ? 100 * ahead_elements / elements : 0.0));
}

std::string about_slices(const Row& all) {
  const auto components = all.number("components_99"), limit = all.number("components_limit");
  if (!components || !limit) return {};
  std::string text =
      fmt::format("Low rank: 99 % of the variance of {:.0f} steps takes {:.1f} components of at most {:.1f}.",
                  all.number("samples").value_or(0), *components, *limit);
  if (const auto left = all.number("holdout_nmse")) {
    text += fmt::format(
        " A basis learned on the first half of the steps loses {:.0f} % of the second half's energy: it {}.",
        100 * *left,
        *left < 0.1   ? "carries over"
        : *left < 0.5 ? "carries over in part"
                      : "does not carry over");
  }
  return wrap(text);
}

/// Says where matrices are of low rank. A shorter side of 16 is needed: of fewer directions, 4 hold much by themselves.
std::string about_matrices(const Table& summary) {
  constexpr double kLeastSide = 16, kLowRank = 0.9;
  std::size_t matrices = 0, low = 0;
  double elements = 0, low_elements = 0;
  for (std::size_t r = 0; r + 1 < summary.rows().size(); ++r) {
    const Row row{summary, r};
    const auto share = row.number("rank_4_share"), rows = row.number("rows"), columns = row.number("columns");
    if (!share || !rows || !columns || std::min(*rows, *columns) < kLeastSide) continue;
    const double size = row.number("elements").value_or(0);
    ++matrices, elements += size;
    if (*share >= kLowRank) ++low, low_elements += size;
  }
  if (low == 0) return {};
  return wrap(
      fmt::format("Matrices: in {} of {} with 16 rows and columns or more, {:.0f} % of their elements, 4 singular "
                  "values hold 90 % or more of the mean gradient's energy: low rank, which powersgd sends.",
                  low, matrices, 100 * low_elements / elements));
}

std::string about_agreement(const Row& all) {
  const auto workers = all.number("worker_pearson_mean"), steps = all.number("step_pearson_mean_gradient");
  std::string text;
  if (workers) {
    const double compared = all.number("compared_workers").value_or(0), in_file = all.number("workers").value_or(0);
    const std::string sample = compared < in_file
                                   ? fmt::format(" (the {:.0f} pairs of {:.0f} evenly spaced ones of {:.0f})",
                                                 compared * (compared - 1) / 2, compared, in_file)
                                   : "";
    text += fmt::format("Workers{} correlate {:.3f}: {}.", sample, *workers,
                        *workers > 0.0
                            ? "about that share of a worker's gradient is common to all, the rest is its own noise"
                            : "what is common to all is too little to be seen among their own noise");
  }
  if (steps) {
    text += fmt::format("{}Consecutive captured steps correlate {:.3f}{}", text.empty() ? "" : " ", *steps,
                        *steps > 0.5 ? ": what one step sent predicts the next." : ".");
  }
  return text.empty() ? text : wrap(text);
}

std::string about_variance(const Row& all) {
  const auto pass = all.number("pass_share_1"), strict = all.number("pass_share_2");
  std::string text;
  if (pass && strict) {
    text = fmt::format("Variance test (over {}): {:.1f} % of the elements pass at alpha = 1, {:.1f} % at 2",
                       all.text("source"), 100 * *pass, 100 * *strict);
    const double silent = all.number("undefined_share").value_or(0);
    if (silent > 0.01) text += fmt::format(" ({:.1f} % are 0 in every sample)", 100 * silent);
    const auto noise = all.number("noise_pass_share_1");
    text += noise ? fmt::format("; noise alone would pass {:.1f} % at alpha = 1.", 100 * *noise) : ".";
  }
  if (const auto kurtosis = all.number("excess_kurtosis")) {
    text += fmt::format("{}Excess kurtosis {:.1f} (normal 0, Laplace 3){}, {:.1f} % exact zeros.",
                        text.empty() ? "" : " ", *kurtosis, *kurtosis > 3 ? ": heavy tails, few values carry much" : "",
                        100 * all.number("zero_fraction").value_or(0));
  }
  return text.empty() ? text : wrap(text);
}

std::string about_noise(const Row& all) {
  const auto scale = all.number("noise_scale"), samples = all.number("noise_scale_samples");
  if (!scale) return {};
  if (*scale < 1.0) {
    return wrap(
        fmt::format("Noise scale: {:.2g} workers' batches{}: the gradient of one batch is more signal than noise, and "
                    "what a codec adds is not hidden by any.",
                    *scale, samples ? fmt::format(", {:.3g} samples", *samples) : std::string{}));
  }
  return wrap(fmt::format("Noise scale: averaged over fewer than {}, a gradient is more noise than signal{}.",
                          samples ? fmt::format("{:.3g} samples ({:.2g} workers' batches)", *samples, *scale)
                                  : fmt::format("{:.2g} workers' batches", *scale),
                          *scale > static_cast<double>(all.number("workers").value_or(0.0))
                              ? ", as it is here: what a codec adds weighs less"
                              : ""));
}

}  // namespace

std::string describe(const Table& summary) {
  if (summary.rows().empty()) return {};
  const Row all{summary, summary.rows().size() - 1};
  return rows_of(summary) + about_frequencies(summary, all) + about_slices(all) + about_matrices(summary) +
         about_agreement(all) + about_variance(all) + about_noise(all);
}

}  // namespace gradtool
