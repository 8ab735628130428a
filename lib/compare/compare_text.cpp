// A comparison for people, as Markdown and as JSON; and a run read back from its file.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lib/compare/compare.hpp"
#include "lib/core/files.hpp"
#include "lib/core/text.hpp"
#include "lib/core/throw_error.hpp"
#include "lib/core/utf8.hpp"
#include "lib/page/records.hpp"
#include "lib/report/json.hpp"

namespace gradtool {
namespace {

using Json = nlohmann::ordered_json;

std::size_t count(const Comparison& comparison, TimeVerdict verdict) {
  return static_cast<std::size_t>(std::count_if(comparison.times.begin(), comparison.times.end(),
                                                [&](const TimeDifference& time) { return time.verdict == verdict; }));
}

/// "+6.5 %", and in brackets where that lies.
std::string change_of(const TimeDifference& time) {
  const auto percent = [](double ratio) { return fmt::format("{:+.1f}", 100.0 * (ratio - 1.0)); };
  if (!time.interval) return percent(time.ratio) + " %, noise not known";
  if (time.ratio >= 2.0)
    return fmt::format("{:.2f} times ({:.2f} to {:.2f})", time.ratio, time.interval->low, time.interval->high);
  return fmt::format("{} % ({} to {})", percent(time.ratio), percent(time.interval->low), percent(time.interval->high));
}

std::string counts(const Comparison& c) {
  if (c.times.empty()) return "no times were compared";
  return fmt::format("{} times: {} SAME, {} FASTER, {} SLOWER, {} UNCLEAR", c.times.size(), count(c, TimeVerdict::same),
                     count(c, TimeVerdict::faster), count(c, TimeVerdict::slower), count(c, TimeVerdict::unclear));
}

std::string verdict_of(const Comparison& c) {
  if (c.rows == 0) return "the runs have no row in common";
  if (c.regression()) return "REGRESSION";
  return "no regression";
}

std::string shown(const Cell& cell) {
  const std::string text = printable(to_text(cell));
  return text.empty() ? "nothing" : text;
}

/// Sentences about columns of one run alone, each behind `before`.
std::string columns_text(const Comparison& c, std::string_view before) {
  std::string out;
  const auto add = [&](const std::vector<std::string>& columns, const char* which) {
    if (!columns.empty())
      out += fmt::format("{}not compared, because {} the {} {}\n", before, which,
                         columns.size() == 1 ? "column" : "columns", joined(columns, ", "));
  };
  add(c.columns_only_a, "B lacks");
  add(c.columns_only_b, "A lacks");
  return out;
}

/// Slower first, then faster, unclear and, where they are shown, the same; the largest difference first.
std::vector<const TimeDifference*> shown_times(const Comparison& comparison, bool all) {
  std::vector<const TimeDifference*> times;
  for (const auto& time : comparison.times) {
    if (all || time.verdict != TimeVerdict::same) times.push_back(&time);
  }
  const auto rank = [](const TimeDifference* time) {
    constexpr std::array<int, 4> kOrder{3, 1, 0, 2};
    return kOrder[static_cast<std::size_t>(time->verdict)];
  };
  std::stable_sort(times.begin(), times.end(), [&](auto* a, auto* b) {
    if (rank(a) != rank(b)) return rank(a) < rank(b);
    return std::max(a->ratio, 1.0 / a->ratio) > std::max(b->ratio, 1.0 / b->ratio);
  });
  return times;
}

Json json_list(const std::vector<std::string>& rows) {
  Json list = Json::array();
  for (const auto& row : rows) list.push_back(row);
  return list;
}

}  // namespace

std::string to_text(const Comparison& c, bool all) {
  std::string out = c.other_capture.empty() ? "" : wrapped(fmt::format("The runs are of {}.", c.other_capture), 80);
  if (!c.other_setting.empty()) out += wrapped(fmt::format("Times are of two settings: {}.", c.other_setting), 80);
  out +=
      fmt::format("{} rows of both: bytes and errors {}\n{}\n", c.rows,
                  c.changed.empty() ? "are the same" : fmt::format("differ in {} cells", c.changed.size()), counts(c));
  if (c.versions_differ) out += "payload bytes and element ratios mean something else in the other schema: left out\n";
  out += columns_text(c, "");
  for (const auto& d : c.changed)
    out += fmt::format("CHANGED  {}: {} was {}, is {}\n", d.row, d.column, shown(d.a), shown(d.b));
  for (const auto& row : c.only_a) out += fmt::format("GONE     {}\n", row);
  for (const auto& row : c.only_b) out += fmt::format("NEW      {}\n", row);
  std::vector<std::vector<std::string>> cells;
  for (const TimeDifference* time : shown_times(c, all)) {
    cells.push_back({std::string{name_of(time->verdict)}, time->row, time->phase, human_seconds(time->a),
                     human_seconds(time->b), change_of(*time)});
  }
  if (!cells.empty()) {
    out += "\n" + format_rows({"verdict", "row", "phase", "A", "B", "B against A"}, cells,
                              {false, false, false, true, true, true}, 26);
  }
  return out + fmt::format("{}{}\n", cells.empty() ? "" : "\n", verdict_of(c));
}

std::string to_markdown(const Comparison& c, bool all) {
  std::string out = c.other_capture.empty() ? "" : fmt::format("The runs are of {}.\n\n", c.other_capture);
  if (!c.other_setting.empty()) out += fmt::format("Times are of two settings: {}.\n\n", c.other_setting);
  out +=
      fmt::format("**{}**: {} rows of both, bytes and errors {}; {}.\n", verdict_of(c), c.rows,
                  c.changed.empty() ? "are the same" : fmt::format("differ in {} cells", c.changed.size()), counts(c));
  out += columns_text(c, "\n");
  if (!c.changed.empty() || !c.only_a.empty() || !c.only_b.empty()) {
    out += "\n| row | column | A | B |\n| --- | --- | ---: | ---: |\n";
    for (const auto& d : c.changed)
      out += fmt::format("| `{}` | `{}` | {} | {} |\n", d.row, d.column, shown(d.a), shown(d.b));
    for (const auto& row : c.only_a) out += fmt::format("| `{}` | | there | gone |\n", row);
    for (const auto& row : c.only_b) out += fmt::format("| `{}` | | | new |\n", row);
  }
  const auto times = shown_times(c, all);
  if (!times.empty()) {
    out += "\n| verdict | row | phase | A | B | B against A |\n| --- | --- | --- | ---: | ---: | ---: |\n";
    for (const TimeDifference* time : times) {
      out += fmt::format("| {} | `{}` | {} | {} | {} | {} |\n", name_of(time->verdict), time->row, time->phase,
                         human_seconds(time->a), human_seconds(time->b), change_of(*time));
    }
  }
  return out;
}

Json to_json(const Comparison& c, const CompareOptions& options) {
  Json out;
  out["format"] = "gradtool.compare";
  out["schema_version"] = 1;
  out["provenance"] = provenance();
  out["regression"] = c.regression();
  out["margin"] = options.margin;
  out["tolerance"] = options.tolerance;
  out["other_capture"] = c.other_capture.empty() ? Json{} : Json(c.other_capture);
  out["other_setting"] = c.other_setting.empty() ? Json{} : Json(c.other_setting);
  out["rows"] = c.rows;
  out["changed"] = Json::array();
  for (const auto& d : c.changed)
    out["changed"].push_back({{"row", d.row}, {"column", d.column}, {"a", to_json(d.a)}, {"b", to_json(d.b)}});
  out["only_a"] = json_list(c.only_a);
  out["only_b"] = json_list(c.only_b);
  out["columns_only_a"] = json_list(c.columns_only_a);
  out["columns_only_b"] = json_list(c.columns_only_b);
  out["times"] = Json::array();
  for (const auto& time : c.times) {
    Json one{{"row", time.row},      {"phase", time.phase},  {"verdict", name_of(time.verdict)},
             {"a_us", time.a * 1e6}, {"b_us", time.b * 1e6}, {"ratio", time.ratio}};
    if (time.interval) {
      one["ratio_low"] = time.interval->low;
      one["ratio_high"] = time.interval->high;
      one["p"] = time.p;
    }
    out["times"].push_back(std::move(one));
  }
  return out;
}

BenchRun read_bench_run(const std::string& path) {
  const std::string text = read_file(path, kMostRecordBytes);
  BenchRun run{.path = path};
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos || text[first] != '{') {
    run.table = table_from_csv("bench", text, path);
  } else {
    const Json json = parse_json(text);
    if (json.is_discarded()) {
      throw_error(Fault::data,
                  "{}: no valid JSON, which it has to be, at most {} levels deep; it may have been cut off", path,
                  kMostJsonDepth);
    }
    if (!json.is_object() || json.value("format", Json{}) != "gradtool.bench" || !json.contains("rows"))
      throw_error(Fault::data, "{}: not a record of gradtool bench --json", path);
    const Json& rows = json.at("rows");
    run.table = table_from_json("bench", rows, path);
    if (const Json file = json.value("file", Json::object());
        file.is_object() && file.contains("sha256") && file["sha256"].is_string())
      run.capture_sha256 = file["sha256"].get<std::string>();
    for (const Json& row : rows) {
      auto& samples = run.samples.emplace_back();
      if (!row.contains("samples_us")) continue;
      const Json& of_row = row.at("samples_us");
      std::vector<std::size_t> rounds;
      try {
        if (row.contains("round_samples")) rounds = row.at("round_samples").get<std::vector<std::size_t>>();
        for (std::size_t phase = 0; const char* name : {"encode", "comm", "decode", "total"}) {
          auto& of_phase = samples[phase++];
          if (!of_row.contains(name)) continue;
          for (const double us : of_row.at(name).get<std::vector<double>>()) of_phase.seconds.push_back(us * 1e-6);
          std::size_t sum = 0;
          for (const std::size_t size : rounds) sum += size;
          if (sum == of_phase.seconds.size()) of_phase.rounds = rounds;
        }
      } catch (const Json::exception&) {
        throw_error(Fault::data, "{}: samples_us of a row are not lists of numbers", path);
      }
    }
  }
  expect_known_schema(run.table, path);
  for (const char* column : {"codec", "timing", "time_source", "nmse"}) {
    if (has_column(run.table, column)) continue;
    throw_error(Fault::data, "{}: has no column {}: not written by gradtool bench", path, column);
  }
  return run;
}

}  // namespace gradtool
