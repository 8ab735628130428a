#include "lib/bench/own_trial.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lib/core/error.hpp"
#include "lib/core/files.hpp"
#include "lib/report/json.hpp"

namespace gradtool {
namespace {

// A trial of 100 arms with 10 seeds and 10,000 steps is about 200 MB of losses.
constexpr std::uint64_t kMostTrialBytes = std::uint64_t{1} << 30;
constexpr int kTrialSchema = 1;

std::optional<double> number(const nlohmann::ordered_json& arm, const char* key) {
  const auto& value = arm.at(key);
  return value.is_null() ? std::nullopt : std::optional{value.get<double>()};
}

OwnTrial::Arm read_arm(const nlohmann::ordered_json& json, const std::string& path) {
  OwnTrial::Arm arm;
  arm.codec = json.at("codec").get<std::string>();
  const auto verdict = json.at("verdict").get<std::string>();
  if (verdict != "learns" && verdict != "loses" && verdict != "undecided" && verdict != "failed" &&
      verdict != "baseline")
    throw Error{Fault::data,
                fmt::format("{}: verdict '{}' of {} is none that gradtool.trial gives", path, verdict, arm.codec)};
  if (verdict == "learns") arm.verdict = OwnTrial::Verdict::learns;
  if (verdict == "loses") arm.verdict = OwnTrial::Verdict::loses;
  if (!json.at("reason").is_null()) arm.reason = json.at("reason").get<std::string>();
  arm.worse_by = number(json, "worse_by");
  arm.low = number(json, "low");
  arm.high = number(json, "high");
  arm.lr_factor = number(json, "lr_factor");
  arm.same_as_none = number(json, "same_as_none");
  return arm;
}

}  // namespace

const OwnTrial::Arm* OwnTrial::arm_of(const ResultRow& row) const {
  const std::string params = row.codec.params_text();
  const std::string codec = row.codec.name() + (params.empty() ? "" : ":" + params);
  const auto found = std::find_if(arms.begin(), arms.end(), [&](const Arm& arm) { return arm.codec == codec; });
  if (found == arms.end()) return nullptr;
  // A trial in one level says nothing good of two: what a machine's ranks have averaged is another gradient.
  const bool same_scheme = name_of(row.scheme) == scheme || (scheme == "auto" && takes_own_scheme(row));
  const bool same_way = same_scheme && !row.inner;
  return same_way || found->verdict == Verdict::loses ? &*found : nullptr;
}

std::string OwnTrial::words(const Arm& arm) const {
  const char* verdict = arm.verdict == Verdict::learns  ? "it learns"
                        : arm.verdict == Verdict::loses ? "it loses"
                                                        : "it is undecided";
  std::string text = fmt::format("in {} ({}, {} workers, {} steps) {}", file, model, workers, steps, verdict);
  if (arm.lr_factor && *arm.lr_factor != 1.0) text += fmt::format(" with learning rates times {:g}", *arm.lr_factor);
  if (!arm.worse_by) return arm.reason.empty() ? text : text + ": it " + arm.reason;
  text += fmt::format(": its {} is worse by {:.2g}", judge, *arm.worse_by);
  if (arm.low && arm.high) text += fmt::format(" (95 %: {:.2g} to {:.2g})", *arm.low, *arm.high);
  const double needed = std::round(arm.same_as_none.value_or(1.0) * steps);
  return needed < steps ? text + fmt::format(", and uncompressed was there after {:.0f} steps", needed) : text;
}

OwnTrial read_own_trial(const std::string& path) {
  const auto json = parse_json(read_file(path, kMostTrialBytes));
  try {
    if (json.at("format") != "gradtool.trial" || json.at("schema_version") != kTrialSchema)
      throw Error{Fault::data,
                  fmt::format("{} is of another format or schema than gradtool.trial, {}", path, kTrialSchema)};
    const auto& settings = json.at("settings");
    OwnTrial trial{.file = path,
                   .model = json.at("model").get<std::string>(),
                   .judge = settings.at("judge").get<std::string>(),
                   .scheme = settings.at("scheme").get<std::string>(),
                   .elements = json.at("elements").get<std::uint64_t>(),
                   .workers = settings.at("workers").get<int>(),
                   .steps = settings.at("steps").get<int>(),
                   .arms = {}};
    for (const auto& arm : json.at("arms")) trial.arms.push_back(read_arm(arm, path));
    return trial;
  } catch (const nlohmann::json::exception&) {
    throw Error{Fault::data, fmt::format("{} is no record of a trial; valid is what gradtool.trial wrote", path)};
  }
}

void expect_same_model(const OwnTrial& trial, const std::string& capture, std::uint64_t elements) {
  if (trial.elements == elements) return;
  throw Error{Fault::usage, fmt::format("{} is a trial of a model of {} parameters, and {} has {}; give a trial of the "
                                        "model that was captured",
                                        trial.file, trial.elements, capture, elements)};
}

}  // namespace gradtool
