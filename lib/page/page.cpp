#include "lib/page/page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <variant>

#include "lib/core/error.hpp"
#include "lib/page/analysis_figures.hpp"
#include "lib/page/assets.hpp"
#include "lib/page/sources.hpp"
#include "lib/page/training_figures.hpp"
#include "lib/report/csv.hpp"
#include "lib/report/json.hpp"

namespace gradtool {
namespace {

using Json = nlohmann::ordered_json;

/// JSON as it may stand inside a <script>: nothing in it ends the element or opens a comment.
std::string within_script(const Json& json) {
  std::string text = json_text(json);
  for (std::size_t at = 0; (at = text.find('<', at)) != std::string::npos; at += 6) text.replace(at, 1, "\\u003c");
  return text;
}

Json chart_json(const Chart& chart) {
  Json columns = Json::array();
  for (std::size_t i = 0; i < chart.table.columns().size(); ++i) {
    const Column& column = chart.table.columns()[i];
    bool text = false, truth = false;
    for (const auto& row : chart.table.rows()) {
      text = text || std::holds_alternative<Text>(row[i]);
      truth = truth || std::holds_alternative<bool>(row[i]);
    }
    columns.push_back({{"name", column.name},
                       {"meaning", column.meaning},
                       {"type", text    ? "text"
                                : truth ? "truth"
                                        : "number"}});
  }
  return {{"id", chart.id},
          {"title", chart.title},
          {"lead", chart.lead},
          {"min_width", chart.min_width},
          {"file", chart.origin.file},
          {"command", chart.origin.command},
          {"columns", columns},
          {"spec", chart.spec}};
}

Json section_json(const Page::Section& section) {
  const BenchFigures& figures = section.figures;
  Json verdicts = Json::array(), charts = Json::array(), missing = Json::array();
  for (const auto& one : figures.verdicts) {
    verdicts.push_back({{"network", one.network},
                        {"meaning", one.meaning},
                        {"ranks", one.ranks},
                        {"answer", one.answer},
                        {"codec", one.codec},
                        {"speedup", one.speedup},
                        {"reasons", one.reasons},
                        {"in_pytorch",
                         {{"levels", one.in_pytorch.levels},
                          {"where", one.in_pytorch.where},
                          {"call", one.in_pytorch.call},
                          {"remarks", one.in_pytorch.remarks}}},
                        {"others", one.others}});
  }
  for (const auto& chart : figures.charts) charts.push_back(chart_json(chart));
  for (const auto& one : figures.missing)
    missing.push_back({{"title", one.title}, {"needs", one.needs}, {"why", one.why}});
  return {{"kind", section.kind},
          {"title", section.title},
          {"file", section.origin.file},
          {"command", section.origin.command},
          {"job", figures.job},
          {"verdicts", verdicts},
          {"by_speed", figures.by_speed},
          {"basis", figures.basis},
          {"notes", figures.notes},
          {"charts", charts},
          {"missing", missing}};
}

Json page_json(const Page& page) {
  Json sections = Json::array(), files = Json::array();
  for (const auto& section : page.sections) sections.push_back(section_json(section));
  for (const auto& file : page.files) {
    Json facts = Json::array();
    for (const auto& [label, text] : file.facts) facts.push_back({{"label", label}, {"text", text}});
    files.push_back({{"path", file.path}, {"sha256", file.sha256}, {"kind", file.kind}, {"facts", facts}});
  }
  const Json made = provenance();
  return {
      {"command", page.command},
      {"gradtool", made.at("gradtool_version").get<std::string>() + " (" + made.at("commit").get<std::string>() + ")"},
      {"created", made.at("created")},
      {"sections", sections},
      {"files", files},
      {"ignored", page.ignored},
      {"theme", parse_json(asset("theme.json"))}};
}

void replace(std::string& text, std::string_view mark, std::string_view with) {
  const auto at = text.find(mark);
  expects(at != std::string::npos, "page.html lost one of its marks");
  text.replace(at, mark.size(), with);
}

}  // namespace

Page make_page(std::span<const std::string> paths, const FigureOptions& options, const std::string& command) {
  const Sources sources = read_sources(paths);
  Page page{.command = command, .sections = {}, .files = sources.files, .ignored = sources.ignored};
  const auto suffix = [](std::size_t i, std::size_t of) { return of > 1 ? fmt::format("_{}", i + 1) : std::string{}; };
  CodecLooks looks;
  for (std::size_t i = 0; i < sources.benches.size(); ++i) {
    BenchFigures figures = bench_figures(sources.benches[i], options, suffix(i, sources.benches.size()), looks);
    std::string title = figures.title;
    page.sections.push_back({"bench", std::move(title), sources.benches[i].origin, std::move(figures)});
  }
  for (std::size_t i = 0; i < sources.trainings.size(); ++i) {
    BenchFigures figures = training_figures(sources.trainings[i], suffix(i, sources.trainings.size()), looks);
    std::string title = figures.title;
    page.sections.push_back({"training", std::move(title), sources.trainings[i].origin, std::move(figures)});
  }
  for (std::size_t i = 0; i < sources.analyses.size(); ++i) {
    AnalysisFigures figures = analysis_figures(sources.analyses[i], suffix(i, sources.analyses.size()));
    const Origin& origin = sources.analyses[i].tables.begin()->second.first;
    BenchFigures shown;
    shown.notes = std::move(figures.notes);
    shown.charts = std::move(figures.charts);
    shown.missing = std::move(figures.missing);
    page.sections.push_back({"analysis", figures.title, origin, std::move(shown)});
  }
  return page;
}

bool shows_same_files(const std::string& html, const Page& page) {
  return std::all_of(page.files.begin(), page.files.end(), [&](const SourceFile& file) {
    const std::string object = within_script(Json{{"path", file.path}});
    return html.find(object.substr(1, object.size() - 2)) != std::string::npos;  // without the braces
  });
}

std::string html_of(const Page& page) {
  std::string tables;
  for (const auto& section : page.sections) {
    for (const auto& chart : section.figures.charts) {
      std::ostringstream csv;
      write_csv(csv, chart.table);
      tables += fmt::format("<script type=\"application/json\" id=\"{}.csv\">{}</script>\n", chart.id,
                            within_script(csv.str()));
    }
  }
  std::string html{asset("page.html")};
  replace(html, "<!-- page.css -->", fmt::format("<style>\n{}</style>", asset("page.css")));
  // From the last mark to the first, so that no mark is looked for in what was put in.
  replace(html, "<!-- page.js -->", fmt::format("<script>\n{}</script>", asset("page.js")));
  replace(html, "<!-- vega.js -->", fmt::format("<script>\n{}</script>", asset("vega.js")));
  replace(html, "<!-- tables -->", tables);
  replace(html, "<!-- page.json -->",
          fmt::format(R"(<script type="application/json" id="page.json">{}</script>)", within_script(page_json(page))));
  return html;
}

}  // namespace gradtool
