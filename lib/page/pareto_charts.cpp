#include "lib/page/bench_sheet.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "lib/advice/confidence.hpp"
#include "lib/bench/gate.hpp"

namespace gradtool {
namespace {

std::string measured_place(const BenchModel& model) {
  return model.measured.empty() ? "" : fmt::format("measured, {} ranks", model.measured.front().measured_ranks);
}

/// Bytes as the model counts them for each network and its ranks, and as they were counted on the measured ranks.
void draw_bytes(BenchSheet& sheet) {
  const BenchModel& model = sheet.model;
  Table table{"pareto_bytes",
              {{"network", "and how many ranks, modelled; or the ranks that were measured"},
               {"codec", "with the parameters that were given"},
               {"label", "the same with what tells it from others"},
               {"parameters", "all of them"},
               {"wire_bytes_per_rank", "what one rank sends in a step, to all others together"},
               {"payload_bytes", "what one rank's encoder wrote in a step"},
               {"payload_ratio", "uncompressed bytes / payload bytes"},
               {"nmse", "error of a step's mean gradient: squared, relative"},
               {"cumulative_nmse", "of the sum over all steps"},
               {"judged_by", "which of the two the codec is judged by"},
               {"error", "that one"},
               {"shown_as", "colour in the charts"}}};
  const auto add_row = [&](const std::string& place, const ResultRow& row, const Table& from, std::size_t at_row) {
    const auto at = [&](const char* column) { return cell_at(from, at_row, column); };
    const char* judged = judged_column(row);
    table.add({place, model.name(row), codec_label(row, model.measured) + way_words(row), at("params"),
               at("wire_bytes_per_rank"), at("payload_bytes"), at("payload_ratio"), at("nmse"), at("cumulative_nmse"),
               judged, at(judged), sheet.shown_as(model.name(row))});
  };
  for (std::size_t i = 0; i < model.modelled.size(); ++i) {
    const ResultRow& row = model.modelled[i];
    if (row.errors) add_row(sheet.place_name(row.network->name, row.ranks), row, model.modelled_cells, i);
  }
  for (const std::size_t i : sheet.measured_places())
    add_row(measured_place(model), model.record.rows[i], model.record.table, model.record.place[i]);
  if (table.rows().empty()) {
    sheet.lacks("pareto_bytes", "no row of the bench has an error");
    return;
  }
  Blanks filled = sheet.blanks();
  filled["places"].push_back(measured_place(model));
  if (model.modelled.empty()) filled["first_place"] = measured_place(model);
  sheet.add("pareto_bytes", std::move(table), filled);
}

bool may_be_taken(const BenchSheet& sheet, const ResultRow& row) {
  if (row.codec.name() == "noop" || row.status != ResultRow::Status::ok) return false;
  if (row.codec.name() == "none") return true;
  return row.reached && !replaces_mean(row.codec) && is_accepted(row, sheet.options.acceptance);
}
/// Whether the advice takes the modelled row, or may take it and no other that it may take there is better in error
/// or time and no worse in the other.
bool is_best(const BenchSheet& sheet, const ResultRow& row) {
  const BenchModel& model = sheet.model;
  if (std::any_of(model.advice.begin(), model.advice.end(), [&row](auto& one) { return one.taken == &row; }))
    return true;
  const auto beats = [&](const ResultRow& other) {
    if (other.network->name != row.network->name || other.ranks != row.ranks) return false;
    const double error = judged_error(other) - judged_error(row), time = judged_seconds(other) - judged_seconds(row);
    return error <= 0.0 && time <= 0.0 && (error < 0.0 || time < 0.0) && may_be_taken(sheet, other);
  };
  return may_be_taken(sheet, row) && std::none_of(model.modelled.begin(), model.modelled.end(), beats);
}

/// Bars in the fullest network of the chart of phases, whose specification leaves out what takes five times as long
/// as uncompressed.
std::size_t most_drawn(const BenchModel& model) {
  std::size_t most = 0;
  for (const auto& group : modelled_groups(model.modelled)) {
    double none = 0.0;
    for (const ResultRow* row : group.rows) {
      if (row->codec.name() == "none" && row->total) none = std::max(none, row->total->median);
    }
    most = std::max<std::size_t>(
        most, static_cast<std::size_t>(std::count_if(group.rows.begin(), group.rows.end(), [&](const ResultRow* row) {
          return row->total && row->total->median <= 5.0 * none;
        })));
  }
  return most;
}

}  // namespace

void draw_pareto(BenchSheet& sheet) {
  const BenchModel& model = sheet.model;
  draw_bytes(sheet);
  if (model.modelled.empty()) {
    sheet.lacks("pareto_time", "the bench modelled no network");
    sheet.lacks("phases", "the bench modelled no network");
    return;
  }
  Table time{"pareto_time",
             {{"network", "and how many ranks, modelled"},
              {"codec", "with the parameters that were given"},
              {"label", "the same with what tells it from others"},
              {"parameters", "all of them"},
              sheet.time_column(),
              {model.unit.name + "_low", "where it lies with 95 % confidence of the codec's times, from here"},
              {model.unit.name + "_high", "and to here"},
              {"judged_by", "the error that the codec is judged by"},
              {"error", "that one: squared, relative"},
              {"speedup_vs_none", "time of none / time of this codec"},
              {"pareto", "no other codec is better in error or time and no worse in the other"},
              {"best", "the advice may take it, and of those it may take none is better so"},
              {"pays_from", "size of a message from which on it is faster than uncompressed"},
              {"shown_as", "colour in the charts"}}};
  std::vector<Column> heads{{"network", "and how many ranks, modelled"},
                            {"codec", "with the parameters that were given"}};
  const std::vector<std::pair<std::string, std::string>> times{
      {"encode", "encode_us_median"}, {"comm", "comm_us_median"},    {"decode", "decode_us_median"},
      {"total", "total_us_median"},   {"total_low", "total_us_low"}, {"total_high", "total_us_high"}};
  Blanks filled = sheet.blanks();
  for (const auto& [blank, column] : times)
    heads.push_back({filled.at(blank), fmt::format("{} of one step: the bench's column {}", model.unit.words, column)});
  Table phases{"phases", heads};
  for (std::size_t i = 0; i < model.modelled.size(); ++i) {
    const ResultRow& row = model.modelled[i];
    const std::string place = sheet.place_name(row.network->name, row.ranks);
    const TimeRange range{row, model.unit};
    const char* judged = judged_column(row);
    if (row.codec.name() != "noop") {
      time.add({place, model.name(row), codec_label(row, model.measured) + way_words(row),
                cell_at(model.modelled_cells, i, "params"), judged_seconds(row) * model.unit.per_second, range.low,
                range.high, judged, cell_at(model.modelled_cells, i, judged),
                cell_at(model.modelled_cells, i, row.iteration ? "iteration_speedup_vs_none" : "speedup_vs_none"),
                cell_at(model.modelled_cells, i, "pareto"), Cell{is_best(sheet, row)},
                row.gate_bytes ? Cell{gate_text(*row.gate_bytes)} : Cell{}, sheet.shown_as(model.name(row))});
    }
    std::vector<Cell> line{place, model.name(row)};
    for (const auto& [blank, column] : times) line.push_back(sheet.time_at(model.modelled_cells, i, column));
    phases.add(std::move(line));
  }
  sheet.add("pareto_time", std::move(time), filled);
  filled["phases_height"] = 17 * std::max<std::size_t>(3, most_drawn(model));
  sheet.add("phases", std::move(phases), filled);
}

}  // namespace gradtool
