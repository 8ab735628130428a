#include "lib/analysis/analysis.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

namespace gradtool {
namespace {

constexpr std::int64_t kSchemaVersion = 1;

}  // namespace

bool Accumulator::check_finite(std::span<const float> values) {
  const auto bad = std::count_if(values.begin(), values.end(), [](float x) { return !std::isfinite(x); });
  non_finite_ += static_cast<std::uint64_t>(bad);
  return non_finite_ == 0;
}

std::vector<Column> Analysis::leading_columns() {
  return {{"schema_version", "version of this table's columns; columns are only ever added"},
          {"file", "the gradient file as named on the command line"},
          {"model", "the model as the file names it"},
          {"tensor", "name of the parameter tensor, or `all`"},
          {"kind", "conv, linear, expert, router, embedding, recurrent, norm, bias or other; empty for `all`"},
          {"elements", "elements of the tensor; for `all` the sum over the tensors that were not skipped"},
          {"workers", "data-parallel workers W in the file"},
          {"first_step", "position of the first captured step that was studied, from 0"},
          {"last_step", "position of the last one, included"},
          {"status", "`ok`, `skipped` (non-finite values) or `unavailable` (a part is not built in)"},
          {"message", "why the status is not `ok`, or what else to know; empty otherwise"}};
}

std::vector<Cell> Analysis::long_cells(const TensorInfo* tensor, std::string_view kind) const {
  return {kSchemaVersion, scope_.file, tensor != nullptr ? tensor->name : std::string{"all"},
          tensor != nullptr ? tensor->kind : std::string{kind}};
}

std::vector<Cell> Analysis::leading_cells(const TensorInfo* tensor, std::string_view status, std::string_view message) {
  std::string text{message};
  if (tensor != nullptr) {
    if (status == "skipped") {
      ++skipped_;
    } else {
      finished_elements_ += tensor->elements;
    }
  } else if (skipped_ > 0) {
    text += fmt::format("{}{} of {} tensors skipped", text.empty() ? "" : "; ", skipped_, scope_.tensors.size());
  }
  const auto integer = [](auto value) { return Cell{static_cast<std::int64_t>(value)}; };
  return {kSchemaVersion,
          scope_.file,
          scope_.model,
          tensor != nullptr ? tensor->name : std::string{"all"},
          tensor != nullptr ? Cell{tensor->kind} : Cell{},
          integer(tensor != nullptr ? tensor->elements : finished_elements_),
          integer(scope_.workers),
          integer(scope_.first_step),
          integer(scope_.last_step),
          std::string{status},
          text.empty() ? Cell{} : Cell{text}};
}

std::vector<std::size_t> Scope::windows() const {
  std::vector<std::size_t> windows(steps());
  for (std::size_t s = 0; s < windows.size() && !window_of.empty(); ++s) windows[s] = window_of.at(first_step + s);
  return windows;
}

Cell Analysis::iteration_at(std::size_t position) const {
  if (scope_.iterations.empty()) return {};
  return scope_.iterations.at(position);
}

Table& Analysis::make_table(std::string name, std::vector<Column> columns) {
  return tables_.emplace_back(std::move(name), std::move(columns));
}

Table& Analysis::make_long_table(std::string name, std::vector<Column> more) {
  std::vector<Column> columns{
      {"schema_version", "version of this table's columns"},
      {"file", "the gradient file as named on the command line"},
      {"tensor", "name of the parameter tensor, or `all`; tensors that were skipped have no rows"},
      {"kind", "its kind; of a row `all`, the kind of the tensors that it pools, empty where it pools all"}};
  columns.insert(columns.end(), more.begin(), more.end());
  return make_table(std::move(name), std::move(columns));
}

void Analysis::finish(std::size_t tensor, const Accumulator& whole) {
  if (whole.non_finite() > 0) return skip(tensor, whole.non_finite());
  add(tensor, whole);
}

void Analysis::skip(std::size_t tensor, std::uint64_t non_finite) {
  const auto& info = scope_.tensors.at(tensor);
  const std::uint64_t values = info.elements * scope_.steps() * scope_.workers;
  auto row = leading_cells(&info, "skipped", fmt::format("{} of {} values are not finite", non_finite, values));
  row.resize(tables_.front().columns().size());
  tables_.front().add(std::move(row));
}

std::vector<Table> Analysis::tables() {
  add_all();
  return {std::make_move_iterator(tables_.begin()), std::make_move_iterator(tables_.end())};
}

std::vector<std::size_t> evenly_spaced(std::size_t most, std::size_t count) {
  std::vector<std::size_t> chosen(std::min(most, count));
  for (std::size_t i = 0; i < chosen.size(); ++i)
    chosen[i] = chosen.size() == 1 ? 0 : i * (count - 1) / (chosen.size() - 1);
  return chosen;
}

std::vector<Piece> studied_pieces(std::size_t n) {
  constexpr std::size_t kLongest = std::size_t{1} << 18, kMost = 16;
  const std::size_t all = (n + kLongest - 1) / kLongest;
  std::vector<Piece> pieces;
  for (const std::size_t i : evenly_spaced(kMost, all))
    pieces.push_back({n * i / all, n * (i + 1) / all - n * i / all});
  return pieces;
}

Cell optional_cell(std::optional<double> value) {
  if (!value) return {};
  return *value;
}

Cell ratio_cell(double numerator, double denominator) {
  if (denominator == 0.0 || !std::isfinite(denominator)) return {};
  return numerator / denominator;
}

}  // namespace gradtool
