#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "apps/options.hpp"
#include "apps/subcommands.hpp"
#include "lib/bench/bench.hpp"
#include "lib/bench/codec_times.hpp"
#include "lib/capture/catalogue.hpp"
#include "lib/capture/dataset.hpp"
#include "lib/codecs/described.hpp"
#include "lib/codecs/prototype.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/comm/launch.hpp"
#include "lib/core/files.hpp"
#include "lib/core/text.hpp"
#include "lib/core/throw_error.hpp"
#include "lib/report/csv.hpp"
#include "lib/report/json.hpp"
#include "lib/report/table.hpp"

namespace gradtool::app {
namespace {

struct ListArguments {
  std::string what = "codecs";
  std::string json, csv;
  bool markdown = false;
};

using Codecs = std::span<const CodecDescriptor* const>;

std::string parameter_text(const ParamInfo& info) {
  return fmt::format("{}={}", info.name, info.default_value);
}

Table codec_table(Codecs chosen) {
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
  for (const auto* codec : chosen) {
    std::string parameters;
    for (const auto& info : codec->params) parameters += (parameters.empty() ? "" : ",") + parameter_text(info);
    table.add({std::string{codec->name}, parameters, std::string{name_of(codec->aggregation)}, codec->unbiased,
               codec->error_feedback, std::string{name_of(codec->determinism)}, spaces_of(*codec),
               std::string{codec->payload}, std::string{codec->summary}, std::string{codec->reference}});
  }
  return table;
}

Table comm_table() {
  Table table{"comm",
              {{"name", "as in --comm"}, {"available", "here and now"}, {"detail", "what was found or is missing"}}};
  for (const auto& backend : comm_backends()) table.add({backend.name, backend.available, backend.detail});
  return table;
}

/// "3 x 224 x 224, 1000 classes" or "35 tokens of 10000"
std::string input_text(const ModelInput& input) {
  if (input.sequence_length > 0) return fmt::format("{} tokens of {}", input.sequence_length, input.classes);
  return fmt::format("{} x {} x {}, {} classes", input.channels, input.height, input.width, input.classes);
}

Table model_table() {
  Table table{"models",
              {{"name", "as in capture --model"},
               {"parameters", "for the input beside it"},
               {"input", "channels x height x width and classes, or tokens and vocabulary"},
               {"takes", "which data"},
               {"sgd_rate", "default learning rate with sgd"},
               {"adam_rate", "default learning rate with adam and adamw"},
               {"sequence_length", "default, of text"},
               {"summary", "one line"},
               {"reference", "paper, and whose form"}}};
  for (const auto& model : models()) {
    table.add({std::string{model.name}, model.parameters, input_text(model.at), std::string{model.takes},
               model.sgd_rate, model.adam_rate, model.is_text() ? Cell{model.sequence_length} : Cell{},
               std::string{model.summary}, std::string{model.reference}});
  }
  return table;
}

void print_models() {
  for (const auto& model : models()) {
    const std::string length = model.is_text() ? fmt::format(" [{}]", model.sequence_length) : "";
    fmt::print("{:<16}{} parameters for {}\n", model.name, model.parameters, input_text(model.at));
    for (const auto& line : {std::string{model.summary}, fmt::format("takes {}{}", model.takes, length),
                             fmt::format("learning rate {} (sgd), {} (adam, adamw)", model.sgd_rate, model.adam_rate),
                             std::string{model.reference}}) {
      fmt::print("{}", wrapped("  " + line, kWidth, "    "));
    }
  }
}

/// Empty where the folder is the user's to name.
Cell is_there(const DatasetDescription& dataset) {
  if (dataset.folder.empty()) return {};
  return has_training_set(std::string{dataset.name}, std::string{dataset.folder});
}

Table dataset_table() {
  Table table{"datasets",
              {{"name", "as in capture --dataset"},
               {"contents", "one line"},
               {"folder", "where it is looked for without --data-dir"},
               {"there", "whether it is in that folder"},
               {"how", "to get it"}}};
  for (const auto& dataset : datasets()) {
    table.add({std::string{dataset.name}, std::string{dataset.contents}, std::string{dataset.folder}, is_there(dataset),
               std::string{dataset.how}});
  }
  return table;
}

void print_datasets() {
  for (const auto& dataset : datasets()) {
    fmt::print("{}", wrapped(fmt::format("{:<16}{}", dataset.name, dataset.contents), kWidth, "    "));
    const Cell there = is_there(dataset);
    const bool* const found = std::get_if<bool>(&there);
    std::string where{dataset.how};
    if (found != nullptr) {
      where = *found ? fmt::format("in '{}'", dataset.folder)
                     : fmt::format("not in '{}'; {}, or name its folder with --data-dir", dataset.folder, dataset.how);
    }
    fmt::print("{}", wrapped("  " + where, kWidth, "    "));
  }
}

Table preset_table() {
  Table table{"presets",
              {{"name", "as in --codec"},
               {"codec", "what it stands for, which records say"},
               {"meaning", "who sends it, and what it leaves to other options"}}};
  for (const Preset& preset : presets())
    table.add({std::string{preset.name}, std::string{preset.spec}, std::string{preset.meaning}});
  return table;
}

void print_presets() {
  for (const Preset& preset : presets()) {
    fmt::print("{}", wrapped(fmt::format("{:<18} {}", preset.name, preset.spec), kWidth, "    "));
    fmt::print("{}", wrapped(fmt::format("    {}", preset.meaning), kWidth, "    "));
  }
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

/// The values that a parameter may have.
std::string valid_values(const ParamInfo& info) {
  std::string choices{info.choices};
  for (std::size_t at = 0; (at = choices.find('|', at)) != std::string::npos; at += 2) choices.replace(at, 1, ", ");
  if (info.kind == ParamInfo::Kind::choice) return choices;
  return fmt::format("{} to {}{}{}", info.min, info.max, choices.empty() ? "" : ", ", choices);
}

std::string_view error_feedback_text(const CodecDescriptor& codec) {
  return codec.memory ? "decided by the method itself" : codec.error_feedback ? "on by default" : "off by default";
}

/// Markdown, with which the codec's README begins.
std::string markdown_page(const CodecDescriptor& codec) {
  std::string out = fmt::format("\n## {}\n\n{}. {}.\n\n", codec.name, codec.summary, codec.reference);
  if (!codec.description.empty()) out += fmt::format("{}\n\n", codec.description);
  out += fmt::format("- payload: {}\n- aggregation: {}\n- {}\n- error feedback: {}\n- determinism: {}\n", codec.payload,
                     name_of(codec.aggregation), codec.unbiased ? "unbiased" : "biased", error_feedback_text(codec),
                     name_of(codec.determinism));
  if (codec.params.empty()) return out;
  out += "\n| parameter | default | valid | meaning |\n| --- | --- | --- | --- |\n";
  for (const auto& info : codec.params)
    out += fmt::format("| {} | {} | {} | {} |\n", info.name, info.default_value, valid_values(info), info.meaning);
  return out;
}

/// A codec's page, wrapped for the terminal.
std::string terminal_page(const CodecDescriptor& codec) {
  std::string out = wrapped(fmt::format("{}: {}. {}.", codec.name, codec.summary, codec.reference), kWidth, "");
  if (!codec.description.empty()) out += "\n" + wrapped(codec.description, kWidth, "");
  const auto line = [&out](std::string_view label, std::string_view text) {
    out += wrapped(fmt::format("  {:<16}{}", label, text), kWidth, std::string(18, ' '));
  };
  out += "\n";
  line("payload", codec.payload);
  line("memory floor", memory_floor_words(codec));
  line("aggregation", name_of(codec.aggregation));
  line("expectation", codec.unbiased ? "unbiased: over seeds it is the input" : "biased");
  line("error feedback", error_feedback_text(codec));
  line("determinism", name_of(codec.determinism));
  line("runs on", spaces_of(codec));
  out += codec.params.empty() ? "\nIt has no parameters of its own.\n" : "\nParameters:\n";
  for (const auto& info : codec.params) {
    out += wrapped(fmt::format("  {} ({})", parameter_text(info), valid_values(info)), kWidth, "      ");
    out += wrapped(fmt::format("      {}", info.meaning), kWidth, "      ");
    if (!info.search.empty())
      out += wrapped(fmt::format("      gradtool tune begins with {}", info.search), kWidth, "      ");
  }
  if (!codec.memory) {
    out += wrapped("  ef=on, ef=off", kWidth);
    out += wrapped("      error feedback: keep what was not sent and add it to the next step", kWidth, "      ");
    if (codec.aggregation != Aggregation::own && codec.aggregation != Aggregation::none) {
      out += wrapped("  ef=ef21", kWidth);
      out += wrapped("      send the difference to what was sent before, where the codec makes every gradient smaller",
                     kWidth, "      ");
      out += wrapped("  ef=ef21m, eta=0.1", kWidth);
      out +=
          wrapped("      the same of an average over steps, in which a step's gradient weighs eta", kWidth, "      ");
    }
  }
  return out + fmt::format("\nExample: gradtool bench capture.h5 --codec {}{}{}\n", codec.name,
                           codec.params.empty() ? "" : ":",
                           codec.params.empty() ? "" : parameter_text(codec.params.front()));
}

void print_codecs(Codecs chosen) {
  for (const auto* codec : chosen) {
    fmt::print("{:<6} {}\n       {}; {}; {}\n", codec->name, codec->summary, codec->reference, spaces_of(*codec),
               name_of(codec->aggregation));
    for (const auto& info : codec->params) fmt::print("         {:<18} {}\n", parameter_text(info), info.meaning);
  }
  fmt::print("Codecs without a memory of their own also take ef=on|off|ef21|ef21m: error feedback.\n");
  fmt::print(
      "All that ride a sum, a gather or an all-to-all take reduce=sum|gather|hop|alltoall, where --reduce is auto.\n");
  fmt::print("Presets, names for what is deployed (gradtool list presets):");
  for (const Preset& preset : presets()) fmt::print(" {}", preset.name);
  fmt::print("\n");
  for (const auto& codec : codecs_left_out()) fmt::print("Left out: {}\n", how_to_get(codec));
  fmt::print("gradtool list NAME says how a codec works, and what its parameters may be.\n");
}

/// Whether the name is of a list and not of a codec. Throws for what is neither.
bool is_list(const std::string& what) {
  if (is_prototype(what)) return false;
  std::vector<std::string> names = list_names();
  if (std::find(names.begin(), names.end(), what) != names.end()) return true;
  for (const auto* codec : codecs()) names.emplace_back(codec->name);
  for (const auto& codec : codecs_left_out()) names.emplace_back(codec.name);
  for (const Preset& preset : presets()) names.emplace_back(preset.name);
  if (std::find(names.begin(), names.end(), what) != names.end()) return false;
  const std::string near = nearest(what, names);
  throw Error{Fault::usage, near.empty()
                                ? fmt::format("'{}' is not a list and not a codec; write {} or a codec's name", what,
                                              joined(list_names(), ", "))
                                : fmt::format("'{}' is not a list and not a codec; did you mean '{}'?", what, near)};
}

int run(const ListArguments& o) {
  expect_separate_files({}, std::vector<NamedPath>{{"--json", o.json}, {"--csv", o.csv}});
  const bool list = is_list(o.what);
  std::vector<const CodecDescriptor*> chosen;
  const Preset* preset = find_preset(o.what);
  if (!list) {
    const bool parsed = is_prototype(o.what) || preset != nullptr;
    chosen.push_back(parsed ? parse_codec(o.what).descriptor : &find_codec(o.what));
  }
  if (o.what == "codecs") chosen.assign(codecs().begin(), codecs().end());
  if (o.markdown) {
    if (chosen.empty()) throw_error(Fault::usage, "--markdown is for codecs, not for {}", o.what);
    fmt::print("# Codecs\n\nPrinted by `gradtool list {} --markdown`; do not edit.\n", o.what);
    for (const auto* codec : chosen) fmt::print("{}", markdown_page(*codec));
    return 0;
  }
  const Table table = o.what == "comm"       ? comm_table()
                      : o.what == "columns"  ? column_table()
                      : o.what == "models"   ? model_table()
                      : o.what == "datasets" ? dataset_table()
                      : o.what == "presets"  ? preset_table()
                                             : codec_table(chosen);
  if (!o.json.empty())
    save_text(o.json,
              json_text(chosen.empty() ? to_json(table) : nlohmann::ordered_json::parse(described(chosen)), 1) + "\n");
  if (!o.csv.empty()) save_csv(o.csv, table);
  if (!o.json.empty() || !o.csv.empty()) return 0;
  if (preset != nullptr) {
    fmt::print("{}\n", wrapped(fmt::format("{} is the preset {}. {}.", preset->name, preset->spec, preset->meaning),
                               kWidth, ""));
  }
  if (!list)
    fmt::print("{}", terminal_page(*chosen.front()));
  else if (!chosen.empty())
    print_codecs(chosen);
  else if (o.what == "models")
    print_models();
  else if (o.what == "datasets")
    print_datasets();
  else if (o.what == "presets")
    print_presets();
  else
    fmt::print("{}", for_people(table, table.columns().size()));
  return 0;
}

}  // namespace

const std::vector<std::string>& list_names() {
  static const std::vector<std::string> names{"codecs", "comm", "columns", "models", "datasets", "presets"};
  return names;
}

Subcommand add_list(CLI::App& root) {
  auto* app = root.add_subcommand(
      "list", "What there is: codecs, communicators, report columns, models, data sets, presets; or one codec's page");
  auto o = std::make_shared<ListArguments>();
  app->add_option("what", o->what, fmt::format("{}, or the name of a codec for its page", joined(list_names(), ", ")))
      ->capture_default_str();
  app->add_option("--json", o->json, "Write as JSON; - for standard output");
  app->add_option("--csv", o->csv, "Write as CSV; - for standard output");
  app->add_flag("--markdown", o->markdown, "Print codecs as Markdown, as their READMEs begin");
  for (const char* file : {"--json", "--csv"}) app->get_option(file)->type_name("FILE");
  app->get_option("what")->type_name("NAME");
  set_groups(*app, {{"Output", {"--json", "--csv", "--markdown"}}});
  app->footer(
      "Examples:\n  gradtool list\n  gradtool list topk\n  gradtool list comm\n  gradtool list models\n  gradtool list "
      "codecs --json -");
  return {app, [o] { return run(*o); }};
}

}  // namespace gradtool::app
