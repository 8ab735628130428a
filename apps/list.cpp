#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "apps/subcommands.hpp"
#include "lib/bench/bench.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/comm/launch.hpp"
#include "lib/core/files.hpp"
#include "lib/report/csv.hpp"
#include "lib/report/json.hpp"
#include "lib/report/table.hpp"

namespace gradtool::app {
namespace {

struct Options {
  std::string what = "codecs";
  std::string json, csv;
};

std::string parameter_text(const ParamInfo& info) {
  return fmt::format("{}={}", info.name, info.default_value);
}

Table codec_table() {
  Table table{"codecs",
              {{"name", "as in --codec"},
               {"parameters", "with their defaults"},
               {"aggregation", "collective it rides on"},
               {"unbiased", "its expectation over seeds is the input"},
               {"error_feedback", "keeps what was not sent"},
               {"determinism", "how far equal input gives equal bytes"},
               {"spaces", "host, cuda"},
               {"payload", "size in bits"},
               {"summary", "one line"},
               {"reference", "paper"}}};
  for (const auto* codec : codecs()) {
    std::string parameters;
    for (const auto& info : codec->params) parameters += (parameters.empty() ? "" : ",") + parameter_text(info);
    table.add({std::string{codec->name}, parameters, std::string{name_of(codec->aggregation)}, codec->unbiased,
               codec->error_feedback, std::string{name_of(codec->determinism)}, spaces_of(*codec),
               std::string{codec->payload}, std::string{codec->summary}, std::string{codec->reference}});
  }
  return table;
}

/// The same with each parameter as an object, for programs.
nlohmann::ordered_json codec_json() {
  auto rows = to_json(codec_table());
  for (std::size_t i = 0; i < codecs().size(); ++i) {
    auto parameters = nlohmann::ordered_json::array();
    for (const auto& info : codecs()[i]->params) {
      nlohmann::ordered_json p{{"name", info.name}, {"default", info.default_value}, {"meaning", info.meaning}};
      if (info.kind != ParamInfo::Kind::choice) p["min"] = info.min, p["max"] = info.max;
      if (!info.choices.empty()) p["choices"] = info.choices;
      parameters.push_back(std::move(p));
    }
    rows[i]["parameters"] = std::move(parameters);
    const CodecDescriptor& codec = *codecs()[i];
    rows[i]["spaces"] = nlohmann::ordered_json::array({"host"});
    if (on_cuda(codec)) rows[i]["spaces"].push_back("cuda");
    rows[i]["description"] = codec.description;
    rows[i]["memory"] = codec.memory;
    rows[i]["by_layout"] = codec.by_layout;
    rows[i]["needs_weight"] = codec.needs_weight;
    rows[i]["needs_second_moment"] = codec.needs_second_moment;
  }
  return rows;
}

Table comm_table() {
  Table table{"comm",
              {{"name", "as in --comm"}, {"available", "here and now"}, {"detail", "what was found or is missing"}}};
  for (const auto& backend : comm_backends()) table.add({backend.name, backend.available, backend.detail});
  return table;
}

Table column_table() {
  Table table{"columns", {{"column", "of gradtool bench"}, {"meaning", "what it says"}}};
  for (const auto& column : bench_columns()) table.add({column.name, column.meaning});
  return table;
}

std::string for_people(const Table& table, std::size_t columns) {
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;
  for (std::size_t i = 0; i < columns; ++i) header.push_back(table.columns()[i].name);
  for (const auto& row : table.rows()) {
    rows.emplace_back();
    for (std::size_t i = 0; i < columns; ++i) rows.back().push_back(to_text(row[i]));
  }
  return format_rows(header, rows, std::vector<bool>(columns, false), 110);
}

/// Markdown, for docs/codecs.md.
std::string codec_pages() {
  std::string out = "# Codecs\n\nPrinted by `gradtool list codecs --markdown`; do not edit.\n";
  for (const auto* codec : codecs()) {
    out += fmt::format("\n## {}\n\n{}. {}.\n\n", codec->name, codec->summary, codec->reference);
    if (!codec->description.empty()) out += fmt::format("{}\n\n", codec->description);
    out += fmt::format("- payload: {}\n- aggregation: {}\n- {}\n- error feedback: {}\n- determinism: {}\n",
                       codec->payload, name_of(codec->aggregation), codec->unbiased ? "unbiased" : "biased",
                       codec->memory           ? "a memory of its own"
                       : codec->error_feedback ? "on by default"
                                               : "off by default",
                       name_of(codec->determinism));
    if (codec->params.empty()) continue;
    out += "\n| parameter | default | valid | meaning |\n| --- | --- | --- | --- |\n";
    for (const auto& info : codec->params) {
      std::string choices{info.choices};
      for (std::size_t at = 0; (at = choices.find('|', at)) != std::string::npos; at += 2) choices.replace(at, 1, ", ");
      std::string valid = info.kind == ParamInfo::Kind::choice ? choices : fmt::format("{} to {}", info.min, info.max);
      if (info.kind != ParamInfo::Kind::choice && !choices.empty()) valid += ", " + choices;
      out += fmt::format("| {} | {} | {} | {} |\n", info.name, info.default_value, valid, info.meaning);
    }
  }
  return out;
}

int run(const Options& o, bool markdown) {
  expect_separate_files({}, std::vector<NamedPath>{{"--json", o.json}, {"--csv", o.csv}});
  const Table table = o.what == "comm" ? comm_table() : o.what == "columns" ? column_table() : codec_table();
  if (markdown) {
    fmt::print("{}", o.what == "codecs" ? codec_pages() : "");
    return 0;
  }
  if (!o.json.empty()) save_text(o.json, (o.what == "codecs" ? codec_json() : to_json(table)).dump(1) + "\n");
  if (!o.csv.empty()) save_csv(o.csv, table);
  if (!o.json.empty() || !o.csv.empty()) return 0;
  if (o.what == "codecs") {
    for (const auto* codec : codecs()) {
      fmt::print("{:<6} {}\n       {}; {}; {}\n", codec->name, codec->summary, codec->reference, spaces_of(*codec),
                 name_of(codec->aggregation));
      for (const auto& info : codec->params) fmt::print("         {:<18} {}\n", parameter_text(info), info.meaning);
    }
    fmt::print("Codecs without a memory of their own also take ef=on|off: error feedback.\n");
  } else {
    fmt::print("{}", for_people(table, table.columns().size()));
  }
  return 0;
}

}  // namespace

Subcommand add_list(CLI::App& root) {
  auto* app = root.add_subcommand("list", "What there is: codecs, communicators, report columns");
  auto o = std::make_shared<Options>();
  auto markdown = std::make_shared<bool>(false);
  app->add_option("what", o->what, "codecs, comm or columns")
      ->check(CLI::IsMember({"codecs", "comm", "columns"}))
      ->capture_default_str();
  app->add_option("--json", o->json, "Write as JSON; - for standard output");
  app->add_option("--csv", o->csv, "Write as CSV; - for standard output");
  app->add_flag("--markdown", *markdown, "Print codecs as the page docs/codecs.md");
  app->footer("Examples:\n  gradtool list\n  gradtool list comm\n  gradtool list codecs --json -");
  return {app, [o, markdown] { return run(*o, *markdown); }};
}

}  // namespace gradtool::app
