#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "lib/bench/result.hpp"

namespace gradtool {
namespace {

// What two sums of the same float32 values in another order may differ by: the square of float32's rounding error,
// times about 30. No codec is better than another one for errors below it.
constexpr double kRounding = 1e-13;
constexpr double kInfinite = std::numeric_limits<double>::infinity();

using Group = std::vector<ResultRow*>;

/// Rows that may be compared with each other, in the order of the table.
std::vector<Group> groups_of(std::span<ResultRow> rows) {
  std::map<std::tuple<bool, Timing, std::string, int>, std::size_t> index;
  std::vector<Group> groups;
  for (ResultRow& row : rows) {
    if (row.tensor != "all" || row.status != ResultRow::Status::ok) continue;
    const std::string network = row.network ? row.network->name : std::string{};
    const auto [place, fresh] = index.try_emplace({row.modelled(), row.timing, network, row.ranks}, groups.size());
    if (fresh) groups.emplace_back();
    groups[place->second].push_back(&row);
  }
  return groups;
}

const ResultRow* row_of(const Group& group, std::string_view codec) {
  const auto found =
      std::find_if(group.begin(), group.end(), [&](const ResultRow* row) { return row->codec.name() == codec; });
  return found == group.end() ? nullptr : *found;
}

/// The bandwidth B with W_none/B + T_none = W/B + T, in Gbit/s: below it the codec wins. W: bytes that a rank sends, T:
/// seconds to encode and decode. 0 when the codec sends no less than none; infinite when it sends less and is no slower
/// to compute, because then it wins on any network.
std::optional<double> breakeven(const ResultRow& row, const ResultRow& none) {
  for (const ResultRow* each : {&row, &none}) {
    if (!each->bytes || !each->encode || !each->decode) return std::nullopt;
  }
  const double saved_bytes = none.bytes->wire_per_rank - row.bytes->wire_per_rank;
  const double added_seconds = row.encode->median + row.decode->median - (none.encode->median + none.decode->median);
  if (saved_bytes <= 0.0) return 0.0;
  if (added_seconds <= 0.0) return kInfinite;
  return saved_bytes * 8.0 / (added_seconds * 1e9);
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

void mark_pareto(const Group& group) {
  struct Point {
    double error, time;
  };
  std::vector<Point> points;
  for (const ResultRow* row : group) {
    const double error = judged_error(*row);
    points.push_back({error < kRounding ? 0.0 : error, judged_seconds(*row)});
  }
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

void compare(const Group& group) {
  const ResultRow* none = row_of(group, "none");
  const ResultRow* noop = row_of(group, "noop");
  for (ResultRow* row : group) {
    row->verdict = {};
    const bool baseline = row == none || row == noop;
    // With two levels of links, the bytes that a rank sends do not say how many of them cross the slow links.
    const bool flat = !row->network || row->network->node == 1;
    if (none != nullptr && !baseline && flat && row->timing == Timing::isolated)
      row->verdict.breakeven_gbit_s = breakeven(*row, *none);
    if (none != nullptr) {
      row->verdict.speedup_vs_none = ratio(seconds_of_total(*none), seconds_of_total(*row));
      row->verdict.iteration_speedup_vs_none = ratio(seconds_of_iteration(*none), seconds_of_iteration(*row));
    }
    if (noop != nullptr) row->verdict.headroom_vs_noop = ratio(seconds_of_total(*row), seconds_of_total(*noop));
  }
  mark_pareto(group);
}

}  // namespace

double judged_error(const ResultRow& row) {
  const bool delays = row.codec.error_feedback || row.codec.descriptor->memory;
  if (delays) return row.cumulative_nmse.value_or(kInfinite);
  return row.errors ? row.errors->nmse() : kInfinite;
}

double judged_seconds(const ResultRow& row) {
  if (row.iteration) return row.iteration->seconds;
  return row.total && row.total->median > 0.0 ? row.total->median : kInfinite;
}

void set_verdicts(std::span<ResultRow> rows) {
  for (const auto& group : groups_of(rows)) compare(group);
}

}  // namespace gradtool
