#include "lib/page/bench_figures.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "lib/advice/own_trial.hpp"
#include "lib/bench/gate.hpp"
#include "lib/core/text.hpp"
#include "lib/page/bench_sheet.hpp"

namespace gradtool {
namespace {

std::string meaning_of(const std::string& network) {
  for (const NetworkProfile& profile : network_profiles()) {
    if (profile.name == network) return std::string{profile.meaning};
  }
  return {};
}

std::string title_of(const BenchSheet& sheet) {
  const BenchModel& model = sheet.model;
  if (model.record.rows.empty()) return sheet.source.origin.file;
  const ResultRow& any = model.record.rows.front();
  return fmt::format("{}{}, gradients of {} ranks", any.model.empty() ? "" : any.model + ", ", any.file,
                     any.measured_ranks);
}

void add_verdicts(BenchSheet& sheet) {
  const BenchModel& model = sheet.model;
  for (const NetworkAdvice& one : model.advice) {
    NetworkVerdict verdict{.network = one.group.network,
                           .meaning = meaning_of(one.group.network),
                           .ranks = one.group.ranks,
                           .answer = one.answer,
                           .codec = one.taken == nullptr ? "" : model.name(*one.taken),
                           .speedup = 1.0,
                           .reasons = one.reasons,
                           .others = one.others};
    if (one.taken != nullptr) {
      verdict.speedup = judged_seconds(*one.none) / judged_seconds(*one.taken);
      verdict.in_pytorch = in_pytorch(one);
    }
    sheet.figures.verdicts.push_back(std::move(verdict));
  }
  if (sheet.options.acceptance.trials && !model.advice.empty()) {
    for (auto& sentence : sheet.options.acceptance.trials->verdicts()) sheet.figures.job.push_back(std::move(sentence));
  }
  if (!model.advice.empty()) sheet.figures.text = advise(model.modelled, sheet.options.acceptance);
  if (!model.advice.empty()) sheet.figures.basis = advice_basis(*model.advice.front().none, sheet.options.acceptance);
}

void note_sizes(BenchSheet& sheet) {
  const BenchModel& model = sheet.model;
  for (const NetworkGates& gates : gates_of(model.modelled)) {
    std::vector<std::string> codecs;
    for (const ResultRow* row : gates.rows) {
      codecs.push_back(fmt::format("{} {} ({:.2f} times as fast at {})", short_name(*row),
                                   pays_text(*row, model.modelled), *row->verdict.speedup_vs_none,
                                   human_bytes(gates.largest)));
    }
    sheet.figures.notes.push_back(
        fmt::format("{}, {} ranks: the size of a message from which on a codec pays, by the model: {}", gates.network,
                    gates.ranks, joined(codecs, ", ")));
  }
}

void add_notes(BenchSheet& sheet) {
  const BenchModel& model = sheet.model;
  for (const ResultRow& row : model.measured) {
    if (row.status == ResultRow::Status::ok) continue;
    const std::string note = fmt::format("{}: {}: {}", model.name(row), name_of(row.status), row.message);
    if (std::find(sheet.figures.notes.begin(), sheet.figures.notes.end(), note) == sheet.figures.notes.end())
      sheet.figures.notes.push_back(note);
  }
  if (model.synthetic) note_sizes(sheet);
  const auto replaced = std::find_if(model.record.rows.begin(), model.record.rows.end(),
                                     [](const ResultRow& row) { return row.codec_times != CodecTimes::measured; });
  if (replaced != model.record.rows.end()) {
    sheet.figures.notes.push_back(
        fmt::format("modelled rows of the record have the codec times of {} (--codec-speed); what this page models "
                    "for other networks and speeds has those that were measured",
                    processor_text(*replaced)));
  }
  for (const auto& codec : model.record.unknown_codecs)
    sheet.figures.notes.push_back(codec + ": left out, because this build of gradtool does not know the codec");
}

}  // namespace

BenchFigures bench_figures(const BenchSource& source, const FigureOptions& options, const std::string& suffix,
                           CodecLooks& looks) {
  BenchSheet sheet{source, options, suffix, looks};
  sheet.figures.title = title_of(sheet);
  if (const auto& trace = source.trace) sheet.figures.job = {trace->words() + ".", trace->collectives_words() + "."};
  add_verdicts(sheet);
  add_notes(sheet);
  if (!sheet.model.has_codecs()) {
    for (const char* chart :
         {"break_even", "pareto_bytes", "pareto_time", "phases", "error_steps", "layers", "scaling"})
      sheet.lacks(chart,
                  sheet.model.measured.empty() ? "the bench has no rows" : "no codec was measured, only the baselines");
    return std::move(sheet.figures);
  }
  draw_speeds(sheet);
  draw_pareto(sheet);
  draw_errors(sheet);
  draw_layers(sheet);
  draw_scaling(sheet);
  draw_predicted(sheet);
  return std::move(sheet.figures);
}

}  // namespace gradtool
