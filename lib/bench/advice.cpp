#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>

#include "lib/bench/cells.hpp"
#include "lib/bench/modelled.hpp"
#include "lib/bench/verdicts.hpp"
#include "lib/core/text.hpp"
#include "lib/report/terminal.hpp"

namespace gradtool {
namespace {

// A gain below this is not worth an error: neither the model nor the measured times are that exact.
constexpr double kWorthwhile = 1.05;

/// The modelled rows of one network with one number of ranks.
struct Place {
  std::string network, ranks;
  std::vector<std::size_t> rows;

  [[nodiscard]] std::optional<std::size_t> find(const Table& table, std::string_view codec) const {
    const auto found =
        std::find_if(rows.begin(), rows.end(), [&](std::size_t row) { return text(table, row, "codec") == codec; });
    return found == rows.end() ? std::nullopt : std::optional{*found};
  }
};

std::vector<Place> places_of(const Table& table) {
  std::vector<Place> places;
  for (std::size_t row = 0; row < table.rows().size(); ++row) {
    if (text(table, row, "time_source") != "modelled") continue;
    const std::string network = text(table, row, "network");
    const std::string ranks = text(table, row, "ranks");
    const auto same = std::find_if(places.begin(), places.end(),
                                   [&](const Place& p) { return p.network == network && p.ranks == ranks; });
    if (same == places.end())
      places.push_back({network, ranks, {row}});
    else
      same->rows.push_back(row);
  }
  return places;
}

/// At most five characters below 100000.
std::string short_number(double value) {
  if (value < 0.01) return "<0.01";
  return fmt::format("{:.{}f}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
}

/// One column's numbers: a line for each codec, a column for each number of ranks.
std::string table_of(const Table& table, const std::vector<const Place*>& places, const std::string& title,
                     std::string_view column, double scale, bool with_none) {
  std::vector<std::string> header{title};
  std::vector<std::vector<std::string>> lines;
  std::map<std::string, std::size_t> line_of;
  for (const Place* place : places) {
    header.push_back(place->ranks);
    for (const std::size_t row : place->rows) {
      const std::string codec = text(table, row, "codec");
      if (codec == "none" && !with_none) continue;
      const auto [found, fresh] = line_of.emplace(short_name(table, row), lines.size());
      if (fresh) lines.push_back({found->first});
      const auto value = number(table, row, column);
      lines[found->second].push_back(value ? short_number(*value * scale) : "-");
    }
  }
  std::vector<bool> right(header.size(), true);
  right.front() = false;
  return "\n" + format_rows(header, lines, right, 26);
}

/// Two significant digits: "93 %", "0.043 %".
std::string percent(double share) {
  const double value = 100.0 * share;
  return value < 9.95 ? fmt::format("{:.2g} %", value) : fmt::format("{:.0f} %", value);
}

/// What `judged_time` compares, as a sentence about two rows.
std::string gain_text(const Table& table, std::size_t row, std::size_t none) {
  const double mine = judged_time(table, row);
  const double uncompressed = judged_time(table, none);
  const std::string times =
      fmt::format("{} instead of {}", human_seconds(mine * 1e-6), human_seconds(uncompressed * 1e-6));
  const auto efficiency = number(table, row, "scaling_efficiency");
  const auto before = number(table, none, "scaling_efficiency");
  if (!efficiency || !before) return fmt::format("{} for a step's gradients", times);
  return fmt::format("{} an iteration, an efficiency of {} instead of {}", times, percent(*efficiency),
                     percent(*before));
}

/// An answer, and a sentence that says why, without its first letter's case.
struct Advice {
  std::string codec, why;
};

Advice advise_at(const Table& table, const Place& place, double max_nmse) {
  const std::size_t none = *place.find(table, "none");
  const double uncompressed = judged_time(table, none);
  std::optional<std::size_t> best;
  for (const std::size_t row : place.rows) {
    if (text(table, row, "codec") == "noop" || row == none) continue;
    if (!(judged_error(table, row) <= max_nmse)) continue;
    if (!best || judged_time(table, row) < judged_time(table, *best)) best = row;
  }
  const std::string limit = fmt::format(" with an error of at most {:g}", max_nmse);
  if (!best) return {"none", fmt::format("there is no codec here{}.", limit)};
  const double gain = uncompressed / judged_time(table, *best);
  const std::string name = short_name(table, *best);
  const std::string times = gain_text(table, *best, none);
  if (gain >= kWorthwhile) {
    return {name, fmt::format("{:.3g} times faster than no compression: {}; error {:.2g}.", gain, times,
                              judged_error(table, *best))};
  }
  const char* verdict = gain > 1.005 ? "gains too little" : gain > 0.995 ? "is no faster" : "is slower";
  const auto noop = place.find(table, "noop");
  const bool hopeless = noop && uncompressed < kWorthwhile * judged_time(table, *noop);
  return {"none", fmt::format("the fastest codec{}, {}, {}: {}.{}", limit, name, verdict, times,
                              hopeless ? " Even sending nothing would gain less than 5 %." : "")};
}

}  // namespace

std::string modelled_tables(const Table& table) {
  const auto places = places_of(table);
  std::string out;
  for (std::size_t first = 0; first < places.size();) {
    std::vector<const Place*> same;
    while (first < places.size() && (same.empty() || places[first].network == same.front()->network))
      same.push_back(&places[first++]);
    const std::string& network = same.front()->network;
    out += fmt::format("\n{}, modelled: times faster than none, for so many ranks; noop is the bound", network);
    out += table_of(table, same, "codec", "speedup_vs_none", 1.0, false);
    const auto compute = number(table, same.front()->rows.front(), "compute_ms");
    if (!compute) continue;
    out += fmt::format("\n{}, modelled: scaling efficiency in %, {} of computation, overlap {}", network,
                       human_seconds(*compute * 1e-3), text(table, same.front()->rows.front(), "overlap"));
    out += table_of(table, same, "codec", "scaling_efficiency", 100.0, true);
  }
  return out;
}

std::string advise(const Table& table, double max_nmse) {
  std::string out;
  auto places = places_of(table);
  std::erase_if(places, [&](const Place& place) { return !place.find(table, "none"); });
  for (std::size_t i = 0; i < places.size();) {
    // Numbers of ranks with the same answer share a line, which explains the last of them.
    const std::size_t first = i;
    Advice advice = advise_at(table, places[i++], max_nmse);
    for (; i < places.size() && places[i].network == places[first].network; ++i) {
      Advice next = advise_at(table, places[i], max_nmse);
      if (next.codec != advice.codec) break;
      advice = std::move(next);
    }
    const std::string& last = places[i - 1].ranks;
    if (first + 1 == i) {
      advice.why.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(advice.why.front())));
      out += fmt::format("{}, {} ranks: {}. {}\n", places[first].network, last, advice.codec, advice.why);
    } else {
      out += fmt::format("{}, {} to {} ranks: {}. At {} ranks {}\n", places[first].network, places[first].ranks, last,
                         advice.codec, last, advice.why);
    }
  }
  if (!out.empty())
    out += fmt::format("Of codecs with an error of at most {:g}: --max-nmse sets the bound.\n", max_nmse);
  const bool steps = !places.empty() && !number(table, places.front().rows.front(), "compute_ms");
  if (steps) out += "Times are of the gradients alone: --compute-ms adds the computation that they can hide behind.\n";
  return out;
}

}  // namespace gradtool
