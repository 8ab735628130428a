#include "lib/advice/own_trial.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "lib/advice/reproduce.hpp"
#include "lib/advice/trained_arms.hpp"
#include "lib/core/error.hpp"
#include "lib/core/files.hpp"
#include "lib/core/parse.hpp"
#include "lib/core/text.hpp"
#include "lib/core/utf8.hpp"
#include "lib/model/statistics.hpp"
#include "lib/report/json.hpp"

namespace gradtool {
namespace {

/// The codec with all of its parameters, as records have it.
std::string whole_text(const CodecSpec& codec) {
  const std::string params = codec.params_text();
  return codec.name() + (params.empty() ? "" : ":" + params);
}

/// whole_text() of a recorded text, with the defaults of parameters that the codec has got since.
std::string completed_text(const std::string& text) {
  try {
    return whole_text(parse_recorded_codec(text));
  } catch (const Error&) {
    return text;  // of another gradtool, or of a prototype that is not here
  }
}

/// A codec's text without its `reduce=`, and that way; "auto" where it has none.
std::pair<std::string, std::string> method_and_way(std::string codec) {
  constexpr std::string_view kKey = "reduce=";
  std::size_t at = codec.find(kKey);
  if (at == 0 || at == std::string::npos || (codec[at - 1] != ':' && codec[at - 1] != ',')) return {codec, "auto"};
  const std::size_t end = std::min(codec.find(',', at), codec.size());
  const std::string way = codec.substr(at + kKey.size(), end - at - kKey.size());
  // One separator goes with it: the comma behind the first parameter, else the one in front.
  const bool first = codec[at - 1] == ':' && end < codec.size();
  codec.erase(first ? at : at - 1, end + 1 - at);
  return {codec, way};
}

/// The row's codec with all of its parameters but its way.
CodecSpec without_way(const ResultRow& row) {
  CodecSpec codec = row.codec;
  codec.way = Scheme::automatic;
  return codec;
}

/// Whether the row took this way, where "auto" stands for the codec's own.
bool took(const ResultRow& row, const CodecSpec& codec, std::string_view way) {
  if (row.op != Collective::all_reduce && row.op != Collective::reduce_scatter) return true;
  if (name_of(row.scheme) == way) return true;
  const Aggregation kind = codec.descriptor->aggregation;
  const bool one_way = kind != Aggregation::sum && kind != Aggregation::gather;
  return way == "auto" &&
         (one_way || row.scheme == Scheme::automatic || row.scheme == resolve(Scheme::automatic, codec, row.op));
}

// A trial of 100 arms with 10 seeds and 10,000 steps is about 200 MB of losses.
constexpr std::uint64_t kMostTrialBytes = std::uint64_t{1} << 30;
constexpr int kTrialSchema = 1, kTrainSchema = 1;
// An arm loses where it is worse with every seed by so many tolerances, however few seeds there are.
constexpr double kFarBeyond = 10.0;
// Share of what the training loss falls by without a codec by which it may be worse with one, as in gradtool.trial.
constexpr double kLossTolerance = 0.02;

using Json = nlohmann::ordered_json;

std::optional<double> number(const Json& arm, const char* key) {
  const auto& value = arm.at(key);
  return value.is_null() ? std::nullopt : std::optional{value.get<double>()};
}

OwnTrial::Arm read_arm(const Json& json, const std::string& path) {
  OwnTrial::Arm arm;
  arm.codec = completed_text(json.at("codec").get<std::string>());
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
  if (arm.same_as_none && !(*arm.same_as_none >= 0.0 && *arm.same_as_none <= 1.0))
    throw Error{Fault::data, fmt::format("{}: same_as_none of {} is {}; must be a share from 0 to 1", path, arm.codec,
                                         *arm.same_as_none)};
  if (arm.low.has_value() != arm.high.has_value() ||
      (arm.low && !(*arm.low <= arm.worse_by.value_or(NAN) && *arm.worse_by <= *arm.high)))
    throw Error{Fault::data, fmt::format("{}: the interval of {} does not hold its own mean", path, arm.codec)};
  if (arm.verdict == OwnTrial::Verdict::learns && !arm.high)
    throw Error{Fault::data, fmt::format("{}: {} learns without an interval, which no trial says", path, arm.codec)};
  if (arm.lr_factor && !(*arm.lr_factor > 0.0))
    throw Error{Fault::data,
                fmt::format("{}: lr_factor of {} is {}; must be above 0", path, arm.codec, *arm.lr_factor)};
  return arm;
}

template <class Number>
Number count(const Json& of, const char* key, const std::string& path) {
  const Json& value = of.at(key);
  // get<int>() would take half a worker for none.
  if (!value.is_number_integer() || value < 1 || value > std::numeric_limits<Number>::max())
    throw Error{Fault::data, fmt::format("{}: {} is {}; must be a whole number of at least 1", path, key,
                                         printable(value.dump().substr(0, 40)))};
  return value.get<Number>();
}

std::string warning_of(const Json& json) {
  const auto found = json.find("warning");
  return found == json.end() || found->is_null() ? "" : found->get<std::string>();
}

OwnTrial read_trial(const Json& json, const std::string& path) {
  if (json.at("schema_version") != kTrialSchema)
    throw Error{Fault::data, fmt::format("{} is of another schema than gradtool.trial, {}", path, kTrialSchema)};
  const auto& settings = json.at("settings");
  OwnTrial trial{.file = path,
                 .model = json.at("model").get<std::string>(),
                 .judge = settings.at("judge").get<std::string>(),
                 .scheme = settings.at("scheme").get<std::string>(),
                 .elements = count<std::uint64_t>(json, "elements", path),
                 .workers = count<int>(settings, "workers", path),
                 .steps = count<int>(settings, "steps", path),
                 .arms = {}};
  trial.warning = warning_of(json);
  if (json.contains("tolerance")) trial.tolerance = json.at("tolerance").get<double>();
  if (trial.tolerance.value_or(0.0) < 0.0)
    throw Error{Fault::data, fmt::format("{}: the tolerance is {}; must be at least 0", path, *trial.tolerance)};
  for (const auto& json_arm : json.at("arms")) {
    OwnTrial::Arm arm = read_arm(json_arm, path);
    const auto same = [&](const OwnTrial::Arm& other) {
      return other.codec == arm.codec && other.verdict != arm.verdict;
    };
    if (std::any_of(trial.arms.begin(), trial.arms.end(), same))
      throw Error{Fault::data, fmt::format("{}: has two verdicts on {}", path, arm.codec)};
    trial.arms.push_back(std::move(arm));
  }
  return trial;
}

/// A run of gradtool train that counts for the verdict of its codec.
struct JudgedRun {
  std::string codec, status;
  std::int64_t seed = 0;
  double lr_factor = 1.0;
  bool reached = true;                  ///< the method came to its work
  std::optional<double> accuracy = {};  ///< after the last step, in points
  double first_loss = NAN, loss = NAN;  ///< of the training in the first and in the last row
};

/// A setting of gradtool train, which writes all of them as text.
int whole_setting(const Json& json, const char* name, const std::string& path) {
  const auto text = json.at("settings").at(name).get<std::string>();
  if (const auto value = number_of<int>(text); value && *value >= 1) return *value;
  throw Error{Fault::data,
              fmt::format("{}: the setting '{}' is '{}'; must be a whole number of at least 1", path, name, text)};
}

/// Numbers that are not finite are texts in a record.
double number_or_nan(const Json& json) {
  return json.is_number() ? json.get<double>() : NAN;
}

std::string codec_of(const Json& json) {
  const auto params = json.at("params").get<std::string>();
  return completed_text(json.at("codec").get<std::string>() + (params == "default" ? "" : ":" + params));
}

/// The runs of a record of gradtool train that are judged; those that tried a learning rate alone are not.
std::vector<JudgedRun> read_runs(const Json& json) {
  std::vector<JudgedRun> runs;
  for (const auto& one : json.at("runs")) {
    if (!one.value("judged", true)) continue;
    runs.push_back({.codec = codec_of(one),
                    .status = one.at("status").get<std::string>(),
                    .seed = one.at("seed").get<std::int64_t>(),
                    .lr_factor = one.value("lr_factor", 1.0),
                    .reached = one.value("reached", true)});
  }
  for (const auto& row : json.at("rows")) {
    const auto run = std::find_if(runs.begin(), runs.end(), [&](const JudgedRun& one) {
      return one.codec == codec_of(row) && one.seed == row.at("seed").get<std::int64_t>() &&
             one.lr_factor == row.value("lr_factor", 1.0);
    });
    if (run == runs.end()) continue;
    const double loss = number_or_nan(row.at("train_loss"));
    if (std::isnan(run->first_loss)) run->first_loss = loss;
    run->loss = loss;
    const auto& accuracy = row.at("test_accuracy");
    run->accuracy = accuracy.is_number() ? std::optional{100.0 * accuracy.get<double>()} : std::nullopt;
  }
  return runs;
}

/// The verdict of a codec, given what its runs are worse by, each than that of none with the same seed.
void decide(OwnTrial::Arm& arm, const std::vector<double>& worse, double tolerance) {
  const auto mean = mean_over_seeds(worse);
  arm.worse_by = mean->mean;
  if (!std::isfinite(mean->mean)) {
    arm.worse_by.reset();
    arm.verdict = OwnTrial::Verdict::loses;
    arm.reason = "ends without a finite result";
    return;
  }
  if (mean->interval) arm.low = mean->interval->low, arm.high = mean->interval->high;
  if (!(tolerance > 0.0)) {
    arm.reason =
        "the loss of none does not fall from its first row to its last, which a tolerance is taken from: more steps "
        "would tell, or --evaluate-every where there is one row";
  } else if (std::all_of(worse.begin(), worse.end(), [=](double one) { return one > kFarBeyond * tolerance; })) {
    arm.verdict = OwnTrial::Verdict::loses;
    arm.reason = "far beyond the tolerance with every seed";
  } else if (!mean->interval) {
    arm.reason = "one seed has no interval";
  } else if (*arm.high <= tolerance) {
    arm.verdict = OwnTrial::Verdict::learns;
  } else if (*arm.low > tolerance) {
    arm.verdict = OwnTrial::Verdict::loses;
  } else {
    arm.reason = "more seeds or steps would tell";
  }
}

const char* verb_of(OwnTrial::Verdict verdict) {
  return verdict == OwnTrial::Verdict::learns  ? "learns"
         : verdict == OwnTrial::Verdict::loses ? "loses"
                                               : "is undecided";
}

OwnTrial read_training(const Json& json, const std::string& path) {
  if (json.at("schema_version") != kTrainSchema)
    throw Error{Fault::data, fmt::format("{} is of another schema than gradtool.train, {}", path, kTrainSchema)};
  const auto setting = [&](const char* name) { return json.at("settings").at(name).get<std::string>(); };
  OwnTrial trial{.file = path,
                 .model = setting("--model") + " on " + setting("--dataset"),
                 .judge = "accuracy",
                 .scheme = setting("--reduce"),
                 .unit = " points",
                 .elements = json.at("elements").get<std::uint64_t>(),
                 .workers = whole_setting(json, "--workers", path),
                 .steps = whole_setting(json, "the number of steps", path),
                 .tolerance = kPointsThatCount,
                 .arms = {}};
  trial.warning = warning_of(json);
  const std::vector<JudgedRun> runs = read_runs(json);
  std::vector<const JudgedRun*> none;  // that have finished
  for (const auto& run : runs) {
    if (run.codec == "none" && run.status == "finished") none.push_back(&run);
  }
  const auto tested = [](const JudgedRun* run) { return run->accuracy.has_value(); };
  const bool by_loss = !std::all_of(none.begin(), none.end(), tested);
  if (by_loss) {
    double fall = 0.0;
    for (const JudgedRun* run : none) fall += (run->first_loss - run->loss) / static_cast<double>(none.size());
    trial.judge = "training loss";
    trial.unit.clear();
    trial.tolerance = kLossTolerance * fall;
  }
  for (const auto& first : runs) {
    const auto same = [&](const OwnTrial::Arm& arm) { return arm.codec == first.codec; };
    if (first.codec == "none" || std::any_of(trial.arms.begin(), trial.arms.end(), same)) continue;
    OwnTrial::Arm arm;
    arm.codec = first.codec;
    arm.lr_factor = first.lr_factor;
    std::vector<double> worse;
    bool reached = true;
    for (const auto& run : runs) {
      if (run.codec != first.codec) continue;
      reached = reached && (run.reached || run.status != "finished");
      if (run.status == "diverged" && arm.verdict != OwnTrial::Verdict::loses) {
        arm.verdict = OwnTrial::Verdict::loses;
        arm.reason = fmt::format("diverged with seed {}", run.seed);
      } else if (run.status == "unfinished" && arm.reason.empty()) {
        arm.reason = fmt::format("has not finished with seed {}", run.seed);
      }
      for (const JudgedRun* other : none) {
        if (other->seed != run.seed || run.status != "finished") continue;
        worse.push_back(by_loss ? run.loss - other->loss : *other->accuracy - run.accuracy.value_or(NAN));
      }
    }
    if (arm.reason.empty() && worse.empty()) arm.reason = "has no run of none with the same seed that has finished";
    if (arm.reason.empty() && !reached) arm.reason = fmt::format("has not been at work in {} steps", trial.steps);
    if (arm.reason.empty()) decide(arm, worse, *trial.tolerance);
    trial.arms.push_back(std::move(arm));
  }
  return trial;
}

}  // namespace

const OwnTrial::Arm* OwnTrial::arm_of(const ResultRow& row) const {
  const CodecSpec codec = without_way(row);
  const std::string method = whole_text(codec);
  const Arm *same = nullptr, *lost = nullptr;
  for (const Arm& arm : arms) {
    const auto [tried, way] = method_and_way(arm.codec);
    if (tried != method) continue;
    // A trial in one level says nothing good of two: what a machine's ranks have averaged is another gradient.
    const bool took_it = !row.inner && took(row, codec, way == "auto" ? std::string_view{scheme} : way);
    if (took_it && (same == nullptr || arm.verdict > same->verdict)) same = &arm;
    if (arm.verdict == Verdict::loses) lost = &arm;
  }
  return same != nullptr ? same : lost;
}

std::string OwnTrial::difference(const Arm& arm) const {
  if (!arm.worse_by) return arm.reason.empty() ? "" : "it " + arm.reason;
  const bool better = *arm.worse_by < 0.0;
  std::string text =
      fmt::format("its {} is {} by {:.2g}{}", judge, better ? "better" : "worse", std::abs(*arm.worse_by), unit);
  if (arm.low && arm.high)
    text += fmt::format(" (95 %: {:.2g} to {:.2g})", better ? -*arm.high : *arm.low, better ? -*arm.low : *arm.high);
  return arm.reason.empty() ? text : text + ", " + arm.reason;
}

std::string OwnTrial::words(const Arm& arm) const {
  std::string text =
      fmt::format("in {} ({}, {} workers, {} steps) it {}", file, model, workers, steps, verb_of(arm.verdict));
  if (arm.lr_factor && *arm.lr_factor != 1.0) text += fmt::format(" with learning rates times {:g}", *arm.lr_factor);
  if (const std::string why = difference(arm); !why.empty()) text += ": " + why;
  const double needed = std::round(arm.same_as_none.value_or(1.0) * steps);
  return arm.worse_by && needed < steps
             ? text + fmt::format(", and uncompressed had that training loss after {:.0f} steps", needed)
             : text;
}

bool OwnTrials::loses(const CodecSpec& codec) const {
  const std::string method = method_and_way(whole_text(codec)).first;
  std::map<std::string, OwnTrial::Verdict> by_way;
  for (const OwnTrial& trial : trials) {
    for (const OwnTrial::Arm& arm : trial.arms) {
      const auto [tried, way] = method_and_way(arm.codec);
      if (tried != method) continue;
      OwnTrial::Verdict& verdict = by_way[way == "auto" ? trial.scheme : way];
      verdict = std::max(verdict, arm.verdict);
    }
  }
  const auto any = [&](OwnTrial::Verdict verdict) {
    return std::any_of(by_way.begin(), by_way.end(), [&](const auto& way) { return way.second == verdict; });
  };
  return any(OwnTrial::Verdict::loses) && !any(OwnTrial::Verdict::learns);
}

std::optional<OwnTrial::Verdict> OwnTrials::verdict_of(const ResultRow& row) const {
  std::optional<OwnTrial::Verdict> found;
  for (const OwnTrial& trial : trials) {
    if (const auto* arm = trial.arm_of(row)) found = std::max(found.value_or(arm->verdict), arm->verdict);
  }
  return found;
}

double OwnTrials::share_of_steps(const ResultRow& row) const {
  double least = 1.0;
  for (const OwnTrial& trial : trials) {
    const auto* arm = trial.arm_of(row);
    if (arm != nullptr && arm->verdict != OwnTrial::Verdict::loses && arm->low && *arm->low > 0.0)
      least = std::min(least, arm->same_as_none.value_or(1.0));
  }
  return least;
}

std::string OwnTrials::words_of(const ResultRow& row) const {
  const auto verdict = verdict_of(row);
  std::vector<std::string> said;
  for (const bool decides : {true, false}) {
    for (const OwnTrial& trial : trials) {
      const auto* arm = trial.arm_of(row);
      if (arm != nullptr && (arm->verdict == verdict) == decides) said.push_back(trial.words(*arm));
    }
  }
  return joined(said, "; ");
}

int OwnTrials::workers_of(const ResultRow& row) const {
  const auto verdict = verdict_of(row);
  int most = 0;
  for (const OwnTrial& trial : trials) {
    const auto* arm = trial.arm_of(row);
    if (arm != nullptr && arm->verdict == verdict) most = std::max(most, trial.workers);
  }
  return most;
}

std::string OwnTrials::difference_of(const ResultRow& row) const {
  const auto verdict = verdict_of(row);
  for (const OwnTrial& trial : trials) {
    const auto* arm = trial.arm_of(row);
    if (arm != nullptr && arm->verdict == verdict) return trial.difference(*arm);
  }
  return "";
}

std::vector<std::string> OwnTrials::verdicts() const {
  constexpr std::size_t kNamed = 6;
  std::vector<std::string> sentences;
  for (const OwnTrial& trial : trials) {
    std::vector<std::string> said;
    for (const OwnTrial::Arm& arm : trial.arms) {
      if (arm.codec == "none" || said.size() == kNamed) continue;
      const std::string why = trial.difference(arm);
      said.push_back(
          fmt::format("{} {}{}", arm.codec, verb_of(arm.verdict), why.empty() ? "" : fmt::format(" ({})", why)));
    }
    const std::size_t more = trial.arms.size() > kNamed ? trial.arms.size() - kNamed : 0;
    sentences.push_back(fmt::format("In {} ({}, {} workers, {} steps): {}{}.", trial.file, trial.model, trial.workers,
                                    trial.steps, said.empty() ? "no codec took part" : joined(said, "; "),
                                    more > 0 ? fmt::format("; and {} more", more) : ""));
    if (!trial.warning.empty()) sentences.push_back(fmt::format("{}: {}.", trial.file, trial.warning));
  }
  return sentences;
}

std::string OwnTrials::rules() const {
  std::string text;
  for (const OwnTrial& trial : trials) {
    text += fmt::format(" For codecs that were tried in {} its verdict decides", trial.file);
    text += !trial.tolerance ? "."
                             : fmt::format(
                                   ": one learns if all of the 95 % interval of what its {} is worse by is within "
                                   "{:.2g}{}, and loses if all of it is beyond.",
                                   trial.judge, *trial.tolerance,
                                   *trial.tolerance == 1.0 && !trial.unit.empty() ? " point" : trial.unit);
  }
  if (trials.size() > 1)
    text +=
        " Where these differ about a codec, one in which it loses counts before one in which it learns, and either "
        "before one that is undecided.";
  return text;
}

std::string OwnTrials::options() const {
  std::string text;
  for (const OwnTrial& trial : trials) text += " --trained " + shell_word(trial.file);
  return text;
}

void OwnTrials::expect_same_model(const std::string& capture, std::uint64_t elements) const {
  for (const OwnTrial& trial : trials) {
    if (trial.elements == elements) continue;
    throw Error{
        Fault::usage,
        fmt::format(
            "{} is a trial of a model of {} parameters, and {} has {}; give a trial of the model that was captured",
            trial.file, trial.elements, capture, elements)};
  }
}

namespace {

/// Texts of a file must not move a terminal's cursor.
OwnTrial as_printable(OwnTrial trial) {
  for (std::string* text : {&trial.model, &trial.judge, &trial.scheme, &trial.warning}) *text = printable(*text);
  for (OwnTrial::Arm& arm : trial.arms) arm.codec = printable(arm.codec), arm.reason = printable(arm.reason);
  return trial;
}

}  // namespace

OwnTrial read_own_trial(const std::string& path) {
  std::error_code ignored;
  const std::string file =
      std::filesystem::is_directory(path, ignored) ? (std::filesystem::path{path} / "train.json").string() : path;
  const Json json = parse_json(read_file(file, kMostTrialBytes));
  const auto format = json.is_object() ? json.find("format") : json.end();
  try {
    if (format != json.end() && *format == "gradtool.trial") return as_printable(read_trial(json, file));
    if (format != json.end() && *format == "gradtool.train") return as_printable(read_training(json, file));
  } catch (const Json::exception&) {
    throw Error{Fault::data,
                fmt::format("{} is no record of a trial; valid is what gradtool.trial or gradtool train wrote", file)};
  }
  throw Error{Fault::data, fmt::format("{} is no record of gradtool.trial or of gradtool train; --trained takes "
                                       "trial.json, train.json or the folder of the latter",
                                       file)};
}

}  // namespace gradtool
