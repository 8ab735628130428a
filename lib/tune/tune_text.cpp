// Describes a search of `gradtool tune`, to people and in its record.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "lib/advice/advice.hpp"
#include "lib/advice/confidence.hpp"
#include "lib/advice/own_trial.hpp"
#include "lib/advice/record.hpp"
#include "lib/advice/reproduce.hpp"
#include "lib/advice/terminal.hpp"
#include "lib/bench/codec_times.hpp"
#include "lib/core/text.hpp"
#include "lib/report/table.hpp"
#include "lib/tune/tune.hpp"

namespace gradtool {
namespace {

const ResultRow* uncompressed(const TuneReport& report) {
  for (const ResultRow& row : report.bench.rows) {
    if (row.modelled() && row.codec.name() == "none") return &row;
  }
  return nullptr;
}

/// The value of --max-nmse, if it was given.
std::optional<double> limit_of(const TuneOptions& options) {
  return options.limit_given ? std::optional{options.max_error} : std::nullopt;
}

/// The command that measures a row of the front again.
std::string command_of(const TuneOptions& options, const ResultRow& row) {
  return reproducing_command(options.bench, row, limit_of(options)) + (options.trials ? options.trials->options() : "");
}

std::string front_text(const TuneReport& report, const Acceptance& acceptance,
                       const std::vector<const ResultRow*>& front, Style style) {
  const ResultRow* none = uncompressed(report);
  const std::vector<std::string> header{"codec",  "error", front.front()->iteration ? "iteration" : "step",
                                        "faster", "ratio", "confidence"};
  std::vector<std::vector<std::string>> lines;
  lines.reserve(front.size());
  for (const ResultRow* row : front) {
    lines.push_back({short_name(*row), fmt::format("{:.2g}", judged_error(*row)), human_seconds(judged_seconds(*row)),
                     none == nullptr ? "-" : fmt::format("{:.2f}", judged_seconds(*none) / judged_seconds(*row)),
                     fmt::format("{:.4g}", ratio_of_codec(*row, report.bench.rows).value_or(0.0)),
                     std::string{confidence_of(*row, acceptance)}});
  }
  const std::vector<bool> right{false, true, true, true, true, false};
  return style == Style::markdown ? markdown_rows(header, lines, right) + "\n" : format_rows(header, lines, right, 30);
}

}  // namespace

std::string tune_text(const TuneOptions& options, const TuneReport& report, Style style) {
  const auto paragraph = [style](const std::string& text) {
    return style == Style::markdown ? text + "\n\n" : wrapped(text, 80);
  };
  const AdviceText advice = advise(report.bench.rows, options.acceptance(), style, {&options.bench, limit_of(options)});
  std::string text = advice.answer;
  if (style != Style::markdown) text += "\n";
  const auto front = tuned_front(options, report);
  if (!front.empty()) {
    text +=
        paragraph("What no other setting beats in both error and time, of what needs a trial and of what needs none:") +
        front_text(report, options.acceptance(), front, style);
    text += style == Style::markdown ? "```\n" : "\nTo measure one of them again:\n";
    for (const ResultRow* row : front)
      text += (style == Style::markdown ? "" : "  ") + command_of(options, *row) + "\n";
    text += style == Style::markdown ? "```\n\n" : "\n";
  }
  std::size_t tried = 0, asked = 0, idle = 0, timeless = 0, lost = 0;
  std::string rounds;
  for (const auto& round : report.rounds) {
    tried += round.measured;
    asked += round.settings - round.idle - round.timeless - round.lost;
    lost += round.lost;
    idle += round.idle;
    timeless += round.timeless;
    rounds += fmt::format("{}{} over {} step{}", rounds.empty() ? "" : ", ", round.measured, round.steps,
                          round.steps == 1 ? "" : "s");
  }
  text +=
      paragraph(fmt::format("{} settings were measured ({}), and the {} that were left in full. Errors and the codecs' "
                            "times are measured, the network's are modelled. All of it took {}.",
                            tried, rounds, report.search.finalists.size(), human_seconds(report.seconds)));
  if (tried < asked)
    text +=
        paragraph(fmt::format("What the search may take of the budget of {} was over before {} more were tried; a "
                              "larger --budget tries them.",
                              human_seconds(options.budget_seconds), asked - tried));
  if (!report.untried.empty())
    text += paragraph(fmt::format("There was no time to look at {} at all, so a faster codec may be among them.",
                                  joined(report.untried, ", ")));
  if (lost > 0)
    text += paragraph(
        fmt::format("Left out because of a loss in a trial (--trained): {} setting{}.", lost, lost == 1 ? "" : "s"));
  if (!report.left_out.empty())
    text += paragraph(fmt::format("A trial has tried these as well, and the budget had no room for them: {}.",
                                  joined(report.left_out, ", ")));
  if (idle > 0)
    text += paragraph(fmt::format("{} were left out because their method was still warming up in so few steps.", idle));
  if (timeless > 0)
    text += paragraph(fmt::format("{} were left out because {} has no times of them: bench them there as well.",
                                  timeless, options.bench.codec_speed->text()));
  return text + advice.reasons;
}

nlohmann::ordered_json tune_record(const TuneOptions& options, const TuneReport& report) {
  nlohmann::ordered_json out = record(options.bench, report.bench);
  auto& tune = out["tune"];
  tune["max_nmse"] = options.max_error;
  tune["budget_seconds"] = options.budget_seconds;
  tune["seconds"] = report.seconds;
  tune["untried"] = report.untried;
  tune["trained"] = nlohmann::ordered_json::array();
  if (options.trials) {
    for (const OwnTrial& trial : options.trials->trials) tune["trained"].push_back(trial.file);
  }
  tune["left_out"] = report.left_out;
  tune["finalists"] = report.search.finalists;
  for (const auto& round : report.rounds)
    tune["rounds"].push_back({{"steps", round.steps},
                              {"settings", round.settings},
                              {"measured", round.measured},
                              {"idle", round.idle},
                              {"lost", round.lost},
                              {"timeless", round.timeless}});
  for (const Trial& trial : report.search.trials) {
    nlohmann::ordered_json one{{"codec", trial.setting.spec}, {"round", trial.round + 1}};
    one["expected_error"] = trial.found ? nlohmann::ordered_json(trial.found->error) : nlohmann::ordered_json();
    one["seconds"] = trial.found ? nlohmann::ordered_json(trial.found->seconds) : nlohmann::ordered_json();
    tune["trials"].push_back(std::move(one));
  }
  auto& front = tune["front"] = nlohmann::ordered_json::array();
  for (const ResultRow* row : tuned_front(options, report)) {
    front.push_back({{"codec", spec_of(*row)},
                     {"reduce", name_of(row->scheme)},
                     {"error", judged_error(*row)},
                     {"seconds", judged_seconds(*row)},
                     {"confidence", confidence_of(*row, options.acceptance())},
                     {"command", command_of(options, *row)}});
  }
  return out;
}

}  // namespace gradtool
