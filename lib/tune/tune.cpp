#include "lib/tune/tune.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <span>

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

class Tuner {
 public:
  explicit Tuner(const TuneOptions& options) : options_{options}, bench_{first_bench(options.bench)}, session_{bench_} {
    report_.steps = windows_.back().end;
  }

  TuneReport run() {
    SearchSpace space{options_.codecs};
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

  /// True if the first of two ways of a setting is better: it is the faster one with an error within the limit, or has
  /// less error if neither or only one is within.
  [[nodiscard]] bool is_better(const Found& one, const Found& other) const {
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
    const double until = part * options_.budget_seconds;
    bench_.codecs.clear();
    for (const auto& spec : specs) bench_.codecs.push_back(parse_codec(spec));
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
    for (std::size_t i = 0; i < specs.size(); ++i) {
      bool reached = false;
      const auto [first, last] = modelled.equal_range(specs[i]);
      for (auto row = first; row != last; ++row) {
        if (!row->second->reached) continue;
        reached = true;
        const Found one{.error = expected_error(*measured.at(short_name(*row->second)), windows_),
                        .seconds = judged_seconds(*row->second)};
        if (std::isfinite(one.error) && std::isfinite(one.seconds) && (!found[i] || is_better(one, *found[i])))
          found[i] = one;
      }
      const bool timeless = first == last;
      if (timeless && replayed.count(specs[i]) == 0) continue;  // its turn did not come
      ++(timeless ? log.timeless : reached ? log.measured : log.idle);
      looked_at_.insert(specs[i]);
    }
    return found;
  }

  /// Over all steps, in as many rounds as the user asked for. Rows share what is left of the budget.
  void bench_finalists() {
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
  BenchOptions bench_;
  BenchSession session_;
  std::vector<StepWindow> windows_ = session_.windows();
  TuneReport report_;
  std::set<std::string> looked_at_;  ///< settings that had their turn
  Clock::time_point start_ = Clock::now();
};

}  // namespace

TuneReport tune(const TuneOptions& options) {
  if (options.bench.networks.size() != 1 || options.bench.nodes.size() > 1)
    throw Error{Fault::usage, "tune is for one network with one number of machines"};
  return Tuner{options}.run();
}

std::vector<const ResultRow*> tuned_front(const TuneReport& report, double max_error) {
  std::vector<const ResultRow*> rows, front;
  double uncompressed = std::numeric_limits<double>::infinity();
  for (const ResultRow& row : report.bench.rows) {
    if (!row.modelled() || row.status != ResultRow::Status::ok || row.codec.name() == "noop") continue;
    if (row.codec.name() == "none")
      uncompressed = judged_seconds(row);
    else if (row.reached && judged_error(row) <= max_error)
      rows.push_back(&row);
  }
  std::stable_sort(rows.begin(), rows.end(), [](auto* a, auto* b) { return judged_seconds(*a) < judged_seconds(*b); });
  for (const ResultRow* row : rows) {
    // No faster one has less error, and no equally fast one before it does.
    if (judged_seconds(*row) >= uncompressed) break;
    if (front.empty() || judged_error(*row) < judged_error(*front.back())) front.push_back(row);
  }
  return front;
}

}  // namespace gradtool
