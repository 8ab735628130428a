#include "lib/bench/verdicts.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <vector>

#include "lib/bench/cells.hpp"
#include "lib/codecs/registry.hpp"

namespace gradtool {
namespace {

// The square of float32's rounding, times some: what sums in another order differ by, and no codec is better for.
constexpr double kRounding = 1e-13;
constexpr double kInfinite = std::numeric_limits<double>::infinity();

using Rows = std::vector<std::size_t>;

/// Rows that may be compared with each other, in the order of the table.
std::vector<Rows> groups_of(const Table& table) {
  std::map<std::string, std::size_t> index;
  std::vector<Rows> groups;
  for (std::size_t row = 0; row < table.rows().size(); ++row) {
    if (text(table, row, "tensor") != "all" || text(table, row, "status") != "ok") continue;
    std::string key;
    for (const char* column : {"time_source", "timing", "network", "ranks"}) key += text(table, row, column) + '\n';
    const auto [place, fresh] = index.emplace(key, groups.size());
    if (fresh) groups.emplace_back();
    groups[place->second].push_back(row);
  }
  return groups;
}

std::optional<std::size_t> find_codec(const Table& table, const Rows& rows, std::string_view codec) {
  for (const std::size_t row : rows) {
    if (text(table, row, "codec") == codec) return row;
  }
  return std::nullopt;
}

/// Time to compute: what no network can hide.
std::optional<double> compute_us(const Table& table, std::size_t row) {
  const auto encode = number(table, row, "encode_us_median");
  const auto decode = number(table, row, "decode_us_median");
  if (!encode || !decode) return std::nullopt;
  return *encode + *decode;
}

/// B with W_none/B + T_none = W/B + T: below it the codec wins. 0 when it sends no less than none; infinite when it
/// sends less and is no slower to compute, for then it wins on any network.
Cell breakeven(const Table& table, std::size_t row, std::size_t none) {
  const auto sent = number(table, row, "wire_bytes_per_rank");
  const auto sent_none = number(table, none, "wire_bytes_per_rank");
  const auto compute = compute_us(table, row);
  const auto compute_none = compute_us(table, none);
  if (!sent || !sent_none || !compute || !compute_none) return {};
  const double saved_bytes = *sent_none - *sent;
  const double added_us = *compute - *compute_none;
  if (saved_bytes <= 0.0) return 0.0;
  if (added_us <= 0.0) return kInfinite;
  return saved_bytes * 8.0 / (added_us * 1e3);  // bits per nanosecond are Gbit/s
}

/// column(base) / column(row); empty where either has none or takes no time.
Cell ratio(const Table& table, std::optional<std::size_t> base, std::size_t row, std::string_view column) {
  const auto above = base ? number(table, *base, column) : std::nullopt;
  const auto below = number(table, row, column);
  return above && below && *above > 0.0 && *below > 0.0 ? Cell{*above / *below} : Cell{};
}

void mark_pareto(Table& table, const Rows& rows) {
  struct Point {
    double error, time;
  };
  std::vector<Point> points;
  for (const std::size_t row : rows) {
    const double error = judged_error(table, row);
    points.push_back({error < kRounding ? 0.0 : error, judged_time(table, row)});
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Point& mine = points[i];
    // noop bounds the others, for what errs as much as sending nothing is of no use, but it is not a choice.
    if (text(table, rows[i], "codec") == "noop" || !std::isfinite(mine.time)) continue;
    const bool dominated = std::any_of(points.begin(), points.end(), [&](const Point& other) {
      return other.error <= mine.error && other.time <= mine.time &&
             (other.error < mine.error || other.time < mine.time);
    });
    table.set(rows[i], "pareto", std::isfinite(mine.error) && !dominated);
  }
}

void compare(Table& table, const Rows& rows) {
  const auto none = find_codec(table, rows, "none");
  const auto noop = find_codec(table, rows, "noop");
  for (const std::size_t row : rows) {
    const bool baseline = row == none || row == noop;
    // On two levels, bytes do not say how much of them crosses the slow links.
    const bool flat = number(table, row, "node").value_or(1.0) == 1.0;
    if (none && !baseline && flat && text(table, row, "timing") == "isolated")
      table.set(row, "breakeven_gbit_s", breakeven(table, row, *none));
    table.set(row, "speedup_vs_none", ratio(table, none, row, "total_us_median"));
    if (noop) table.set(row, "headroom_vs_noop", ratio(table, row, *noop, "total_us_median"));
    const auto iteration = number(table, row, "iteration_ms");
    if (!iteration) continue;
    table.set(row, "scaling_efficiency", number(table, row, "compute_ms").value_or(0.0) / *iteration);
    table.set(row, "iteration_speedup_vs_none", ratio(table, none, row, "iteration_ms"));
  }
  mark_pareto(table, rows);
}

}  // namespace

double judged_error(const Table& table, std::size_t row) {
  const std::string params = text(table, row, "params");
  const CodecSpec spec = parse_codec(text(table, row, "codec") + (params.empty() ? "" : ":" + params));
  const bool delays = spec.error_feedback || spec.descriptor->memory;
  return number(table, row, delays ? "cumulative_nmse" : "nmse").value_or(kInfinite);
}

double judged_time(const Table& table, std::size_t row) {
  if (const auto iteration = number(table, row, "iteration_ms")) return *iteration * 1e3;
  const auto total = number(table, row, "total_us_median");
  return total && *total > 0.0 ? *total : kInfinite;
}

void set_verdicts(Table& table) {
  for (const auto& rows : groups_of(table)) compare(table, rows);
}

}  // namespace gradtool
