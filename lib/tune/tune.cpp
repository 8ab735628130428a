#include "lib/tune/tune.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <span>

#include "lib/advice/confidence.hpp"
#include "lib/advice/own_trial.hpp"
#include "lib/advice/trained_arms.hpp"
#include "lib/core/error.hpp"
#include "lib/core/interrupt.hpp"

namespace gradtool {
namespace {

using Clock = std::chrono::steady_clock;

/// The parts of the budget after which each round of the search begins no other setting. What is left is for the
/// finals.
constexpr double kUntil[kSearchRounds] = {0.30, 0.38, 0.44, 0.50, 0.55, 0.60};

/// The part until which the first round still begins the first setting of a codec: an answer that never looked at a
/// codec cannot say that another one is the fastest.
constexpr double kUntilEachWasTried = 0.60;

/// Seconds that each finalist may take of a small capture before its noise is small. A bench takes longer (StopRule),
/// but it does not know yet that the codec is worth it; this is enough for fifty samples of two milliseconds.
constexpr double kFinalistSeconds = 0.1;

/// Over how many of the captured steps a round measures, if every window has two of them at least: an eighth, a
/// quarter, a half, then all.
std::size_t steps_of_round(std::size_t all, int round) {
  return std::max<std::size_t>(1, round >= 3 ? all : all >> (3 - round));
}

/// The probable error over all `captured` steps of a window, of whose first ones `steps` are the errors. That of sums
/// of steps changes with their number: mostly it falls, because what is held back stays while the sum grows. It is
/// taken to go on by the power of the number of steps by which it went over the second half of them, but to fall no
/// faster than by its first power and to grow no faster than by the root.
double expected_sum_error(std::span<const StepErrors> steps, std::size_t captured) {
  const auto at = [&](std::size_t count) {
    const StepErrors& step = steps[count - 1];
    return cumulative_nmse(step.cumulative_error, step.cumulative_energy);
  };
  const std::size_t count = steps.size(), half = count / 2;
  const double now = at(count);
  if (count < 2 || count >= captured) return now;
  const double before = at(half);
  if (!(now > 0.0 && before > 0.0)) return now;
  const double ratio = static_cast<double>(count) / static_cast<double>(half);
  const double power = std::clamp(std::log(now / before) / std::log(ratio), -1.0, 0.5);
  return now * std::pow(static_cast<double>(captured) / static_cast<double>(count), power);
}

/// The probable error by which the row will be judged over all steps of these windows, of which it has some of each:
/// the worst window's.
double expected_error(const ResultRow& row, const std::vector<StepWindow>& windows) {
  const double error = judged_error(row);
  if (!delays(row.codec) || !std::isfinite(error) || row.steps.size() == windows.back().end) return error;
  double worst = 0.0;
  const std::span<const StepErrors> steps{row.steps};
  for (std::size_t w = 0, begin = 0; w < windows.size(); ++w) {
    std::size_t end = begin;
    while (end < steps.size() && row.step_windows[end] == w) ++end;
    worst = std::max(worst, expected_sum_error(steps.subspan(begin, end - begin), windows[w].end - windows[w].begin));
    begin = end;
  }
  return worst;
}

/// The codec with all of its parameters.
std::string all_of(const CodecSpec& spec) {
  const std::string params = spec.params_text();
  return spec.name() + (params.empty() ? "" : ":" + params);
}

/// The value of a parameter in a text such as "ratio=0.01,index=u32"; empty where it is not there.
std::string value_of(const std::string& params, const std::string& key) {
  const std::string all = "," + params + ",";
  const std::size_t found = all.find("," + key + "=");
  if (found == std::string::npos) return "";
  const std::size_t begin = found + key.size() + 2;
  return all.substr(begin, all.find(',', begin) - begin);
}

/// Whether a codec of a trial is one of those that are searched, with the parameters that were given. A record of
/// another build may have codecs that this one does not know.
bool is_searched(const std::string& tried, const std::vector<std::string>& codecs) {
  std::string name, params;
  try {
    const CodecSpec spec = parse_recorded_codec(tried);  // a record makes nothing run
    name = spec.name();
    params = spec.params_text();
  } catch (const Error&) {
    return false;
  }
  return std::any_of(codecs.begin(), codecs.end(), [&](const std::string& text) {
    const CodecSpec searched = parse_codec(text);
    if (searched.name() != name) return false;
    const std::string all = searched.params_text();
    std::string_view left = searched.given;
    while (!left.empty()) {
      const std::string_view one = left.substr(0, left.find(','));
      // The file of a prototype stands first and has no name.
      const std::string key{one.find('=') == std::string_view::npos ? "file" : one.substr(0, one.find('='))};
      if (value_of(all, key) != value_of(params, key)) return false;
      const std::size_t comma = left.find(',');
      left = comma == std::string_view::npos ? std::string_view{} : left.substr(comma + 1);
    }
    return true;
  });
}

/// The last of them have no turn where time is short. Those that were trained with small errors come first, because the
/// advice may take them; by their names, it was adacomp and atomo that always had a turn, and topk that had none.
std::vector<std::string> in_order_of_turns(std::vector<std::string> codecs) {
  std::stable_sort(codecs.begin(), codecs.end(), [](const std::string& a, const std::string& b) {
    return least_trained_nmse(parse_codec(a).name()) < least_trained_nmse(parse_codec(b).name());
  });
  return codecs;
}

class Tuner {
 public:
  explicit Tuner(const TuneOptions& options) : options_{options}, bench_{first_bench(options.bench)}, session_{bench_} {
    report_.steps = windows_.back().end;
  }

  TuneReport run() {
    SearchSpace space{in_order_of_turns(options_.codecs)};
    report_.search =
        search(space, options_.max_error, [this](auto& specs, int round) { return measure(specs, round); });
    bench_finalists();
    report_.seconds = elapsed();
    return std::move(report_);
  }

 private:
  using Measured = std::vector<std::optional<Found>>;  ///< in the order of the settings

  static BenchOptions first_bench(BenchOptions bench) {
    bench.codecs = {parse_codec("none")};
    bench.concurrent = false;
    return bench;
  }
  [[nodiscard]] double elapsed() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  /// True if the first of two ways of a setting is better: it alone needs no trial, or it is the faster one with an
  /// error within the limit, or has less error if neither or only one is within.
  [[nodiscard]] bool is_better(const Found& one, const Found& other) const {
    if (one.sure != other.sure) return one.sure;
    const bool within = one.error <= options_.max_error;
    if (within != (other.error <= options_.max_error)) return within;
    return within ? one.seconds < other.seconds : one.error < other.error;
  }

  [[nodiscard]] bool time_is_left(double part) const {
    return elapsed() < part * options_.budget_seconds && !interrupted();
  }

  Measured measure(const std::vector<std::string>& specs, int round) {
    if (round > 0 && !time_is_left(kUntil[round])) return Measured(specs.size());
    bench_.steps = steps_of_round(report_.steps, round);
    TuneReport::Round log{.steps = part_of_windows(windows_, bench_.steps).size(), .settings = specs.size()};
    Measured found;
    if (round > 0) {
      found = measure_until(kUntil[round], specs, round, log);
    } else {
      // Those nearest to the codecs' defaults stand first, one of each codec.
      std::set<std::string> untried;
      auto others = specs.begin();
      while (others != specs.end() && untried.insert(parse_codec(*others).name()).second) ++others;
      found = measure_until(kUntilEachWasTried, {specs.begin(), others}, round, log);
      const Measured more = measure_until(kUntil[round], {others, specs.end()}, round, log);
      found.insert(found.end(), more.begin(), more.end());
      for (const auto& spec : looked_at_) untried.erase(parse_codec(spec).name());
      report_.untried = {untried.begin(), untried.end()};
    }
    report_.rounds.push_back(log);
    return found;
  }

  /// Begins no setting after that part of the budget. Adds to the counts of `log`.
  Measured measure_until(double part, const std::vector<std::string>& specs, int round, TuneReport::Round& log) {
    Measured found(specs.size());
    if (specs.empty() || !time_is_left(part)) return found;
    const double until = part * options_.budget_seconds, began = elapsed();
    bench_.codecs.clear();
    for (const auto& spec : specs) {
      const CodecSpec codec = parse_codec(spec);
      if (!options_.trials || !options_.trials->loses(codec)) {
        bench_.codecs.push_back(codec);
        continue;
      }
      ++log.lost;
      looked_at_.insert(spec);
    }
    if (bench_.codecs.empty()) return found;
    bench_.rounds = 1;
    bench_.quality = false;
    bench_.deadline = start_ + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(until));
    bench_.stop = {.min_samples = round < 3 ? 3U : 7U, .max_noise = 1e150, .timeout_seconds = 1e9};
    const BenchReport bench = session_.run({}, fmt::format("round {} of {}", round + 1, kSearchRounds));
    expect_times_of_none(bench_, bench);
    std::map<std::string, const ResultRow*> measured;
    std::set<std::string> replayed;                         // settings
    std::multimap<std::string, const ResultRow*> modelled;  // by each way that the setting takes
    for (const ResultRow& row : bench.rows) {
      if (row.status != ResultRow::Status::ok || row.tensor != "all") continue;
      if (row.modelled()) {
        modelled.emplace(spec_of(row), &row);
      } else {
        measured[short_name(row)] = &row;
        replayed.insert(spec_of(row));
      }
    }
    std::size_t replays = 0;
    for (std::size_t i = 0; i < specs.size(); ++i) {
      bool reached = false;
      const auto [first, last] = modelled.equal_range(specs[i]);
      for (auto row = first; row != last; ++row) {
        if (!row->second->reached) continue;
        reached = true;
        const Found one{.error = expected_error(*measured.at(short_name(*row->second)), windows_),
                        .seconds = judged_seconds(*row->second),
                        .sure = is_accepted(*row->second, acceptance_)};
        if (std::isfinite(one.error) && std::isfinite(one.seconds) && (!found[i] || is_better(one, *found[i])))
          found[i] = one;
      }
      const bool timeless = first == last;
      if (timeless && replayed.count(specs[i]) == 0) continue;  // its turn did not come
      ++(timeless ? log.timeless : reached ? log.measured : log.idle);
      looked_at_.insert(specs[i]);
      ++replays;
      constexpr double kInfinite = std::numeric_limits<double>::infinity();
      if (!found[i]) found[i] = Found{.error = kInfinite, .seconds = kInfinite};
    }
    if (replays > 0) {
      const double share = static_cast<double>(log.steps) / static_cast<double>(report_.steps);
      full_replay_seconds_ = (elapsed() - began) / (static_cast<double>(replays) * share);
    }
    return found;
  }

  /// Adds the settings of the searched codecs that a trial has tried and that have not lost there: first those that
  /// learn, and as many as may still be replayed within the budget.
  void add_tried() {
    if (!options_.trials) return;
    auto& finalists = report_.search.finalists;
    const double each = std::max(kFinalistSeconds, full_replay_seconds_);
    double room = options_.budget_seconds - elapsed() - each * static_cast<double>(finalists.size() + 2);
    for (const auto wanted : {OwnTrial::Verdict::learns, OwnTrial::Verdict::undecided}) {
      for (const OwnTrial& trial : options_.trials->trials) {
        for (const OwnTrial::Arm& arm : trial.arms) {
          const auto known = [&](const std::string& text) { return all_of(parse_codec(text)) == arm.codec; };
          const auto& seen = report_.left_out;
          if (arm.verdict != wanted || !is_searched(arm.codec, options_.codecs) ||
              options_.trials->loses(parse_codec(arm.codec)) ||
              std::any_of(finalists.begin(), finalists.end(), known) ||
              std::find(seen.begin(), seen.end(), arm.codec) != seen.end())
            continue;
          room -= each;
          (room > 0.0 ? finalists : report_.left_out).push_back(arm.codec);
        }
      }
    }
  }

  /// Over all steps, in as many rounds as the user asked for. Rows share what is left of the budget.
  void bench_finalists() {
    add_tried();
    bench_.codecs.clear();
    for (const auto& spec : report_.search.finalists) bench_.codecs.push_back(parse_codec(spec));
    bench_.steps = 0;
    bench_.rounds = options_.bench.rounds;
    bench_.quality = true;
    bench_.deadline.reset();
    bench_.stop = options_.bench.stop;
    std::size_t replays = bench_.codecs.size() + 2;
    for (const auto& spec : bench_.codecs) replays += bench_.other_ways(spec, session_.ranks()).size();
    const auto rows = static_cast<double>(replays);
    bench_.stop.least_seconds = kFinalistSeconds;
    bench_.stop.most_seconds =
        std::clamp((options_.budget_seconds - elapsed()) / rows, kFinalistSeconds, bench_.stop.most_seconds);
    report_.bench = session_.run({}, "finalists");
  }

  const TuneOptions& options_;
  Acceptance acceptance_ = options_.acceptance();
  BenchOptions bench_;
  BenchSession session_;
  std::vector<StepWindow> windows_ = session_.windows();
  TuneReport report_;
  std::set<std::string> looked_at_;   ///< settings that had their turn
  double full_replay_seconds_ = 0.0;  ///< that a setting takes over all steps, as the last round of the search went
  Clock::time_point start_ = Clock::now();
};

}  // namespace

TuneReport tune(const TuneOptions& options) {
  if (options.bench.networks.size() != 1 || options.bench.nodes.size() > 1)
    throw Error{Fault::usage, "tune is for one network with one number of machines"};
  return Tuner{options}.run();
}

Acceptance TuneOptions::acceptance() const {
  Acceptance accepted = limit_given ? Acceptance{max_error} : Acceptance{};
  accepted.trials = trials;
  return accepted;
}

std::vector<const ResultRow*> tuned_front(const TuneOptions& options, const TuneReport& report) {
  const auto is_within = [&](const ResultRow& row) {
    const auto verdict = options.trials ? options.trials->verdict_of(row) : std::nullopt;
    if (verdict == OwnTrial::Verdict::loses) return false;
    return verdict == OwnTrial::Verdict::learns || judged_error(row) <= options.max_error;
  };
  std::vector<const ResultRow*> rows, front;
  double uncompressed = std::numeric_limits<double>::infinity();
  for (const ResultRow& row : report.bench.rows) {
    if (!row.modelled() || row.status != ResultRow::Status::ok || row.codec.name() == "noop") continue;
    if (row.codec.name() == "none")
      uncompressed = judged_seconds(row);
    else if (row.reached && is_within(row))
      rows.push_back(&row);
  }
  std::stable_sort(rows.begin(), rows.end(), [](auto* a, auto* b) { return judged_seconds(*a) < judged_seconds(*b); });
  const Acceptance acceptance = options.acceptance();
  double least = std::numeric_limits<double>::infinity(), least_sure = least;  // errors of those that are as fast
  for (const ResultRow* row : rows) {
    if (judged_seconds(*row) >= uncompressed) break;
    const bool sure = is_accepted(*row, acceptance);
    const double error = judged_error(*row);
    if (error < (sure ? least_sure : least)) front.push_back(row);
    least = std::min(least, error);
    if (sure) least_sure = std::min(least_sure, error);
  }
  return front;
}

}  // namespace gradtool
