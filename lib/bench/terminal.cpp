// What `gradtool bench` prints for people: the table of measured rows, those of modelled networks, and the advice.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>

#include "lib/bench/result.hpp"
#include "lib/core/text.hpp"

namespace gradtool {
namespace {

// A smaller gain is not worth an error, because neither the model nor the measured times are that exact.
constexpr double kWorthwhile = 1.05;
// Times that may be off by more are marked: a break-even that rests on them moves as much.
constexpr double kNoisyPercent = 20.0;

using Status = ResultRow::Status;

/// A number as `format` writes it, or a dash where it was not measured.
std::string shown(const std::optional<double>& value, const char* format) {
  return value ? fmt::format(fmt::runtime(format), *value) : "-";
}

/// The text in lines of at most `width` characters, broken at spaces, all but the first indented.
std::string wrapped(const std::string& text, std::size_t width, std::string_view indent = "  ") {
  std::string out;
  std::string_view rest = text;
  while (rest.size() + (out.empty() ? 0 : indent.size()) > width) {
    const std::size_t room = width - (out.empty() ? 0 : indent.size());
    const std::size_t space = rest.rfind(' ', room);
    const std::size_t cut = space == std::string_view::npos || space <= indent.size() ? room : space;
    out += fmt::format("{}{}\n", out.empty() ? "" : indent, rest.substr(0, cut));
    rest.remove_prefix(std::min(rest.size(), cut + (cut == space ? 1 : 0)));
  }
  return out + fmt::format("{}{}\n", out.empty() ? "" : indent, rest);
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
      if (!own.empty()) text += wrapped(fmt::format("{}: {}", row_name, fmt::join(own, "; ")), 80);
    }
    if (several && !common_.empty()) text += wrapped(fmt::format("all: {}", fmt::join(common_, "; ")), 80);
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

/// Whether two rows are of one codec with the same parameters.
bool same_codec(const ResultRow& a, const ResultRow& b) {
  return a.codec.name() == b.codec.name() && a.codec.params_text() == b.codec.params_text();
}

bool has_several_granularities(std::span<const ResultRow> rows) {
  return std::any_of(rows.begin(), rows.end(),
                     [&](const ResultRow& row) { return row.granularity != rows.front().granularity; });
}

/// How far the ends of the interval of encoding and decoding lie from their median, in percent. Empty: not known.
std::optional<double> noise_percent(const ResultRow& row) {
  if (!row.encode || !row.decode || !row.encode->low || !row.decode->low) return std::nullopt;
  const double median = row.encode->median + row.decode->median;
  if (!(median > 0.0)) return std::nullopt;
  const double low = *row.encode->low + *row.decode->low;
  const double high = *row.encode->high + *row.decode->high;
  return 100.0 * std::max(high - median, median - low) / median;
}

bool is_noisy(const ResultRow& row) {
  return noise_percent(row).value_or(0.0) > kNoisyPercent;
}

bool any_noisy(const std::vector<const ResultRow*>& rows) {
  return std::any_of(rows.begin(), rows.end(), [](const ResultRow* row) { return is_noisy(*row); });
}

std::string noise_text(const ResultRow& row) {
  if (row.codec.name() == "none" || row.codec.name() == "noop") return "";
  const auto noise = noise_percent(row);
  return noise ? fmt::format("{}{:.0f}", *noise > kNoisyPercent ? "!" : "", *noise) : "-";
}

std::string breakeven_text(const ResultRow::Verdict& verdict) {
  if (!verdict.breakeven_gbit_s) return "-";
  const double to = *verdict.breakeven_gbit_s;
  const double from = verdict.breakeven_from.value_or(0.0);
  if (to == 0.0) return "never";
  if (from > 0.0) return std::isinf(to) ? fmt::format(">{:.2g}", from) : fmt::format("{:.2g}-{:.2g}", from, to);
  return std::isinf(to) ? "always" : fmt::format("{:.2g}", to);
}

/// Two significant digits: "93 %", "0.043 %".
std::string percent(double share) {
  const double value = 100.0 * share;
  return value < 9.95 ? fmt::format("{:.2g} %", value) : fmt::format("{:.0f} %", value);
}

/// The advice for one network and number of ranks.
class Advice {
 public:
  Advice(const ModelledGroup& group, double max_nmse, bool several_cuts)
      : group_{group}, max_nmse_{max_nmse}, several_cuts_{several_cuts} {
    for (const ResultRow* row : group.rows) {
      if (row->codec.name() == "noop") {
        if (noop_ == nullptr || judged_seconds(*row) < judged_seconds(*noop_)) noop_ = row;
      } else if (row->codec.name() == "none") {
        if (none_ == nullptr || judged_seconds(*row) < judged_seconds(*none_)) none_ = row;
      } else if (!row->reached) {
        unreached_.push_back(row);
      } else if (!(judged_error(*row) <= max_nmse)) {
        wrong_.push_back(row);
      } else {
        fit_.push_back(row);
      }
    }
    std::stable_sort(fit_.begin(), fit_.end(),
                     [](auto* a, auto* b) { return judged_seconds(*a) < judged_seconds(*b); });
  }

  [[nodiscard]] bool possible() const { return none_ != nullptr; }

  /// What is to be done, in a word or two: neighbouring numbers of ranks with the same answer share a paragraph.
  [[nodiscard]] std::string answer() const {
    if (fit_.empty() || gain(judged_interval(*fit_.front()).low) < kWorthwhile) return "stay uncompressed";
    const std::string name = name_of_row(*fit_.front());
    if (gain(judged_interval(*fit_.front()).high) < kWorthwhile)
      return fmt::format("{} or uncompressed, too close to call", name);
    const auto rivals = too_close();
    if (rivals.empty()) return "take " + name;
    return fmt::format("take {} or {}, too close to call", name, rivals);
  }

  /// Why, as whole sentences.
  [[nodiscard]] std::string reasons() const {
    if (fit_.empty()) return fmt::format("No codec here has an error of at most {:g}. ", max_nmse_) + hopeless();
    const ResultRow& best = *fit_.front();
    const double ratio = gain(judged_seconds(best));
    const std::string what = best.iteration ? "an iteration" : "a step's gradients";
    const auto efficiency = best.scaling_efficiency();
    std::string text = fmt::format(
        "With {} {} take{} {} instead of {} uncompressed{}: {}", name_of_row(best), what, best.iteration ? "s" : "",
        human_seconds(judged_seconds(best)), human_seconds(judged_seconds(*none_)),
        efficiency ? fmt::format(", a scaling efficiency of {} instead of {}", percent(*efficiency),
                                 percent(*none_->scaling_efficiency()))
                   : "",
        ratio >= 1.0 ? fmt::format("{:.2f} times faster", ratio) : fmt::format("{:.2f} times slower", 1.0 / ratio));
    const Interval interval = judged_interval(best);
    if (interval.high > interval.low) {
      text += fmt::format(" ({:.2f} to {:.2f} times as fast, with 95 % confidence of its times)", gain(interval.high),
                          gain(interval.low));
    }
    if (!best.total || !best.total->low) text += " (of fewer than five samples: how noisy that is, is not known)";
    text += fmt::format("; its {} is {:.2g}. ", delays(best.codec) ? "accumulated error" : "error of a step",
                        judged_error(best));
    if (ratio < kWorthwhile) text += "Less than 5 % is not worth an error. " + hopeless();
    return text;
  }

  /// What runs up and why nothing else was taken, a line each.
  [[nodiscard]] std::string others() const {
    std::string text;
    std::vector<std::string> next, slower;
    for (std::size_t i = 1; i < fit_.size(); ++i) {
      const ResultRow& row = *fit_[i];
      if (next.size() < 3 && gain(judged_seconds(row)) >= 1.0)
        next.push_back(fmt::format("{} {} (error {:.2g})", name_of_row(row), human_seconds(judged_seconds(row)),
                                   judged_error(row)));
      else
        slower.push_back(name_of_row(row) + (is_noisy(row) ? " (noisy)" : ""));
    }
    const auto line = [&text](const char* what, const std::vector<std::string>& names) {
      if (!names.empty()) text += wrapped(fmt::format("  {}: {}.", what, fmt::join(names, ", ")), 80, "    ");
    };
    line("next", next);
    line("slower", slower);
    line("error too large", names_of(wrong_));
    line("method not at work in this replay", names_of(unreached_));
    const auto& alone = none_->tensorwise_seconds;
    const bool buckets = std::none_of(group_.rows.begin(), group_.rows.end(),
                                      [](const ResultRow* row) { return row->granularity == "tensor"; });
    if (alone && none_->total && buckets && *alone > kWorthwhile * none_->total->median) {
      text += wrapped(fmt::format("  {} alone gains: uncompressed gradients take {} reduced tensor by tensor, {} so.",
                                  none_->granularity, human_seconds(*alone), human_seconds(none_->total->median)),
                      80, "    ");
    }
    return text;
  }

 private:
  [[nodiscard]] double gain(double seconds) const { return judged_seconds(*none_) / seconds; }
  [[nodiscard]] std::string name_of_row(const ResultRow& row) const {
    return short_name(row) + (several_cuts_ ? " with " + row.granularity : "");
  }
  [[nodiscard]] std::vector<std::string> names_of(const std::vector<const ResultRow*>& rows) const {
    std::vector<std::string> names;
    names.reserve(rows.size());
    for (const ResultRow* row : rows) names.push_back(name_of_row(*row));
    return names;
  }
  /// Codecs whose times cannot be told from those of the fastest.
  [[nodiscard]] std::string too_close() const {
    std::vector<std::string> names;
    const Interval best = judged_interval(*fit_.front());
    for (std::size_t i = 1; i < fit_.size() && names.size() < 2; ++i) {
      if (judged_interval(*fit_[i]).low < best.high) names.push_back(name_of_row(*fit_[i]));
    }
    return fmt::format("{}", fmt::join(names, " or "));
  }
  [[nodiscard]] std::string hopeless() const {
    const bool is = noop_ != nullptr && judged_seconds(*none_) < kWorthwhile * judged_seconds(*noop_);
    return is ? "Even sending nothing would gain less than 5 %. " : "";
  }

  ModelledGroup group_;
  double max_nmse_;
  bool several_cuts_;
  const ResultRow *none_ = nullptr, *noop_ = nullptr;  ///< the fastest of them
  std::vector<const ResultRow*> fit_, wrong_, unreached_;
};

}  // namespace

std::string short_name(const ResultRow& row) {
  return row.codec.name() + (row.codec.given.empty() ? "" : ":" + row.codec.given);
}

std::string terminal_table(std::span<const ResultRow> rows) {
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
    const ResultRow* modelled = modelled_of(row);
    if (modelled != nullptr) return judged_seconds(*modelled);
    // Uncompressed is what the others are measured by, so it stands first, and what sends nothing at the very end.
    if (row.codec.name() == "none") return -std::numeric_limits<double>::infinity();
    if (row.codec.name() == "noop") return std::numeric_limits<double>::infinity();
    return -row.verdict.breakeven_gbit_s.value_or(-1.0);
  };
  std::vector<const ResultRow*> lines;
  Remarks remarks;
  for (const ResultRow& row : rows) {
    if (row.tensor != "all" || row.modelled()) continue;
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
  const ResultRow* shown_model = groups.empty() ? nullptr : groups.front().rows.front();
  std::vector<std::vector<std::string>> cells;
  bool apart = false;
  for (const ResultRow* row : lines) {
    if (!row->reached && !apart) cells.push_back({"method not at work:"});
    apart = apart || !row->reached;
    const ResultRow* judged = modelled_of(*row) != nullptr ? modelled_of(*row) : row;
    const bool baseline = row->codec.name() == "none" || row->codec.name() == "noop";
    cells.push_back({short_name(*row) + (several_cuts ? " " + row->granularity : ""),
                     baseline ? "" : shown(row->payload_ratio(), "{:.4g}"),
                     judged->bytes ? human_bytes(judged->bytes->wire_per_rank) : "-",
                     row->errors ? fmt::format("{:.2g}", row->errors->nmse()) : "-",
                     shown(row->cumulative_nmse, "{:.2g}"), baseline ? "" : shown(row->encode_gbps(), "{:.2f}"),
                     baseline ? "" : shown(row->decode_gbps(), "{:.2f}"),
                     row->status != Status::ok ? std::string{name_of(row->status)}
                     : baseline                ? ""
                                               : breakeven_text(judged->verdict),
                     noise_text(*row)});
  }
  const std::string where = shown_model != nullptr
                                ? fmt::format("{} ranks on {}", shown_model->ranks, shown_model->network->name)
                                : fmt::format("{} ranks", lines.empty() ? 0 : lines.front()->ranks);
  return format_rows({"codec", "ratio", "sent", "error", "accum", "enc", "dec", "pays", "+-%"}, cells,
                     {false, true, true, true, true, true, true, true, true}, several_cuts ? 29 : 20) +
         wrapped(fmt::format("ratio: fp32 bytes / payload bytes. sent: by one rank in a step, for {}. error: squared, "
                             "of a step's mean gradient, relative; accum: of the sum over steps. enc, dec: GB/s of "
                             "fp32 bytes, one rank at a time on {} thread{}. pays: on links below so many Gbit/s, for "
                             "{}. +-%: noise of enc + dec{}.",
                             where, lines.empty() ? 1 : lines.front()->threads,
                             lines.empty() || lines.front()->threads == 1 ? "" : "s", where,
                             any_noisy(lines) ? ", ! above 20: the machine is busy or there are few samples" : ""),
                 80) +
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
  const bool several_cuts = has_several_granularities(rows);
  std::vector<ModelledGroup> groups;
  std::vector<Advice> advice;
  for (auto& group : modelled_groups(rows)) {
    Advice one{group, max_nmse, several_cuts};
    if (!one.possible()) continue;
    advice.push_back(std::move(one));
    groups.push_back(std::move(group));
  }
  std::string out;
  for (std::size_t i = 0; i < groups.size();) {
    const std::size_t first = i++;
    const std::string answer = advice[first].answer();
    while (i < groups.size() && groups[i].network == groups[first].network && advice[i].answer() == answer) ++i;
    const std::size_t last = i - 1;
    const std::string where = first == last ? fmt::format("{}, {} ranks", groups[last].network, groups[last].ranks)
                                            : fmt::format("{}, {} to {} ranks", groups[first].network,
                                                          groups[first].ranks, groups[last].ranks);
    const std::string at = first == last ? "" : fmt::format("At {} ranks: ", groups[last].ranks);
    std::string why = advice[last].reasons();
    why.erase(why.find_last_not_of(' ') + 1);
    out += wrapped(fmt::format("{}: {}. {}{}", where, answer, at, why), 80) + advice[last].others();
  }
  if (out.empty()) return out;
  const ResultRow& any = *groups.front().rows.front();
  out += wrapped(fmt::format("Only codecs with an error of at most {:g} (--max-nmse) are taken: 0 is exact, and 1 is "
                             "sending nothing. What delays parts of a gradient is judged by its accumulated error, the "
                             "others by that of a step. Whether a model still learns with it, only training tells.",
                             max_nmse),
                 80);
  out += wrapped(fmt::format("It rests on times of {} thread{} of this machine, errors of {} ranks, {}, and a model of "
                             "the network.{}",
                             any.threads, any.threads == 1 ? "" : "s", any.measured_ranks,
                             any.file.empty() ? "the capture" : any.file,
                             any.iteration ? ""
                                           : " Times are of the gradients alone: --compute-ms adds the computation "
                                             "that they can hide behind."),
                 80);
  return out;
}

}  // namespace gradtool
