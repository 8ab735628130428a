// What `gradtool tune` says of a search: to people, and in its record.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "lib/bench/advice.hpp"
#include "lib/core/text.hpp"
#include "lib/report/table.hpp"
#include "lib/tune/tune.hpp"

namespace gradtool {
namespace {

/// As a shell takes it for one word.
std::string shell_word(const std::string& text) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=,@%+";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string::npos) return text;
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? std::string{"'\\''"} : std::string{c};
  return word + "'";
}

const ResultRow* uncompressed(const TuneReport& report) {
  for (const ResultRow& row : report.bench.rows) {
    if (row.modelled() && row.codec.name() == "none") return &row;
  }
  return nullptr;
}

std::string front_text(const TuneReport& report, const std::vector<const ResultRow*>& front, Style style) {
  const ResultRow* none = uncompressed(report);
  const std::vector<std::string> header{"codec", "error", front.front()->iteration ? "iteration" : "step", "faster",
                                        "ratio"};
  std::vector<std::vector<std::string>> lines;
  lines.reserve(front.size());
  for (const ResultRow* row : front) {
    lines.push_back({short_name(*row), fmt::format("{:.2g}", judged_error(*row)), human_seconds(judged_seconds(*row)),
                     none == nullptr ? "-" : fmt::format("{:.2f}", judged_seconds(*none) / judged_seconds(*row)),
                     fmt::format("{:.4g}", row->payload_ratio().value_or(0.0))});
  }
  const std::vector<bool> right{false, true, true, true, true};
  return style == Style::markdown ? markdown_rows(header, lines, right) + "\n" : format_rows(header, lines, right, 40);
}

}  // namespace

std::string reproducing_command(const TuneOptions& options, const ResultRow& row) {
  const BenchOptions& bench = options.bench;
  std::string command = fmt::format(
      "gradtool bench {} --codec {} --granularity {} --timing isolated --network {} --nodes {}", shell_word(bench.file),
      shell_word(spec_of(row)), row.granularity, shell_word(row.network->name), row.ranks / row.network->node);
  if (row.iteration) {
    command += fmt::format(" --compute-ms {:g}", row.iteration->compute_seconds * 1e3);
    if (bench.overlap == Overlap::none) command += " --overlap none";
  } else if (bench.computation == Computation::none) {
    command += " --compute-ms none";
  }
  if (short_name(row) != spec_of(row) || bench.scheme != Scheme::automatic)
    command += fmt::format(" --reduce {}", name_of(row.scheme));
  if (bench.baseline) command += fmt::format(" --baseline-dtype {}", type_words(row.baseline_dtype));
  if (bench.ranks > 0) command += fmt::format(" --ranks {}", bench.ranks);
  if (bench.threads > 0) command += fmt::format(" --threads {}", bench.threads);
  if (bench.device != "cpu") command += fmt::format(" --device {}", bench.device);
  if (bench.seed != 1) command += fmt::format(" --seed {}", bench.seed);
  if (!bench.layers.empty()) command += fmt::format(" --layers {}", shell_word(bench.layers));
  return command + " --advise" + (options.limit_given ? fmt::format(" --max-nmse {:g}", options.max_error) : "");
}

std::string tune_text(const TuneOptions& options, const TuneReport& report, Style style) {
  const auto paragraph = [style](const std::string& text) {
    return style == Style::markdown ? text + "\n\n" : wrapped(text, 80);
  };
  std::string text =
      advise(report.bench.rows, options.limit_given ? Acceptance{options.max_error} : Acceptance{}, style);
  if (style != Style::markdown) text += "\n";
  const auto front = tuned_front(report, options.max_error);
  if (!front.empty()) {
    text += paragraph("What no other setting beats in both error and time:") + front_text(report, front, style);
    text += style == Style::markdown ? "```\n" : "\nTo measure one of them again:\n";
    for (const ResultRow* row : front)
      text += (style == Style::markdown ? "" : "  ") + reproducing_command(options, *row) + "\n";
    text += style == Style::markdown ? "```\n\n" : "\n";
  }
  std::size_t tried = 0, asked = 0, idle = 0;
  std::string rounds;
  for (const auto& round : report.rounds) {
    tried += round.measured;
    asked += round.settings - round.idle;
    idle += round.idle;
    rounds += fmt::format("{}{} over {} step{}", rounds.empty() ? "" : ", ", round.measured, round.steps,
                          round.steps == 1 ? "" : "s");
  }
  text +=
      paragraph(fmt::format("Measured were {} settings ({}), and in full the {} that were left. Errors and the codecs' "
                            "times are measured, the "
                            "network's are modelled. It took {}.",
                            tried, rounds, report.search.finalists.size(), human_seconds(report.seconds)));
  if (tried < asked)
    text += paragraph(fmt::format("The budget of {} was over before {} of them were tried: --budget gives more.",
                                  human_seconds(options.budget_seconds), asked - tried));
  if (!report.untried.empty())
    text += paragraph(fmt::format("There was no time to look at {} at all, so a faster codec may be among them.",
                                  joined(report.untried, ", ")));
  if (idle > 0)
    text += paragraph(fmt::format("{} were left out because their method was not at work in so few steps.", idle));
  return text;
}

nlohmann::ordered_json tune_record(const TuneOptions& options, const TuneReport& report) {
  nlohmann::ordered_json out = record(options.bench, report.bench);
  auto& tune = out["tune"];
  tune["max_nmse"] = options.max_error;
  tune["budget_seconds"] = options.budget_seconds;
  tune["seconds"] = report.seconds;
  tune["untried"] = report.untried;
  tune["finalists"] = report.search.finalists;
  for (const auto& round : report.rounds)
    tune["rounds"].push_back(
        {{"steps", round.steps}, {"settings", round.settings}, {"measured", round.measured}, {"idle", round.idle}});
  for (const Trial& trial : report.search.trials) {
    nlohmann::ordered_json one{{"codec", trial.setting.spec}, {"round", trial.round + 1}};
    one["expected_error"] = trial.found ? nlohmann::ordered_json(trial.found->error) : nlohmann::ordered_json();
    one["seconds"] = trial.found ? nlohmann::ordered_json(trial.found->seconds) : nlohmann::ordered_json();
    tune["trials"].push_back(std::move(one));
  }
  auto& front = tune["front"] = nlohmann::ordered_json::array();
  for (const ResultRow* row : tuned_front(report, options.max_error)) {
    front.push_back({{"codec", spec_of(*row)},
                     {"reduce", name_of(row->scheme)},
                     {"error", judged_error(*row)},
                     {"seconds", judged_seconds(*row)},
                     {"command", reproducing_command(options, *row)}});
  }
  return out;
}

}  // namespace gradtool
