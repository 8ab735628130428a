#include "lib/page/bench_sheet.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

namespace gradtool {

void draw_errors(BenchSheet& sheet) {
  const BenchModel& model = sheet.model;
  Table table{"errors",
              {{"codec", "with the parameters that were given"},
               {"iteration", "training iteration of the step"},
               {"nmse", "of the step"},
               {"cumulative_nmse", "of the sums over the steps of the window so far"},
               {"window", "of the training that the step is in, from 0"},
               {"shown_as", "colour in the charts"}}};
  for (const std::size_t i : sheet.measured_places()) {
    const std::string codec = model.name(model.record.rows[i]);
    if (codec == "noop") continue;  // 1, always
    const auto add_step = [&](const Table& steps, std::size_t s) {
      table.add({codec, cell_at(steps, s, "iteration"), cell_at(steps, s, "nmse"), cell_at(steps, s, "cumulative_nmse"),
                 cell_at(steps, s, "window"), sheet.shown_as(codec)});
    };
    if (sheet.source.json) {
      const auto steps =
          sheet.source.json->at("rows").at(model.record.place[i]).value("steps", nlohmann::ordered_json::array());
      const Table one = table_from_json("steps", steps, sheet.source.origin.file);
      for (std::size_t s = 0; s < one.rows().size(); ++s) add_step(one, s);
    } else if (sheet.source.steps) {
      const Table& all = *sheet.source.steps;
      // Tables of older versions lack columns.
      for (std::size_t s = 0; s < all.rows().size(); ++s) {
        const auto same = [&](const char* column) {
          return text_at(all, s, column) == text_at(model.record.table, model.record.place[i], column);
        };
        const auto same_if_there = [&](const char* column) { return !has_column(all, column) || same(column); };
        if (same("codec") && same("params") && same("aggregation") && same("granularity") && same("timing") &&
            same_if_there("tensor") && same_if_there("levels") && same_if_there("seed") && same_if_there("pipeline"))
          add_step(all, s);
      }
    }
  }
  if (table.rows().empty()) {
    sheet.lacks("error_steps", sheet.source.json ? "no codec was measured"
                                                 : "a CSV of rows does not have the steps: --json or --steps-csv does");
    return;
  }
  sheet.add("error_steps", table, sheet.blanks());
  sheet.add("error_sums", std::move(table), sheet.blanks());
}

void draw_layers(BenchSheet& sheet) {
  const BenchModel& model = sheet.model;
  std::map<std::vector<std::string>, const ResultRow*> by_key;
  const auto key = [&](std::size_t place) {
    std::vector<std::string> texts;
    for (const char* column : {"codec", "params", "granularity", "aggregation", "levels"})
      texts.push_back(text_at(model.record.table, place, column));
    return texts;
  };
  for (std::size_t i = 0; i < model.record.rows.size(); ++i)
    by_key.emplace(key(model.record.place[i]), &model.record.rows[i]);
  Table table{"layers",
              {{"codec", "with the parameters that were given"},
               {"tensor", "name of the parameter"},
               {"elements", "of the tensor"},
               {"judged_by", "the error that the codec is judged by"},
               {"error", "that one: squared, relative"}}};
  std::vector<std::string> tensors;
  std::set<std::pair<std::string, std::string>> seen;
  for (std::size_t i = 0; i < model.record.table.rows().size(); ++i) {
    const std::string tensor = text_at(model.record.table, i, "tensor");
    if (tensor == "all" || text_at(model.record.table, i, "nmse").empty()) continue;
    const auto found = by_key.find(key(i));
    if (found == by_key.end()) continue;
    const std::string codec = model.name(*found->second);
    if (codec.starts_with("none") || codec.starts_with("noop") || !seen.emplace(codec, tensor).second) continue;
    const char* judged = judged_column(*found->second);
    table.add(
        {codec, tensor, cell_at(model.record.table, i, "elements"), judged, cell_at(model.record.table, i, judged)});
    if (std::find(tensors.begin(), tensors.end(), tensor) == tensors.end()) tensors.push_back(tensor);
  }
  if (table.rows().empty()) {
    sheet.lacks("layers", "the bench has no rows of single tensors");
    return;
  }
  Blanks filled = sheet.blanks();
  filled["tensors"] = tensors;
  std::set<std::string> columns;
  for (const auto& one : seen) columns.insert(one.first);
  filled["layers_height"] = 13 * std::max<std::size_t>(2, tensors.size());
  // A column of 15 pixels for each codec, beside the names of the layers.
  filled["layers_width"] = std::max<std::size_t>(330, 200 + 15 * columns.size());
  sheet.add("layers", std::move(table), filled);
}

}  // namespace gradtool
