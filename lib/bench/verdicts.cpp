#include <cmath>
#include <limits>
#include <optional>

#include "lib/bench/cells.hpp"
#include "lib/bench/rows.hpp"

namespace gradtool {
namespace {

/// The row of `codec` for the same timing that covers all tensors.
std::optional<std::size_t> find_row(const Table& table, const std::string& codec, const std::string& timing) {
  for (std::size_t row = 0; row < table.rows().size(); ++row) {
    if (text(table, row, "codec") == codec && text(table, row, "timing") == timing &&
        text(table, row, "tensor") == "all" && text(table, row, "status") == "ok") {
      return row;
    }
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
  if (added_us <= 0.0) return std::numeric_limits<double>::infinity();
  return saved_bytes * 8.0 / (added_us * 1e3);  // bits per nanosecond are Gbit/s
}

}  // namespace

void set_verdicts(Table& table) {
  for (const std::string timing : {"isolated", "concurrent"}) {
    const auto none = find_row(table, "none", timing);
    const auto noop = find_row(table, "noop", timing);
    for (std::size_t row = 0; row < table.rows().size(); ++row) {
      if (text(table, row, "timing") != timing || text(table, row, "tensor") != "all" ||
          text(table, row, "status") != "ok")
        continue;
      if (timing == "isolated") {
        if (none && row != *none && text(table, row, "codec") != "noop")
          table.set(row, "breakeven_gbit_s", breakeven(table, row, *none));
        continue;
      }
      const auto total = number(table, row, "total_us_median");
      const auto error = number(table, row, "nmse");
      if (!total || *total <= 0.0) continue;
      if (none) table.set(row, "speedup_vs_none", number(table, *none, "total_us_median").value_or(0.0) / *total);
      if (noop) {
        const double floor = number(table, *noop, "total_us_median").value_or(0.0);
        if (floor > 0.0) table.set(row, "headroom_vs_noop", *total / floor);
      }
      bool dominated = false;
      for (std::size_t other = 0; other < table.rows().size() && error; ++other) {
        if (other == row || text(table, other, "timing") != timing || text(table, other, "tensor") != "all") continue;
        const auto other_total = number(table, other, "total_us_median");
        const auto other_error = number(table, other, "nmse");
        if (other_total && other_error && *other_total < *total && *other_error < *error) dominated = true;
      }
      if (error) table.set(row, "pareto", std::isfinite(*error) && !dominated);
    }
  }
}

}  // namespace gradtool
