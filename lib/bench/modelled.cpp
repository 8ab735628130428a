#include "lib/bench/modelled.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "lib/bench/cells.hpp"
#include "lib/core/text.hpp"
#include "lib/report/terminal.hpp"

namespace gradtool {
namespace {

/// A network with a number of ranks, in the order of the table.
using Place = std::pair<std::string, std::int64_t>;
struct Group {
  Place place;
  std::vector<std::size_t> rows;
};
std::vector<Group> groups_of(const Table& table) {
  std::vector<Group> groups;
  for (std::size_t row = 0; row < table.rows().size(); ++row) {
    if (text(table, row, "time_source") != "modelled") continue;
    const Place place{text(table, row, "network"), static_cast<std::int64_t>(number(table, row, "ranks").value_or(0))};
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const Group& g) { return g.place == place; });
    if (same == groups.end())
      groups.push_back({place, {row}});
    else
      same->rows.push_back(row);
  }
  return groups;
}

std::string name_of_row(const Table& table, std::size_t row) {
  const std::string params = text(table, row, "params");
  return text(table, row, "codec") + (params.empty() ? "" : ":" + params);
}

std::optional<std::size_t> find_codec_row(const Table& table, const Group& group, std::string_view codec) {
  for (const std::size_t row : group.rows) {
    if (text(table, row, "codec") == codec) return row;
  }
  return std::nullopt;
}

void add_row(Table& table, const ModelBasis& basis, const Network& network, int nodes) {
  const int ranks = nodes * network.node;
  const auto measured = static_cast<int>(number(table, basis.row, "ranks").value_or(1));
  std::vector<Cell> cells = table.rows()[basis.row];
  const auto set = [&](std::string_view column, Cell value) { cells[table.index_of(column)] = std::move(value); };
  for (const auto& column : table.columns()) {  // what was measured and is not what this row says
    for (const char* what :
         {"_us_", "_noise", "_gbps", "_share", "samples", "breakeven", "speedup", "headroom", "pareto"}) {
      if (column.name.find(what) != std::string::npos) set(column.name, {});
    }
  }
  const ModelledStep step = model_step(basis.uses, network, measured, ranks);
  const double encode = number(table, basis.row, "encode_us_median").value_or(0.0);
  const bool decodes_all = basis.scheme == Scheme::gather && basis.spec.descriptor->aggregation != Aggregation::none;
  const double decodes = decodes_all ? static_cast<double>(ranks) / measured : 1.0;
  const double decode = number(table, basis.row, "decode_us_median").value_or(0.0) * decodes;
  const double raw = number(table, basis.row, "raw_bytes").value_or(0.0);
  const double p = ranks;
  set("network", network.name);
  set("time_source", std::string{"modelled"});
  set("comm", std::string{"model"});
  set("ranks", std::int64_t{ranks});
  set("alpha_us", network.link.alpha * 1e6);
  set("link_gbit_s", network.link.beta * 8e-9);
  set("node", std::int64_t{network.node});
  set("wire_bytes_per_rank", step.wire_bytes);
  set("wire_ratio", step.wire_bytes > 0.0 ? Cell{2.0 * (p - 1.0) / p * raw / step.wire_bytes} : Cell{});
  set("encode_us_median", encode);
  set("comm_us_median", step.seconds * 1e6);
  set("decode_us_median", decode);
  const double total = encode + step.seconds * 1e6 + decode;
  set("total_us_median", total);
  if (total > 0.0) set("algbw_gbps", raw / total / 1e3);
  if (total > 0.0) set("busbw_gbps", raw / total / 1e3 * 2.0 * (p - 1.0) / p);
  const std::string before = text(table, basis.row, "message");
  set("message",
      fmt::format("{}{}errors and payload as measured on {} ranks", before, before.empty() ? "" : "; ", measured));
  table.add(std::move(cells));
}

void compare(Table& table, const Group& group) {
  const auto none = find_codec_row(table, group, "none");
  const auto noop = find_codec_row(table, group, "noop");
  for (const std::size_t row : group.rows) {
    const double total = number(table, row, "total_us_median").value_or(0.0);
    if (total <= 0.0) continue;
    if (none) table.set(row, "speedup_vs_none", *number(table, *none, "total_us_median") / total);
    const double floor = noop ? number(table, *noop, "total_us_median").value_or(0.0) : 0.0;
    if (floor > 0.0) table.set(row, "headroom_vs_noop", total / floor);
    const auto error = number(table, row, "nmse");
    if (!error) continue;
    const bool dominated = std::any_of(group.rows.begin(), group.rows.end(), [&](std::size_t other) {
      const auto other_error = number(table, other, "nmse");
      return other_error && *other_error < *error && *number(table, other, "total_us_median") < total;
    });
    table.set(row, "pareto", std::isfinite(*error) && !dominated);
  }
}

/// What a codec's error is judged by.
double judged_error(const Table& table, std::size_t row) {
  const CodecSpec spec = parse_codec(name_of_row(table, row));
  const bool delays = spec.error_feedback || spec.descriptor->memory;
  return number(table, row, delays ? "cumulative_nmse" : "nmse").value_or(std::numeric_limits<double>::infinity());
}

}  // namespace

void add_modelled(Table& table, const std::vector<ModelBasis>& bases, const std::vector<Network>& networks,
                  const std::vector<int>& nodes) {
  for (const auto& network : networks) {
    for (const int count : nodes) {
      for (const auto& basis : bases) add_row(table, basis, network, count);
    }
  }
  for (const auto& group : groups_of(table)) compare(table, group);
}

std::string modelled_table(const Table& table) {
  const auto groups = groups_of(table);
  if (groups.empty()) return {};
  std::vector<std::string> header{"times faster than none"};
  std::vector<bool> right{false};
  std::vector<std::string> names;
  std::map<std::string, std::vector<std::string>> lines;
  for (const auto& group : groups) {
    header.push_back(fmt::format("{} x{}", group.place.first, group.place.second));
    right.push_back(true);
    for (const std::size_t row : group.rows) {
      if (text(table, row, "codec") == "none") continue;
      const std::string name = short_name(table, row);
      if (lines.find(name) == lines.end()) names.push_back(name);
      const auto speedup = number(table, row, "speedup_vs_none");
      lines[name].push_back(speedup ? fmt::format("{:.3g}", *speedup) : "-");
    }
  }
  std::vector<std::vector<std::string>> rows;
  for (const auto& name : names) {
    rows.push_back({name});
    rows.back().insert(rows.back().end(), lines[name].begin(), lines[name].end());
  }
  return "\nModelled, from measured encode and decode and counted bytes (network xRANKS):\n" +
         format_rows(header, rows, right, 32);
}

std::string advise(const Table& table, std::optional<double> max_nmse) {
  std::string out;
  for (const auto& group : groups_of(table)) {
    const auto none = find_codec_row(table, group, "none");
    if (!none) continue;
    const double uncompressed = *number(table, *none, "total_us_median");
    std::optional<std::size_t> best;
    for (const std::size_t row : group.rows) {
      const std::string codec = text(table, row, "codec");
      if (codec == "noop" || row == *none || (max_nmse && !(judged_error(table, row) <= *max_nmse))) continue;
      if (!best || *number(table, row, "total_us_median") < *number(table, *best, "total_us_median")) best = row;
    }
    const std::string limit = max_nmse ? fmt::format(" with an error of at most {:g}", *max_nmse) : std::string{};
    const std::string place = fmt::format("{}, {} ranks", group.place.first, group.place.second);
    if (!best) {
      out += fmt::format("{}: none. No codec here has an error of at most {:g}.\n", place, max_nmse.value_or(0.0));
      continue;
    }
    const double total = *number(table, *best, "total_us_median");
    const std::string gain =
        fmt::format("{} instead of {}", human_seconds(total * 1e-6), human_seconds(uncompressed * 1e-6));
    if (total >= uncompressed) {
      out += fmt::format("{}: none. The fastest codec{}, {}, would take {}.\n", place, limit, short_name(table, *best),
                         gain);
      continue;
    }
    out += fmt::format("{}: {}. {:.2f} times faster than no compression: {} a step; error {:.3g}.\n", place,
                       short_name(table, *best), uncompressed / total, gain, judged_error(table, *best));
  }
  return out;
}

}  // namespace gradtool
