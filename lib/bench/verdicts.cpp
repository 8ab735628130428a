#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "lib/bench/result.hpp"

namespace gradtool {
namespace {

// The error by which two sums of the same float32 values in another order may differ: the square of float32's rounding
// error, times about 30. No codec is better than another one for errors below it.
constexpr double kRounding = 1e-13;
constexpr double kInfinite = std::numeric_limits<double>::infinity();

using RowGroup = std::vector<ResultRow*>;

/// Rows that may be compared with each other, in the order of the table.
std::vector<RowGroup> groups_of(std::span<ResultRow> rows) {
  std::map<std::tuple<std::string, bool, Timing, std::string, int>, std::size_t> index;
  std::vector<RowGroup> groups;
  for (ResultRow& row : rows) {
    if (row.tensor != "all" || row.status != ResultRow::Status::ok) continue;
    const std::string network = row.network ? row.network->name : std::string{};
    const auto [place, fresh] =
        index.try_emplace({row.granularity, row.modelled(), row.timing, network, row.ranks}, groups.size());
    if (fresh) groups.emplace_back();
    groups[place->second].push_back(&row);
  }
  return groups;
}

const ResultRow* row_of(const RowGroup& group, std::string_view codec) {
  const auto found =
      std::find_if(group.begin(), group.end(), [&](const ResultRow* row) { return row->codec.name() == codec; });
  return found == group.end() ? nullptr : *found;
}

/// The link speeds at which a row and that of none take the same time, on networks that differ in nothing else.
class BreakEven {
 public:
  BreakEven(const ResultRow& row, const ResultRow& none)
      : row_{row}, none_{none}, network_{row.network.value_or(flat_network())} {
    for (std::size_t i = 0; i < kGrid; ++i) saved_[i] = saved_at(speed(i));
  }

  /// Speeds in Gbit/s between which the row wins.
  struct Range {
    double from = 0.0, to = 0.0;
  };
  /// When coding takes the row `added_seconds` more than none.
  [[nodiscard]] Range at(double added_seconds) const {
    const auto wins = [&](std::size_t i) { return saved_[i] > added_seconds; };
    std::size_t last = kGrid;
    while (last > 0 && !wins(last - 1)) --last;
    if (last == 0) return {};
    std::size_t first = last - 1;
    while (first > 0 && wins(first - 1)) --first;
    return {.from = first == 0 ? 0.0 : between(speed(first), speed(first - 1), added_seconds),
            .to = last == kGrid ? kInfinite : between(speed(last - 1), speed(last), added_seconds)};
  }

 private:
  /// The speed between one at which the row wins and one at which it loses where that changes.
  [[nodiscard]] double between(double wins, double loses, double added_seconds) const {
    for (int step = 0; step < 60; ++step) {
      const double middle = std::sqrt(wins * loses);
      (saved_at(middle) > added_seconds ? wins : loses) = middle;
    }
    return wins;
  }

  static Network flat_network() {
    Network network;
    network.link.alpha = kBreakevenAlpha;
    return network;
  }

  static constexpr std::size_t kGrid = 97;  // twelve speeds a decade, 1 Mbit/s to 100 Tbit/s
  static double speed(std::size_t i) { return std::pow(10.0, -3.0 + static_cast<double>(i) / 12.0); }

  /// Seconds of communication that the row saves on links of so many Gbit/s.
  [[nodiscard]] double saved_at(double gbit_s) const {
    Network network = network_;
    network.link.beta = gbit_s * 1e9 / 8.0;
    return model_units(none_, network, row_.ranks).seconds - model_units(row_, network, row_.ranks).seconds;
  }

  const ResultRow& row_;
  const ResultRow& none_;
  Network network_;
  std::array<double, kGrid> saved_{};
};

/// How far the time of encoding and decoding may lie below and above its median with 95 % confidence; 0 where that is
/// not known.
Interval codec_time(const ResultRow& row) {
  Interval away{0.0, 0.0};
  for (const auto* phase : {&row.encode, &row.decode}) {
    away.low += (*phase)->median - (*phase)->low.value_or((*phase)->median);
    away.high += (*phase)->high.value_or((*phase)->median) - (*phase)->median;
  }
  return away;
}

void set_breakeven(ResultRow& row, const ResultRow& none) {
  for (const ResultRow* each : {static_cast<const ResultRow*>(&row), &none}) {
    if (each->units.empty() || !each->encode || !each->decode) return;
  }
  if (row.ranks < 2) return;
  const BreakEven breakeven{row, none};
  const double base = none.encode->median + none.decode->median;
  const auto range = breakeven.at(row.encode->median + row.decode->median - base);
  row.verdict.breakeven_gbit_s = range.to;
  row.verdict.breakeven_from = range.from;
  if (!row.encode->low || !row.decode->low) return;
  const Interval own = codec_time(row), plain = codec_time(none);
  const double extra = row.encode->median + row.decode->median - base;
  row.verdict.breakeven_low = breakeven.at(extra + std::hypot(own.high, plain.low)).to;
  row.verdict.breakeven_high = breakeven.at(extra - std::hypot(own.low, plain.high)).to;
}

/// Empty where a time is missing or 0.
std::optional<double> ratio(const std::optional<double>& above, const std::optional<double>& below) {
  return above && below && *above > 0.0 && *below > 0.0 ? std::optional{*above / *below} : std::nullopt;
}

std::optional<double> seconds_of_total(const ResultRow& row) {
  return row.total ? std::optional{row.total->median} : std::nullopt;
}

std::optional<double> seconds_of_iteration(const ResultRow& row) {
  return row.iteration ? std::optional{row.iteration->seconds} : std::nullopt;
}

void mark_pareto(const RowGroup& group) {
  struct Point {
    double error, time;
  };
  std::vector<Point> points;
  for (const ResultRow* row : group) points.push_back({judged_error(*row), judged_seconds(*row)});
  for (std::size_t i = 0; i < group.size(); ++i) {
    const Point& mine = points[i];
    // noop bounds the others, because what errs as much as sending nothing is of no use, but it is not a choice.
    if (group[i]->codec.name() == "noop" || !std::isfinite(mine.time)) continue;
    const bool dominated = std::any_of(points.begin(), points.end(), [&](const Point& other) {
      return other.error <= mine.error && other.time <= mine.time &&
             (other.error < mine.error || other.time < mine.time);
    });
    group[i]->verdict.pareto = std::isfinite(mine.error) && !dominated;
  }
}

void compare(const RowGroup& group) {
  const ResultRow* none = row_of(group, "none");
  const ResultRow* noop = row_of(group, "noop");
  for (ResultRow* row : group) {
    row->verdict = {};
    const bool baseline = row == none || row == noop;
    if (none != nullptr && !baseline) set_breakeven(*row, *none);
    if (none != nullptr) {
      row->verdict.speedup_vs_none = ratio(seconds_of_total(*none), seconds_of_total(*row));
      row->verdict.iteration_speedup_vs_none = ratio(seconds_of_iteration(*none), seconds_of_iteration(*row));
    }
    if (noop != nullptr) row->verdict.headroom_vs_noop = ratio(seconds_of_total(*row), seconds_of_total(*noop));
  }
  mark_pareto(group);
}

}  // namespace

bool delays(const CodecSpec& codec) {
  return codec.feedback() != Feedback::off || codec.descriptor->delays;
}

bool delays(const ResultRow& row) {
  return delays(row.codec) || (row.inner && delays(*row.inner));
}

bool replaces_mean(const CodecSpec& codec) {
  return !codec.descriptor->target.empty();
}

double worst_step_error(const ResultRow& row) {
  if (row.worst_nmse) return *row.worst_nmse;
  return row.errors ? row.errors->nmse() : kInfinite;
}

double judged_error(const ResultRow& row) {
  if (replaces_mean(row.codec)) return kInfinite;
  const double error = delays(row) ? row.cumulative_nmse.value_or(kInfinite) : worst_step_error(row);
  return error < kRounding ? 0.0 : error;
}

double judged_seconds(const ResultRow& row) {
  if (row.iteration) return row.iteration->seconds;
  return row.total && row.total->median > 0.0 ? row.total->median : kInfinite;
}

Interval judged_interval(const ResultRow& row) {
  const double seconds = judged_seconds(row);
  if (row.iteration) return {row.iteration->low.value_or(seconds), row.iteration->high.value_or(seconds)};
  if (!row.total) return {seconds, seconds};
  return {row.total->low.value_or(seconds), row.total->high.value_or(seconds)};
}

Interval gain_interval(const ResultRow& row, const ResultRow& none) {
  const double ours = judged_seconds(row), theirs = judged_seconds(none);
  const Interval mine = judged_interval(row), base = judged_interval(none);
  const double gain = theirs / ours;
  const auto joint = [](double one, double other) { return std::exp(std::hypot(std::log(one), std::log(other))); };
  if (!std::isfinite(ours) || !(mine.low > 0.0 && base.low > 0.0)) return {theirs / mine.high, theirs / mine.low};
  return {gain / joint(mine.high / ours, theirs / base.low), gain * joint(ours / mine.low, base.high / theirs)};
}

void set_verdicts(std::span<ResultRow> rows) {
  for (const auto& group : groups_of(rows)) compare(group);
}

}  // namespace gradtool
