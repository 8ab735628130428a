#include "lib/tune/search.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "lib/core/parse.hpp"
#include "lib/core/text.hpp"

namespace gradtool {
namespace {

constexpr std::size_t kFewest = 12;     ///< settings of a round
constexpr double kBlockSizes = 64.0;    ///< integers from here on are not searched between the registry's values
constexpr std::size_t kFastest = 5;     ///< finalists that are taken for their time
constexpr std::size_t kFinalists = 8;   ///< and with those taken for their error
constexpr std::size_t kOfOneCodec = 2;  ///< finalists, of those taken for their time

/// Whether `given` (bits=4,norm=l2) has a value for the parameter.
bool is_given(std::string_view given, std::string_view name) {
  const std::string parameter = fmt::format("{}=", name);
  return given.substr(0, parameter.size()) == parameter || given.find("," + parameter) != std::string_view::npos;
}

/// True when `a` is at least as good as `b` in both, and better in one, and needs no trial unless `b` does.
bool beats(const Found& a, const Found& b) {
  return (a.sure || !b.sure) && a.error <= b.error && a.seconds <= b.seconds &&
         (a.error < b.error || a.seconds < b.seconds);
}

std::vector<const Trial*> sorted_by_seconds(std::vector<const Trial*> trials) {
  std::stable_sort(trials.begin(), trials.end(),
                   [](const Trial* a, const Trial* b) { return a->found->seconds < b->found->seconds; });
  return trials;
}

/// By turns the fastest that is sure and the fastest that is not.
std::vector<const Trial*> by_turns(std::vector<const Trial*> trials) {
  trials = sorted_by_seconds(std::move(trials));
  const auto unsure =
      std::stable_partition(trials.begin(), trials.end(), [](const Trial* trial) { return trial->found->sure; });
  std::vector<const Trial*> turns;
  for (auto a = trials.begin(), b = unsure; a != unsure || b != trials.end();) {
    if (a != unsure) turns.push_back(*a++);
    if (b != trials.end()) turns.push_back(*b++);
  }
  return turns;
}

/// The measured settings of a round whose error may be small enough in the end, the fastest of both kinds first; if
/// there are none, all measured ones, the smallest errors first.
std::vector<const Trial*> hopeful(const std::vector<Trial>& round, double most_error) {
  std::vector<const Trial*> measured, within;
  for (const Trial& trial : round) {
    if (!trial.found) continue;
    measured.push_back(&trial);
    if (trial.found->error <= most_error) within.push_back(&trial);
  }
  if (!within.empty()) return by_turns(std::move(within));
  std::stable_sort(measured.begin(), measured.end(),
                   [](const Trial* a, const Trial* b) { return a->found->error < b->found->error; });
  return measured;
}

/// Those of `trials` that none of them beats, the fastest first.
std::vector<const Trial*> front_of(const std::vector<const Trial*>& trials) {
  std::vector<const Trial*> front;
  for (const Trial* trial : sorted_by_seconds(trials)) {
    if (std::none_of(trials.begin(), trials.end(),
                     [&](const Trial* other) { return beats(*other->found, *trial->found); }))
      front.push_back(trial);
  }
  return front;
}

bool has(const std::vector<Setting>& settings, const Setting& one) {
  return std::any_of(settings.begin(), settings.end(), [&](const Setting& other) { return other.spec == one.spec; });
}

/// Adds to `settings`, until they are `count`, others that no candidate beats: evenly, from the fast to the exact end.
void add_of_front(std::vector<Setting>& settings, const std::vector<const Trial*>& candidates, std::size_t count) {
  std::vector<const Trial*> front;
  for (const Trial* trial : front_of(candidates)) {
    if (!has(settings, trial->setting)) front.push_back(trial);
  }
  const std::size_t room = std::min(count - std::min(count, settings.size()), front.size());
  for (std::size_t i = 0; i < room; ++i) {
    const std::size_t place = room == 1 ? front.size() - 1 : i * (front.size() - 1) / (room - 1);
    settings.push_back(front[place]->setting);
  }
}

/// The settings that the next round measures, `count` or a few more.
std::vector<Setting> next_settings(SearchSpace& space, const std::vector<const Trial*>& candidates, std::size_t count) {
  std::vector<Setting> next;
  const std::size_t for_time = 2 * count / 3;
  std::vector<std::size_t> of_codec;
  for (const Trial* trial : candidates) {
    const Setting& setting = trial->setting;
    if (next.size() >= for_time) break;
    if (of_codec.size() <= setting.codec) of_codec.resize(setting.codec + 1);
    if (3 * of_codec[setting.codec] >= for_time) continue;
    const std::size_t before = next.size();
    next.push_back(setting);
    for (auto& other : space.around(setting)) next.push_back(std::move(other));
    of_codec[setting.codec] += next.size() - before;
  }
  add_of_front(next, candidates, count);
  return next;
}

std::vector<std::string> choose_finalists(const std::vector<const Trial*>& candidates) {
  std::vector<Setting> chosen;
  std::vector<std::size_t> of_codec;
  for (const Trial* trial : candidates) {
    if (chosen.size() >= kFastest) break;
    const std::size_t codec = trial->setting.codec;
    if (of_codec.size() <= codec) of_codec.resize(codec + 1);
    if (of_codec[codec]++ < kOfOneCodec) chosen.push_back(trial->setting);
  }
  add_of_front(chosen, candidates, kFinalists);
  std::vector<std::string> specs(chosen.size());
  std::transform(chosen.begin(), chosen.end(), specs.begin(), [](const Setting& setting) { return setting.spec; });
  return specs;
}

}  // namespace

SearchSpace::SearchSpace(const std::vector<std::string>& codecs) {
  for (const auto& text : codecs) {
    Codec codec{.spec = parse_codec(text), .axes = {}, .handed_out = {}, .points = {}};
    for (const auto& info : codec.spec.descriptor->params) {
      if (info.search.empty() || is_given(codec.spec.given, info.name) || !codec.spec.params.counts(info)) continue;
      Axis axis{.info = &info, .words = {}, .numbers = {}};
      for (const std::string_view word : split(info.search, '|')) axis.words.emplace_back(word);
      if (info.kind != ParamInfo::Kind::choice) {
        for (const auto& word : axis.words) axis.numbers.push_back(number_of<double>(word).value());
        axis.words.clear();
        axis.geometric = axis.numbers.front() > 0.0 && axis.numbers.back() >= 8.0 * axis.numbers.front();
      }
      codec.axes.push_back(std::move(axis));
    }
    codecs_.push_back(std::move(codec));
  }
}

std::vector<Setting> SearchSpace::grid() {
  struct Placed {
    double distance;  ///< from the defaults, in steps of the grid
    Setting setting;
  };
  std::vector<Placed> all;
  for (std::size_t c = 0; c < codecs_.size(); ++c) {
    const auto& axes = codecs_[c].axes;
    const auto size_of = [&](std::size_t a) { return std::max(axes[a].words.size(), axes[a].numbers.size()); };
    std::vector<std::size_t> place(axes.size(), 0);
    for (;;) {
      std::vector<double> point(axes.size());
      double distance = 0.0;
      for (std::size_t a = 0; a < axes.size(); ++a) {
        const Axis& axis = axes[a];
        const bool choice = axis.numbers.empty();
        point[a] = choice ? static_cast<double>(place[a]) : axis.numbers[place[a]];
        // The place of the default among the values, which need not hold it.
        double middle = 0.0;
        for (std::size_t i = 0; i < size_of(a); ++i) {
          const bool below = choice
                                 ? axis.words[i] != axis.info->default_value
                                 : axis.numbers[i] < number_of<double>(axis.info->default_value).value_or(std::nan(""));
          if (!below) break;
          middle = static_cast<double>(i + 1);
        }
        distance += std::abs(static_cast<double>(place[a]) - middle);
      }
      if (auto setting = hand_out(c, std::move(point))) all.push_back({distance, std::move(*setting)});
      std::size_t a = 0;
      while (a < axes.size() && ++place[a] == size_of(a)) place[a++] = 0;
      if (a == axes.size()) break;
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const Placed& a, const Placed& b) { return a.distance < b.distance; });
  std::vector<Setting> settings;
  settings.reserve(all.size());
  for (auto& placed : all) settings.push_back(std::move(placed.setting));
  return settings;
}

std::vector<Setting> SearchSpace::around(const Setting& setting) {
  const Codec& codec = codecs_[setting.codec];
  std::vector<std::vector<double>> between;
  for (std::size_t a = 0; a < codec.axes.size(); ++a) {
    const Axis& axis = codec.axes[a];
    if (axis.numbers.empty()) continue;
    const double here = setting.point[a];
    std::optional<double> below, above;
    for (const auto& point : codec.points) {
      bool same = true;
      for (std::size_t other = 0; other < point.size(); ++other)
        same = same && (other == a || point[other] == setting.point[other]);
      if (!same) continue;
      if (point[a] < here && (!below || point[a] > *below)) below = point[a];
      if (point[a] > here && (!above || point[a] < *above)) above = point[a];
    }
    for (const auto& neighbour : {below, above}) {
      if (!neighbour) continue;
      double middle = axis.geometric ? std::sqrt(here * *neighbour) : 0.5 * (here + *neighbour);
      if (axis.info->kind == ParamInfo::Kind::integer) {
        if (std::max(here, *neighbour) >= kBlockSizes) continue;
        middle = std::round(middle);
      }
      between.push_back(setting.point);
      between.back()[a] = number_of<double>(fmt::format("{:.4g}", middle)).value();
    }
  }
  std::vector<Setting> settings;
  for (auto& point : between) {
    if (auto one = hand_out(setting.codec, std::move(point))) settings.push_back(std::move(*one));
  }
  return settings;
}

std::optional<Setting> SearchSpace::hand_out(std::size_t codec, std::vector<double> point) {
  Codec& from = codecs_[codec];
  std::string params = from.spec.given;
  for (std::size_t a = 0; a < point.size(); ++a) {
    const Axis& axis = from.axes[a];
    params += fmt::format("{}{}=", params.empty() ? "" : ",", axis.info->name);
    params += axis.numbers.empty() ? axis.words[static_cast<std::size_t>(point[a])] : fmt::format("{:g}", point[a]);
  }
  std::string spec = from.spec.name() + (params.empty() ? "" : ":") + params;
  if (!from.handed_out.insert(spec).second) return std::nullopt;
  from.points.push_back(point);
  return Setting{.codec = codec, .point = std::move(point), .spec = std::move(spec)};
}

double search_slack(int round) {
  return round == 0 ? 2.0 : round == 1 ? 1.5 : round == 2 ? 1.2 : 1.0;
}

SearchResult search(SearchSpace& space, double max_error, const MeasureSettings& measure) {
  SearchResult result;
  std::vector<Setting> settings = space.grid();
  std::vector<Trial> trials;
  std::vector<const Trial*> candidates;
  std::map<std::string, Found> known;  // of settings, what was last measured
  for (int round = 0; round < kSearchRounds; ++round) {
    std::vector<std::string> specs(settings.size());
    std::transform(settings.begin(), settings.end(), specs.begin(), [](const Setting& s) { return s.spec; });
    const auto found = measure(specs, round);
    const bool any = std::any_of(found.begin(), found.end(), [](const auto& one) { return one.has_value(); });
    std::vector<Trial> latest;
    latest.reserve(settings.size());
    for (std::size_t i = 0; i < settings.size(); ++i) {
      latest.push_back({.setting = std::move(settings[i]), .round = round, .found = found[i]});
      result.trials.push_back(latest.back());
      // A setting that had no turn before time ran out keeps what the round before said of it.
      if (found[i] && !std::isfinite(found[i]->error)) {  // it was measured, and came to nothing
        known.erase(specs[i]);
        result.trials.back().found.reset();
        latest.back().found.reset();
      } else if (found[i]) {
        known.insert_or_assign(specs[i], *found[i]);
      }
      if (const auto before = known.find(specs[i]); before != known.end()) latest.back().found = before->second;
    }
    auto now = hopeful(latest, max_error * search_slack(round));
    if (!any || now.empty()) break;  // no time was left for any of them
    trials = std::move(latest);
    candidates = std::move(now);
    settings = next_settings(space, candidates, std::max(kFewest, (trials.size() + 2) / 3));
  }
  result.finalists = choose_finalists(candidates);
  return result;
}

}  // namespace gradtool
