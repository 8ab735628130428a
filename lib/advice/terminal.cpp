// The texts that `gradtool bench` prints for people: the table of measured rows, those of modelled networks, and the
// advice.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>

#include "lib/advice/advice.hpp"
#include "lib/advice/confidence.hpp"
#include "lib/advice/own_trial.hpp"
#include "lib/advice/reproduce.hpp"
#include "lib/advice/terminal.hpp"
#include "lib/bench/job_trace.hpp"
#include "lib/bench/result.hpp"
#include "lib/core/text.hpp"
#include "lib/report/color.hpp"

namespace gradtool {
namespace {

/// Whose codec times and whose collectives the advice is about.
std::string headline(const ResultRow& row) {
  return fmt::format("With codecs {}on {} and {}:", row.codec_times == CodecTimes::floor ? "at best, " : "",
                     processor_text(row), collectives_text(row));
}

using Status = ResultRow::Status;

/// A number as `format` writes it, or a dash where it was not measured.
std::string shown(const std::optional<double>& value, const char* format) {
  return value ? fmt::format(fmt::runtime(format), *value) : "-";
}

/// A paragraph: as it is in Markdown, else in lines of 80 characters.
std::string paragraph(const std::string& text, Style style) {
  return style == Style::markdown ? text + "\n\n" : wrapped(text, 80);
}

/// One of several remarks.
std::string remark(const std::string& text, Style style) {
  return style == Style::markdown ? "- " + text + "\n" : wrapped(text, 80);
}

std::string rows_text(const std::vector<std::string>& header, const std::vector<std::vector<std::string>>& rows,
                      const std::vector<bool>& align_right, std::size_t max_cell, Style style) {
  return style == Style::markdown ? markdown_rows(header, rows, align_right) + "\n"
                                  : format_rows(header, rows, align_right, max_cell);
}

/// How long a name in that column may be, so that lines stay within 80 characters: at least 12, at most `most`.
std::size_t name_room(const std::vector<std::string>& header, const std::vector<std::vector<std::string>>& rows,
                      std::size_t column, std::size_t most) {
  std::size_t others = 0;
  for (std::size_t c = 0; c < header.size(); ++c) {
    std::size_t width = header[c].size();
    for (const auto& row : rows) width = std::max(width, row.size() > 1 ? row[c].size() : 0);
    if (c != column) others += width + 2;
  }
  return std::clamp<std::size_t>(others < 80 ? 80 - others : 0, 12, most);
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
  [[nodiscard]] std::string text(Style style) const {
    std::string text;
    const bool several = all_.size() > 1;
    for (const auto& [row_name, clauses] : all_) {
      std::vector<std::string> own;
      for (const auto& clause : clauses) {
        if (!several || !contains(common_, clause)) own.push_back(clause);
      }
      if (!own.empty()) text += remark(fmt::format("{}: {}", row_name, joined(own, "; ")), style);
    }
    if (several && !common_.empty()) text += remark(fmt::format("all: {}", joined(common_, "; ")), style);
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

/// At most five characters below 100000.
std::string short_number(double value) {
  if (value < 0.01) return "<0.01";
  return fmt::format("{:.{}f}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
}

/// The name as narrow columns have it.
std::string without_levels(std::string name) {
  if (const std::size_t levels = name.find(" in two levels"); levels != std::string::npos)
    name.replace(levels, std::string::npos, " 2L");
  return name;
}

/// A line for each codec, and for each of several granularities, and a column for each group, which is a number of
/// ranks.
template <class Value>
std::string table_by_ranks(const std::vector<const ModelledGroup*>& groups, bool several_cuts, bool with_none,
                           Style style, const Value& value_of) {
  std::vector<std::string> header{"codec"};
  std::vector<std::vector<std::string>> lines;
  std::map<std::string, std::size_t> line_of;
  for (const ModelledGroup* group : groups) {
    header.push_back(fmt::format("{}", group->ranks));
    for (const ResultRow* row : group->rows) {
      if (row->codec.name() == "none" && !with_none) continue;
      const auto [found, fresh] = line_of.emplace(
          without_levels(short_name(*row)) + (several_cuts ? " " + row->granularity : ""), lines.size());
      if (fresh) lines.emplace_back(header.size() - 1, "-").front() = found->first;
      const std::optional<double> value = value_of(*row);
      lines[found->second].push_back(value ? short_number(*value) : "-");
    }
    for (auto& line : lines) line.resize(header.size(), "-");  // a way that is not there among so few ranks
  }
  std::vector<bool> right(header.size(), true);
  right.front() = false;
  return (style == Style::markdown ? "\n\n" : "\n") + rows_text(header, lines, right, 26, style);
}

/// Whether two rows are of one codec with the same parameters, on the same way.
bool same_codec(const ResultRow& a, const ResultRow& b) {
  return a.codec.name() == b.codec.name() && a.codec.params_text() == b.codec.params_text() && same_way(a, b);
}

bool any_noisy(const std::vector<const ResultRow*>& rows) {
  return std::any_of(rows.begin(), rows.end(), [](const ResultRow* row) { return is_noisy(*row); });
}

std::string noise_text(const ResultRow& row) {
  if (row.codec.name() == "none" || row.codec.name() == "noop") return "";
  const auto noise = noise_percent(row);
  return noise ? fmt::format("{}{:.0f}", *noise > kNoisyPercent ? "!" : "", *noise) : "-";
}

/// Whether the interval of the codec's times lets the break-even be more than 20 % off. A break-even moves far with
/// little time where the codec takes nearly as long as sending what it saves.
bool is_open(const ResultRow::Verdict& verdict) {
  const double to = verdict.breakeven_gbit_s.value_or(0.0);
  if (!verdict.breakeven_low || !verdict.breakeven_high || to == 0.0 || std::isinf(to)) return false;
  return *verdict.breakeven_high > (1.0 + kNoisyPercent / 100.0) * to ||
         *verdict.breakeven_low < (1.0 - kNoisyPercent / 100.0) * to;
}

std::string breakeven_text(const ResultRow::Verdict& verdict) {
  if (!verdict.breakeven_gbit_s) return "-";
  const double to = *verdict.breakeven_gbit_s;
  const double from = verdict.breakeven_from.value_or(0.0);
  if (to == 0.0) return "never";
  const auto digits = [](double value) {
    return value < 99.5 ? fmt::format("{:.2g}", value) : fmt::format("{:.0f}", value);
  };
  if (from > 0.0)
    return std::isinf(to) ? fmt::format(">{}", digits(from)) : fmt::format("{}-{}", digits(from), digits(to));
  return std::isinf(to) ? "always" : (is_open(verdict) ? "!" : "") + digits(to);
}

/// The lines of a table behind its header, each in its ink.
std::string with_ink(const std::string& table, const std::vector<std::optional<Ink>>& inks) {
  std::string out;
  std::size_t start = table.find('\n') + 1;
  out = table.substr(0, start);
  for (const auto& ink : inks) {
    const std::size_t end = table.find('\n', start);
    const std::string_view line = std::string_view{table}.substr(start, end - start);
    out += inked(line, ink.value_or(Ink::taken), ink.has_value()) + "\n";
    start = end + 1;
  }
  return out + table.substr(start);
}

/// The type in which the rows' gradients are reduced uncompressed.
std::string baseline_words(const std::vector<const ResultRow*>& rows) {
  return rows.empty() ? "raw" : type_words(rows.front()->baseline_dtype);
}

/// The values that the errors of a collective are of.
std::string_view result_words(Collective op) {
  switch (op) {
    case Collective::all_reduce:
    case Collective::reduce_scatter:
      break;
    case Collective::all_gather:
      return "what a step gathers";
    case Collective::all_to_all:
      return "what a step brings";
  }
  return "a step's mean gradient";
}

}  // namespace

std::vector<std::size_t> rows_of_best_ways(std::span<const ResultRow> rows,
                                           const std::optional<Acceptance>& acceptance) {
  std::vector<const ResultRow*> fastest;  // of each method, in each group
  const auto add_fastest = [&](const std::optional<Acceptance>& accepted) {
    const auto rank = [&accepted](const ResultRow& row) {
      return std::pair{accepted && !is_accepted(row, *accepted), judged_seconds(row)};
    };
    for (const ModelledGroup& group : modelled_groups(rows)) {
      const auto begun = static_cast<std::ptrdiff_t>(fastest.size());
      for (const ResultRow* row : group.rows) {
        const auto same = std::find_if(fastest.begin() + begun, fastest.end(),
                                       [&](const ResultRow* other) { return same_method(*other, *row); });
        if (same == fastest.end())
          fastest.push_back(row);
        else if (rank(*row) < rank(**same))
          *same = row;
      }
    }
  };
  add_fastest(acceptance);
  // The way that would be the fastest after a trial may be another one than that which is taken without.
  if (acceptance && acceptance->trained) add_fastest(Acceptance{acceptance->max_nmse});
  // The advice says why the fastest of all is not taken.
  if (acceptance) add_fastest({});
  // The advice may take a slower way that errs less.
  if (acceptance) {
    for (const NetworkAdvice& advice : advice_of(rows, *acceptance)) {
      if (advice.taken != nullptr) fastest.push_back(advice.taken);
    }
  }
  std::vector<std::size_t> kept;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    bool known = false, wins = false;
    for (const ResultRow* best : fastest) {
      if (!same_method(*best, rows[i])) continue;
      known = true;
      wins = wins || same_way(*best, rows[i]);
    }
    if (wins || !known) kept.push_back(i);
  }
  return kept;
}

namespace {

std::vector<ResultRow> without_slower_ways(std::span<const ResultRow> rows,
                                           const std::optional<Acceptance>& acceptance = {}) {
  std::vector<ResultRow> kept;
  for (const std::size_t i : rows_of_best_ways(rows, acceptance)) kept.push_back(rows[i]);
  return kept;
}

}  // namespace

std::string terminal_table(std::span<const ResultRow> all_rows, Style style,
                           const std::optional<Acceptance>& acceptance) {
  const std::vector<ResultRow> kept = without_slower_ways(all_rows, acceptance);
  const std::span<const ResultRow> rows{kept};
  const bool several_cuts = has_several_granularities(rows);
  // By modelled time on the first network and number of ranks where there is one, else by break-even, highest first.
  const auto groups = modelled_groups(rows);
  const auto modelled_of = [&](const ResultRow& row) -> const ResultRow* {
    if (groups.empty()) return nullptr;
    for (const ResultRow* each : groups.front().rows) {
      if (same_codec(*each, row) && each->granularity == row.granularity) return each;
    }
    return nullptr;
  };
  const auto sort_key = [&](const ResultRow& row) {
    if (row.received()) return std::numeric_limits<double>::max();  // without times, behind those that have them
    const ResultRow* modelled = modelled_of(row);
    if (modelled != nullptr) return judged_seconds(*modelled);
    if (!groups.empty() && row.inner) return std::numeric_limits<double>::max();  // too few ranks there for two levels
    // Uncompressed is what the others are measured by, so it stands first, and what sends nothing at the very end.
    if (row.codec.name() == "none") return -std::numeric_limits<double>::infinity();
    if (row.codec.name() == "noop") return std::numeric_limits<double>::infinity();
    return -row.verdict.breakeven_gbit_s.value_or(-1.0);
  };
  std::vector<const ResultRow*> lines;
  Remarks remarks;
  for (const ResultRow& row : rows) {
    if (row.tensor != "all" || row.modelled() || row.message == kInterruptedMessage) continue;
    const auto same = std::find_if(lines.begin(), lines.end(), [&](const ResultRow* line) {
      return same_codec(*line, row) && line->granularity == row.granularity;
    });
    if (row.status == Status::ok && (same == lines.end() || row.message != (*same)->message)) {
      const char* which = same == lines.end() ? "" : row.pipeline > 1 ? " pipelined" : " concurrent";
      remarks.add(short_name(row) + which, row.message);
    }
    if (same == lines.end()) lines.push_back(&row);
  }
  std::stable_sort(lines.begin(), lines.end(),
                   [&](const ResultRow* a, const ResultRow* b) { return sort_key(*a) < sort_key(*b); });
  std::stable_partition(lines.begin(), lines.end(), [](const ResultRow* row) { return row->reached; });
  if (several_cuts) {  // below each other, in the order in which they were asked for
    std::map<std::string, std::size_t> order;
    for (const ResultRow& row : rows) order.emplace(row.granularity, order.size());
    std::stable_sort(lines.begin(), lines.end(),
                     [&](auto* a, auto* b) { return order[a->granularity] < order[b->granularity]; });
  }
  const ResultRow* shown_model = groups.empty() ? nullptr : groups.front().rows.front();
  const ResultRow* taken = nullptr;
  if (acceptance && !groups.empty()) {
    const auto advice = advice_of(all_rows, *acceptance);
    const bool first = !advice.empty() && advice.front().group.network == groups.front().network &&
                       advice.front().group.ranks == groups.front().ranks;
    if (first) taken = advice.front().taken;
  }
  std::vector<std::vector<std::string>> cells;
  std::vector<std::optional<Ink>> inks;
  const auto heading = [&](const std::string& text) {
    cells.push_back({text});
    inks.emplace_back();
  };
  bool any_open = false;
  std::string inside;              // machines, in two levels
  std::vector<std::string> gated;  // rows that send much uncompressed
  const ResultRow* before = nullptr;
  for (const ResultRow* row : lines) {
    const bool first_of_cut = before == nullptr || before->granularity != row->granularity;
    if (several_cuts && first_of_cut) heading(row->granularity + ":");
    if (!row->reached && (first_of_cut || before->reached)) heading("not at work:");
    before = row;
    const bool is_taken = taken != nullptr && same_codec(*row, *taken) && row->granularity == taken->granularity;
    inks.push_back(is_taken                        ? std::optional{Ink::taken}
                   : row->status == Status::failed ? std::optional{Ink::error}
                   : row->status != Status::ok     ? std::optional{Ink::warning}
                                                   : std::nullopt);
    const ResultRow* const model = modelled_of(*row);
    const ResultRow* judged = model != nullptr ? model : row;
    // With fewer ranks than two machines have, or without times, the row has no model, and its own ranks are others.
    const bool elsewhere = shown_model != nullptr && model == nullptr;
    any_open = any_open || is_open(judged->verdict);
    const bool baseline = row->codec.name() == "none" || row->codec.name() == "noop";
    std::string name = short_name(*row);
    // Columns are narrow.
    if (const std::size_t way = name.find(" by "); way != std::string::npos) name.erase(way, 3);
    name = without_levels(name);
    if (row->inner) inside = row->inner->name() == "none" ? "uncompressed" : "by " + std::string{row->inner->name()};
    constexpr double kMuch = 0.05;
    if (!elsewhere && judged->gated_share > kMuch)
      gated.push_back(fmt::format("{} {:.0f} %", name, 100.0 * judged->gated_share));
    cells.push_back({is_taken && style == Style::markdown ? fmt::format("**{}**", name) : name,
                     baseline ? "" : shown(ratio_of_codec(*row, all_rows), "{:.4g}"),
                     judged->bytes && !row->received() && !elsewhere ? human_bytes(judged->bytes->wire_per_rank) : "-",
                     row->errors ? fmt::format("{:.2g}", row->errors->nmse()) : "-",
                     shown(row->cumulative_nmse, "{:.2g}"), baseline ? "" : shown(row->encode_gb_s(), "{:.2f}"),
                     baseline ? "" : shown(row->decode_gb_s(), "{:.2f}"),
                     row->status != Status::ok ? std::string{name_of(row->status)}
                     : baseline                ? ""
                     : elsewhere               ? "-"
                                               : breakeven_text(judged->verdict),
                     noise_text(*row)});
  }
  const std::string where = shown_model != nullptr
                                ? fmt::format("{} ranks on {}", shown_model->ranks, shown_model->network->name)
                                : fmt::format("{} ranks", lines.empty() ? 0 : lines.front()->ranks);
  const std::vector<std::string> header{"codec", "ratio", "sent", "error", "accum", "enc", "dec", "pays", "+-%"};
  std::string table = rows_text(header, cells, {false, true, true, true, true, true, true, true, true},
                                name_room(header, cells, 0, 29), style);
  if (style == Style::colored) table = with_ink(table, inks);
  return table +
         paragraph(
             fmt::format(
                 "ratio: {} bytes / payload bytes. sent: by one rank in a step, for {}. error: squared, of {}, "
                 "relative; accum: of the sum over steps{}. enc, dec: GB/s of fp32 bytes, one rank at a time on {} "
                 "thread{}. pays: on links below so many Gbit/s, for {}{}. +-%: noise of enc + dec{}.{}{}",
                 baseline_words(lines), where, result_words(lines.empty() ? Collective::all_reduce : lines.front()->op),
                 !lines.empty() && lines.front()->windows > 1
                     ? "; both over all windows, the advice judges by the worst"
                     : "",
                 lines.empty() ? 1 : lines.front()->threads, lines.empty() || lines.front()->threads == 1 ? "" : "s",
                 where, any_open ? " (! known to no better than 20 %)" : "",
                 any_noisy(lines) ? ", ! above 20: the machine is busy or there are few samples" : "",
                 inside.empty() ? "" : fmt::format(" 2L: in two levels, {} inside machines.", inside),
                 gated.empty() ? ""
                               : fmt::format(" Sent uncompressed, in units below a gate: {} of the raw bytes.",
                                             joined(gated, ", "))),
             style) +
         remarks.text(style);
}

std::string sizes_table(std::span<const ResultRow> rows, Style style) {
  // The isolated and the concurrent row of a codec at a size share a line: one has the phases, the other the whole.
  struct Line {
    const ResultRow* first;
    const ResultRow* whole;
  };
  std::vector<Line> lines;
  Remarks remarks;
  for (const ResultRow& row : rows) {
    if (row.tensor != "all" || row.modelled() || row.message == kInterruptedMessage) continue;
    const auto same = std::find_if(lines.begin(), lines.end(), [&](const Line& line) {
      return same_codec(*line.first, row) && line.first->granularity == row.granularity;
    });
    const ResultRow* whole = row.total ? &row : nullptr;
    if (same == lines.end()) {
      lines.push_back({&row, whole});
      if (row.status == Status::ok) remarks.add(short_name(row) + " " + row.granularity, row.message);
    } else if (whole != nullptr) {
      same->whole = whole;
    }
  }
  const auto seconds = [](const Line& line) {
    return line.whole != nullptr ? line.whole->total->median : std::numeric_limits<double>::infinity();
  };
  std::stable_sort(lines.begin(), lines.end(), [&](const Line& a, const Line& b) {
    if (a.first->elements != b.first->elements) return a.first->elements < b.first->elements;
    return seconds(a) < seconds(b);
  });
  const auto microseconds = [](const std::optional<PhaseSummary>& phase) {
    return phase ? fmt::format("{:.4g}", phase->median * 1e6) : std::string{"-"};
  };
  const auto total = [&](const ResultRow& row) {
    const auto& phase = row.total;
    const bool noisy =
        phase && phase->low && 100.0 * (*phase->high - *phase->low) > 2.0 * kNoisyPercent * phase->median;
    return (noisy ? "!" : "") + microseconds(phase);
  };
  std::vector<std::vector<std::string>> cells;
  for (const Line& line : lines) {
    const ResultRow& row = *line.first;
    const ResultRow& whole = line.whole != nullptr ? *line.whole : row;
    cells.push_back({human_bytes(row.raw_bytes()), without_levels(short_name(row)),
                     shown(row.payload_ratio(), "{:.4g}"), row.errors ? fmt::format("{:.2g}", row.errors->nmse()) : "-",
                     microseconds(row.encode), microseconds(row.communicate), microseconds(row.decode),
                     row.status != Status::ok ? std::string{name_of(row.status)} : total(whole),
                     shown(whole.algbw_gb_s(), "{:.2f}"), shown(whole.busbw_gb_s(), "{:.2f}")});
  }
  const ResultRow* any = lines.empty() ? nullptr : lines.front().first;
  const std::vector<std::string> header{"size", "codec", "ratio", "error", "enc",
                                        "comm", "dec",   "total", "algbw", "busbw"};
  return rows_text(header, cells, {true, false, true, true, true, true, true, true, true, true},
                   name_room(header, cells, 1, 24), style) +
         paragraph(
             fmt::format("Synthetic gradients: errors are those of Laplace noise, not of a model's gradients. enc, "
                         "comm, dec: us, one of the {1} ranks at a time; total: us, all at once, ! where it is known "
                         "to no better than 20 %. algbw: GB/s of {0} bytes; busbw: algbw x {2}(p-1)/p, as nccl-tests "
                         "has it. ratio: {0} bytes / payload bytes.",
                         any != nullptr ? type_words(any->baseline_dtype) : "raw", any != nullptr ? any->ranks : 0,
                         any != nullptr && any->op != Collective::all_reduce ? "" : "2"),
             style) +
         remarks.text(style);
}

std::string modelled_tables(std::span<const ResultRow> all_rows, Style style) {
  const std::vector<ResultRow> kept = without_slower_ways(all_rows);
  const std::span<const ResultRow> rows{kept};
  const auto groups = modelled_groups(rows);
  const bool several_cuts = has_several_granularities(rows);
  std::string out;
  if (!groups.empty() && groups.front().rows.front()->codec_times != CodecTimes::measured) {
    out = "\n" + paragraph(fmt::format("Modelled with codecs on {}, not with the times that are measured above.",
                                       processor_text(*groups.front().rows.front())),
                           style);
  }
  for (std::size_t first = 0; first < groups.size();) {
    std::vector<const ModelledGroup*> same;
    while (first < groups.size() && (same.empty() || groups[first].network == same.front()->network))
      same.push_back(&groups[first++]);
    const std::string& network = same.front()->network;
    const auto& iteration = same.front()->rows.front()->iteration;
    out += fmt::format(
        "\n{}, modelled: {} (noop sends nothing)", network,
        iteration ? "gradients alone, times faster than none" : "times faster than none, for so many ranks");
    out += table_by_ranks(same, several_cuts, false, style,
                          [](const ResultRow& row) { return row.verdict.speedup_vs_none; });
    if (!iteration) continue;
    out += fmt::format("\n{}, modelled: scaling efficiency in %, {} of computation, overlap {}", network,
                       human_seconds(iteration->compute_seconds),
                       iteration->overlap == Overlap::bucket ? "bucket" : "none");
    out += table_by_ranks(same, several_cuts, true, style, [](const ResultRow& row) {
      const auto efficiency = row.scaling_efficiency();
      return efficiency ? std::optional{100.0 * *efficiency} : std::nullopt;
    });
  }
  return out;
}

AdviceText advise(std::span<const ResultRow> rows, const Acceptance& acceptance, Style style,
                  const MadeWith& made_with) {
  const auto advice = advice_of(rows, acceptance);
  const bool markdown = style == Style::markdown;
  if (advice.empty()) return {};
  AdviceText out{.answer = paragraph(headline(*advice.front().none), style), .reasons = {}};
  if (const JobTrace* trace = made_with.options != nullptr ? made_with.options->trace.get() : nullptr) {
    out.answer += paragraph(trace->words() + ".", style);
    if (const std::string collectives = trace->collectives_words(); !collectives.empty())
      out.reasons += (markdown ? "" : "\n") + paragraph(collectives + ".", style);
  }
  for (std::size_t i = 0; i < advice.size();) {
    const NetworkAdvice& first = advice[i++];
    while (i < advice.size() && advice[i].group.network == first.group.network && advice[i].answer == first.answer) ++i;
    const NetworkAdvice& last = advice[i - 1];
    const bool one = &first == &last;
    const std::string where =
        one ? fmt::format("{}, {} ranks", last.group.network, last.group.ranks)
            : fmt::format("{}, {} to {} ranks", first.group.network, first.group.ranks, last.group.ranks);
    const std::string at = one ? "" : fmt::format("At {} ranks: ", last.group.ranks);
    const std::string verdict = fmt::format("{}: {}.", where, last.answer);
    std::string text =
        paragraph(fmt::format("{} {}{}", markdown ? "**" + verdict + "**" : verdict, at, last.reasons), style);
    // The verdict is the beginning of the first line; where it goes on in the second, that stays without colour.
    if (style == Style::colored) {
      const std::size_t end = std::min(verdict.size(), text.find('\n'));
      const Ink ink = last.taken != nullptr ? Ink::taken : Ink::warning;
      text = inked(text.substr(0, end), ink, true) + text.substr(end);
    }
    out.answer += text;
    if (last.taken != nullptr) {
      const std::string_view end = markdown ? "\n" : "";
      if (made_with.options != nullptr) {
        const std::string again = reproducing_command(*made_with.options, *last.taken, made_with.max_nmse) +
                                  (acceptance.trials ? acceptance.trials->options() : "");
        out.answer += fmt::format(fmt::runtime(markdown ? "```\n{}\n```\n" : "  Again: {}\n"), again);
      }
      const InPyTorch hook = in_pytorch(last);
      if (!hook.levels.empty()) out.answer += fmt::format("{}{}", wrapped("  " + hook.levels, 80, "    "), end);
      if (!hook.call.empty())
        out.answer += fmt::format(fmt::runtime(markdown ? "{}: `{}`\n\n" : "  {}: {}\n"), hook.where, hook.call);
      if (!hook.remarks.empty()) out.answer += fmt::format("{}{}", wrapped("  " + hook.remarks, 80, "    "), end);
    }
    if (last.others.empty()) continue;
    out.reasons += fmt::format("{}Why not the others ({}, {} ranks):\n{}", out.reasons.empty() && !markdown ? "\n" : "",
                               last.group.network, last.group.ranks, markdown ? "\n" : "");
    for (const auto& other : last.others)
      out.reasons += markdown ? "- " + other + "\n" : wrapped("  " + other, 80, "    ");
    if (markdown) out.reasons += "\n";
  }
  if (acceptance.trials) {
    for (const auto& sentence : acceptance.trials->verdicts()) out.answer += paragraph(sentence, style);
  }
  for (const auto& sentences : advice_basis(*advice.front().none, acceptance))
    out.reasons += paragraph(sentences, style);
  return out;
}

}  // namespace gradtool
