// What `gradtool bench` prints for people: the table of measured rows, those of modelled networks, and the advice.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <limits>
#include <map>

#include "lib/bench/result.hpp"
#include "lib/core/text.hpp"

namespace gradtool {
namespace {

// A smaller gain is not worth an error, because neither the model nor the measured times are that exact.
constexpr double kWorthwhile = 1.05;

using Status = ResultRow::Status;

/// A number as `format` writes it, or a dash where it was not measured.
std::string shown(const std::optional<double>& value, const char* format) {
  return value ? fmt::format(fmt::runtime(format), *value) : "-";
}

std::optional<double> total_us(const ResultRow& row) {
  return row.total ? std::optional{row.total->median * 1e6} : std::nullopt;
}

/// The text in lines of at most `width` characters, broken at spaces, all but the first indented.
std::string wrapped(const std::string& text, std::size_t width) {
  std::string out;
  std::string_view rest = text;
  while (rest.size() + (out.empty() ? 0 : 2) > width) {
    const std::size_t room = width - (out.empty() ? 0 : 2);
    const std::size_t space = rest.rfind(' ', room);
    const std::size_t cut = space == std::string_view::npos || space == 0 ? room : space;
    out += fmt::format("{}{}\n", out.empty() ? "" : "  ", rest.substr(0, cut));
    rest.remove_prefix(std::min(rest.size(), cut + (cut == space ? 1 : 0)));
  }
  return out + fmt::format("{}{}\n", out.empty() ? "" : "  ", rest);
}

std::vector<std::string> clauses_of(const std::string& message) {
  std::vector<std::string> clauses;
  for (std::size_t start = 0; start < message.size();) {
    const std::size_t end = std::min(message.find("; ", start), message.size());
    clauses.push_back(message.substr(start, end - start));
    start = end + 2;
  }
  return clauses;
}

bool contains(const std::vector<std::string>& clauses, const std::string& clause) {
  return std::find(clauses.begin(), clauses.end(), clause) != clauses.end();
}

/// The remarks of the rows that are ok. A clause that all of them have is printed once, for all.
class Remarks {
 public:
  void add(const std::string& row_name, const std::string& message) {
    all_.emplace_back(row_name, clauses_of(message));
    common_ = all_.size() == 1 ? all_.front().second : in_both(common_, all_.back().second);
  }
  [[nodiscard]] std::string text() const {
    std::string text;
    const bool several = all_.size() > 1;
    for (const auto& [row_name, clauses] : all_) {
      std::vector<std::string> own;
      for (const auto& clause : clauses) {
        if (!several || !contains(common_, clause)) own.push_back(clause);
      }
      if (!own.empty()) text += wrapped(fmt::format("{}: {}", row_name, fmt::join(own, "; ")), 100);
    }
    if (several && !common_.empty()) text += wrapped(fmt::format("all: {}", fmt::join(common_, "; ")), 100);
    return text;
  }

 private:
  static std::vector<std::string> in_both(const std::vector<std::string>& a, const std::vector<std::string>& b) {
    std::vector<std::string> both;
    std::copy_if(a.begin(), a.end(), std::back_inserter(both), [&](auto& clause) { return contains(b, clause); });
    return both;
  }

  std::vector<std::pair<std::string, std::vector<std::string>>> all_;
  std::vector<std::string> common_;
};

/// The modelled rows of one network with one number of ranks.
struct ModelledGroup {
  std::string network;
  int ranks;
  std::vector<const ResultRow*> rows;

  [[nodiscard]] const ResultRow* find(std::string_view codec) const {
    const auto found = std::find_if(rows.begin(), rows.end(), [&](auto* row) { return row->codec.name() == codec; });
    return found == rows.end() ? nullptr : *found;
  }
};

std::vector<ModelledGroup> modelled_groups(std::span<const ResultRow> rows) {
  std::vector<ModelledGroup> groups;
  for (const ResultRow& row : rows) {
    if (!row.modelled()) continue;
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const ModelledGroup& group) {
      return group.network == row.network->name && group.ranks == row.ranks;
    });
    if (same == groups.end())
      groups.push_back({row.network->name, row.ranks, {&row}});
    else
      same->rows.push_back(&row);
  }
  return groups;
}

/// At most five characters below 100000.
std::string short_number(double value) {
  if (value < 0.01) return "<0.01";
  return fmt::format("{:.{}f}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
}

/// A line for each codec and a column for each group, which is a number of ranks.
template <class Value>
std::string table_by_ranks(const std::vector<const ModelledGroup*>& groups, bool with_none, const Value& value_of) {
  std::vector<std::string> header{"codec"};
  std::vector<std::vector<std::string>> lines;
  std::map<std::string, std::size_t> line_of;
  for (const ModelledGroup* group : groups) {
    header.push_back(fmt::format("{}", group->ranks));
    for (const ResultRow* row : group->rows) {
      if (row->codec.name() == "none" && !with_none) continue;
      const auto [found, fresh] = line_of.emplace(short_name(*row), lines.size());
      if (fresh) lines.push_back({found->first});
      const std::optional<double> value = value_of(*row);
      lines[found->second].push_back(value ? short_number(*value) : "-");
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

/// What judged_seconds compares, as a clause about a row and that of `none`.
std::string gain_text(const ResultRow& row, const ResultRow& none) {
  const std::string times =
      fmt::format("{} instead of {}", human_seconds(judged_seconds(row)), human_seconds(judged_seconds(none)));
  const auto efficiency = row.scaling_efficiency();
  const auto before = none.scaling_efficiency();
  if (!efficiency || !before) return fmt::format("{} for a step's gradients", times);
  return fmt::format("{} an iteration, an efficiency of {} instead of {}", times, percent(*efficiency),
                     percent(*before));
}

/// The codec to take, and a sentence that says why and begins with a small letter.
struct Advice {
  std::string codec, why;
};

Advice advise_for(const ModelledGroup& group, double max_nmse) {
  const ResultRow& none = *group.find("none");
  const double uncompressed = judged_seconds(none);
  const ResultRow* best = nullptr;
  for (const ResultRow* row : group.rows) {
    if (row->codec.name() == "noop" || row == &none) continue;
    if (!(judged_error(*row) <= max_nmse)) continue;
    if (best == nullptr || judged_seconds(*row) < judged_seconds(*best)) best = row;
  }
  const std::string limit = fmt::format(" with an error of at most {:g}", max_nmse);
  if (best == nullptr) return {"none", fmt::format("there is no codec here{}.", limit)};
  const double gain = uncompressed / judged_seconds(*best);
  const std::string name = short_name(*best);
  const std::string times = gain_text(*best, none);
  if (gain >= kWorthwhile) {
    return {name, fmt::format("{:.3g} times faster than no compression: {}; error {:.2g}.", gain, times,
                              judged_error(*best))};
  }
  const char* verdict = gain > 1.005 ? "gains too little" : gain > 0.995 ? "is no faster" : "is slower";
  const ResultRow* noop = group.find("noop");
  const bool hopeless = noop != nullptr && uncompressed < kWorthwhile * judged_seconds(*noop);
  return {"none", fmt::format("the fastest codec{}, {}, {}: {}.{}", limit, name, verdict, times,
                              hopeless ? " Even sending nothing would gain less than 5 %." : "")};
}

}  // namespace

std::string short_name(const ResultRow& row) {
  const std::string params = row.codec.params_text();
  const std::string defaults = parse_codec(row.codec.name()).params_text();
  if (params == defaults) return row.codec.name();
  std::string changed;
  for (std::size_t start = 0; start < params.size();) {
    const auto end = std::min(params.find(',', start), params.size());
    const std::string part = params.substr(start, end - start);
    if (("," + defaults + ",").find("," + part + ",") == std::string::npos)
      changed += (changed.empty() ? "" : ",") + part;
    start = end + 1;
  }
  return row.codec.name() + ":" + changed;
}

std::string terminal_table(std::span<const ResultRow> rows) {
  struct Line {
    const ResultRow *isolated, *concurrent;  ///< the same row where only one timing was taken
  };
  std::vector<Line> lines;  // one for each codec
  const auto key = [](const ResultRow& row) { return row.codec.name() + row.codec.params_text(); };
  for (const ResultRow& row : rows) {
    if (row.tensor != "all" || row.modelled()) continue;
    const auto same =
        std::find_if(lines.begin(), lines.end(), [&](const Line& line) { return key(*line.isolated) == key(row); });
    if (same == lines.end())
      lines.push_back({&row, &row});
    else
      (row.timing == Timing::concurrent ? same->concurrent : same->isolated) = &row;
  }
  const auto sort_time = [](const Line& line) { return total_us(*line.concurrent).value_or(1e300); };
  std::stable_sort(lines.begin(), lines.end(),
                   [&](const Line& a, const Line& b) { return sort_time(a) < sort_time(b); });
  std::vector<std::vector<std::string>> cells;
  Remarks remarks;
  for (const auto& [isolated, concurrent] : lines) {
    if (isolated->status == Status::ok) remarks.add(short_name(*isolated), isolated->message);
    if (concurrent != isolated && concurrent->status == Status::ok && concurrent->message != isolated->message &&
        !concurrent->message.empty()) {
      const char* which = concurrent->pipeline > 1 ? "pipelined" : "concurrent";
      remarks.add(fmt::format("{} {}", short_name(*concurrent), which), concurrent->message);
    }
    const std::optional<double> nmse = isolated->errors ? std::optional{isolated->errors->nmse()} : std::nullopt;
    cells.push_back(
        {short_name(*isolated), shown(isolated->payload_ratio(), "{:.2f}"), shown(isolated->wire_ratio(), "{:.2f}"),
         shown(nmse, "{:.3g}"), shown(isolated->cumulative_nmse, "{:.3g}"), shown(isolated->encode_gbps(), "{:.2f}"),
         shown(isolated->decode_gbps(), "{:.2f}"), shown(total_us(*concurrent), "{:.0f}"),
         shown(concurrent->verdict.speedup_vs_none, "{:.2f}"), shown(isolated->verdict.breakeven_gbit_s, "{:.3g}"),
         isolated->status == Status::ok ? "" : std::string{name_of(isolated->status)}});
  }
  return format_rows(
             {"codec", "payload", "wire", "nmse", "cum.nmse", "enc", "dec", "total", "speedup", "wins below", ""},
             cells, {false, true, true, true, true, true, true, true, true, true, false}, 24) +
         "payload, wire: times smaller than fp32 and than its ring all-reduce; enc, dec: GB/s of raw bytes,\n"
         "one rank at a time; total: us a step, all ranks at once; wins below: Gbit/s network.\n" +
         remarks.text();
}

std::string modelled_tables(std::span<const ResultRow> rows) {
  const auto groups = modelled_groups(rows);
  std::string out;
  for (std::size_t first = 0; first < groups.size();) {
    std::vector<const ModelledGroup*> same;
    while (first < groups.size() && (same.empty() || groups[first].network == same.front()->network))
      same.push_back(&groups[first++]);
    const std::string& network = same.front()->network;
    out += fmt::format("\n{}, modelled: times faster than none, for so many ranks; noop is the bound", network);
    out += table_by_ranks(same, false, [](const ResultRow& row) { return row.verdict.speedup_vs_none; });
    const auto& iteration = same.front()->rows.front()->iteration;
    if (!iteration) continue;
    out += fmt::format("\n{}, modelled: scaling efficiency in %, {} of computation, overlap {}", network,
                       human_seconds(iteration->compute_seconds),
                       iteration->overlap == Overlap::bucket ? "bucket" : "none");
    out += table_by_ranks(same, true, [](const ResultRow& row) {
      const auto efficiency = row.scaling_efficiency();
      return efficiency ? std::optional{100.0 * *efficiency} : std::nullopt;
    });
  }
  return out;
}

std::string advise(std::span<const ResultRow> rows, double max_nmse) {
  std::string out;
  auto groups = modelled_groups(rows);
  std::erase_if(groups, [](const ModelledGroup& group) { return group.find("none") == nullptr; });
  for (std::size_t i = 0; i < groups.size();) {
    // Numbers of ranks with the same answer share a line, which explains the last of them.
    const std::size_t first = i;
    Advice advice = advise_for(groups[i++], max_nmse);
    for (; i < groups.size() && groups[i].network == groups[first].network; ++i) {
      Advice next = advise_for(groups[i], max_nmse);
      if (next.codec != advice.codec) break;
      advice = std::move(next);
    }
    const int last = groups[i - 1].ranks;
    if (first + 1 == i) {
      advice.why.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(advice.why.front())));
      out += fmt::format("{}, {} ranks: {}. {}\n", groups[first].network, last, advice.codec, advice.why);
    } else {
      out += fmt::format("{}, {} to {} ranks: {}. At {} ranks {}\n", groups[first].network, groups[first].ranks, last,
                         advice.codec, last, advice.why);
    }
  }
  if (!out.empty())
    out += fmt::format("Of codecs with an error of at most {:g}: --max-nmse sets the bound.\n", max_nmse);
  const bool without_iterations = !groups.empty() && !groups.front().rows.front()->iteration;
  if (without_iterations)
    out += "Times are of the gradients alone: --compute-ms adds the computation that they can hide behind.\n";
  return out;
}

}  // namespace gradtool
