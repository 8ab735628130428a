#include <algorithm>
#include <nlohmann/json.hpp>

#include "lib/advice/advice.hpp"
#include "lib/advice/confidence.hpp"
#include "lib/advice/record.hpp"
#include "lib/bench/job_trace.hpp"
#include "lib/comm/launch.hpp"
#include "lib/report/json.hpp"

namespace gradtool {
namespace {

/// A codec of the advice, and what it gains.
nlohmann::ordered_json choice_record(const ResultRow& row, const ResultRow& none, const Acceptance& acceptance) {
  return {{"codec", spec_of(row)},
          {"reduce", takes_own_scheme(row) ? "auto" : name_of(row.scheme)},
          {"levels", row.inner ? 2 : 1},
          {"error", to_json(Cell{judged_error(row)})},
          {"seconds", judged_seconds(row)},
          {"gain", judged_seconds(none) / judged_seconds(row)},
          {"confidence", confidence_of(row, acceptance)}};
}

/// The verdict of the advice on a modelled row, whatever it gains.
std::string_view verdict_on(const ResultRow& row, const NetworkAdvice& advice, const Acceptance& acceptance) {
  if (&row == advice.taken) return "taken";
  if (replaces_mean(row.codec)) return "no mean of gradients";
  if (!row.reached) return "not at work";
  if (own_verdict(row, acceptance) == OwnTrial::Verdict::loses) return "lost in a trial";
  if (is_accepted(row, acceptance)) return "accepted";
  return judged_error(row) <= acceptance.max_nmse ? "needs a trial" : "error too large";
}

}  // namespace

nlohmann::ordered_json advice_record(std::span<const ResultRow> rows, const Acceptance& acceptance) {
  auto out = nlohmann::ordered_json::array();
  const auto add = [&](const char* of, std::span<const ResultRow> judged) {
    for (const NetworkAdvice& one : advice_of(judged, acceptance)) {
      auto& entry = out.emplace_back();
      entry = {{"of", of}, {"network", one.group.network}, {"ranks", one.group.ranks}, {"answer", one.answer}};
      entry["taken"] =
          one.taken == nullptr ? nlohmann::ordered_json() : choice_record(*one.taken, *one.none, acceptance);
      if (one.none_in_ddp != nullptr) entry["in_ddp"] = nlohmann::ordered_json();
      if (const ResultRow* row = one.in_ddp) {
        auto& sent = entry["in_ddp"] = choice_record(*row, *one.none, acceptance);
        sent["hook"] = row->in_ddp->hook;
        sent["seconds"] = row->in_ddp->time.median;
        sent["gain"] = one.none_in_ddp->in_ddp->time.median / row->in_ddp->time.median;
      }
      entry["after_trial"] = nlohmann::ordered_json::array();
      for (const ResultRow* row : one.after_trial)
        entry["after_trial"].push_back(choice_record(*row, *one.none, acceptance));
      entry["codecs"] = nlohmann::ordered_json::array();
      for (const ResultRow* row : one.group.rows) {
        if (row->codec.name() == "none" || row->codec.name() == "noop") continue;
        auto& codec = entry["codecs"].emplace_back(choice_record(*row, *one.none, acceptance));
        codec["error_of_step"] = to_json(Cell{step_error(*row)});
        codec["lasting_error"] = to_json(Cell{lasting_error(*row)});
        codec["verdict"] = verdict_on(*row, one, acceptance);
      }
    }
  };
  const bool iterations = std::any_of(rows.begin(), rows.end(), [](const ResultRow& row) { return row.iteration; });
  add(iterations ? "iterations" : "gradients", rows);
  if (!iterations) return out;
  std::vector<ResultRow> alone{rows.begin(), rows.end()};
  for (ResultRow& row : alone) {
    row.iteration.reset();
    row.in_ddp.reset();  // it is of iterations
  }
  add("gradients", alone);
  return out;
}

nlohmann::ordered_json record(const BenchOptions& options, const BenchReport& report) {
  nlohmann::ordered_json out;
  out["format"] = "gradtool.bench";
  out["schema_version"] = kBenchSchema;
  out["command"] = options.command;
  out["provenance"] = provenance();
  // The backend that the ranks met over, with the versions of NCCL or MPI, and the GPU with its driver.
  for (const auto& backend : comm_backends()) {
    if (backend.name == options.comm)
      out["provenance"]["communicator"] = {{"name", backend.name}, {"detail", backend.detail}};
  }
  if (options.sizes.empty())
    out["file"] = {{"path", options.file}, {"sha256", report.file_sha256}};
  else
    out["synthetic_bytes"] = options.sizes;
  for (const auto& [path, sha256] : report.source_sha256)
    out["file"]["sources"].push_back({{"path", path}, {"sha256", sha256}});
  for (std::size_t i = 0; i < report.received_sha256.size(); ++i)
    out["received"].push_back({{"path", options.received[i].path}, {"sha256", report.received_sha256[i]}});
  out["copy_gb_s"] = report.copy_rate / 1e9;
  out["thread_bytes"] = report.thread_bytes;
  out["worker_likeness"] = report.likeness;
  out["stated_averaged"] = report.stated_averaged;
  out["overflowed_steps"] = report.overflowed_steps;
  if (options.trace) out["job_trace"] = to_json(*options.trace);
  auto rows = to_json(to_table(report.rows));
  for (std::size_t i = 0; i < report.rows.size(); ++i) {
    const ResultRow& row = report.rows[i];
    if (!row.samples.empty()) rows[i]["round_samples"] = row.rounds;
    for (const PhaseTimes& sample : row.samples) {
      auto& microseconds = rows[i]["samples_us"];
      microseconds["encode"].push_back(sample.phase[0] * 1e6);
      microseconds["comm"].push_back(sample.phase[1] * 1e6);
      microseconds["decode"].push_back(sample.phase[2] * 1e6);
      if (row.timing == Timing::concurrent) microseconds["total"].push_back(sample.total * 1e6);
    }
    auto& parameters = rows[i]["parameters"] = nlohmann::ordered_json::object();
    for (const auto& [name, value] : parameters_of(row.codec)) parameters[name] = to_json(value);
    if (row.tensor == "all") {
      rows[i]["name"] = spec_of(row);
      for (const IterationRange& window : row.window_iterations)
        rows[i]["window_iterations"].push_back({window.first, window.last});
    }
    if (row.modelled() || row.tensor != "all") continue;  // of single tensors --steps-csv has the steps
    for (std::size_t s = 0; s < row.steps.size(); ++s) {
      const StepErrors& step = row.steps[s];
      const double cumulative = cumulative_nmse(step.cumulative_error, step.cumulative_energy);
      auto& errors = rows[i]["steps"].emplace_back();
      errors["iteration"] = row.step_iterations[s];
      errors["nmse"] = to_json(Cell{step.sums.nmse()});
      errors["cumulative_nmse"] = to_json(row.cumulative_nmse ? Cell{cumulative} : Cell{});
      errors["window"] = row.step_windows[s];
    }
    for (const UnitProfile& profile : row.units) {
      auto& unit = rows[i]["units"].emplace_back();
      unit = {{"ready", profile.ready},
              {"payload_bytes", profile.bytes.payload},
              {"wire_bytes_per_rank", profile.bytes.wire_per_rank},
              {"encode_us", profile.encode * 1e6},
              {"decode_us", profile.decode * 1e6}};
      if (row.inner) unit["decode_across_us"] = profile.decode_across * 1e6;
      for (const auto& use : profile.uses) {
        if (use.calls <= 0.0) continue;
        auto& used = unit["collectives"].emplace_back();
        used = {{"kind", name_of(use.kind)}, {"calls", use.calls}, {"bytes", use.bytes}};
        if (use.level == Level::whole) continue;
        used["level"] = name_of(use.level);
        used["node"] = use.node;
      }
    }
  }
  out["rows"] = std::move(rows);
  return out;
}

}  // namespace gradtool
