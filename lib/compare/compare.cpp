#include "lib/compare/compare.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "lib/core/parse.hpp"
#include "lib/core/text.hpp"
#include "lib/core/utf8.hpp"
#include "lib/page/records.hpp"

namespace gradtool {
namespace {

constexpr double kFalseDiscoveries = 0.05;
constexpr double kLeast = 0.005;    // relative: no machine keeps its speed to less
constexpr double kShortest = 1e-6;  // seconds: below, the clock is what is measured
constexpr std::array<const char*, 4> kPhases{"encode", "comm", "decode", "total"};

/// A column whose values must be equal to the last digit. `exact` is not subject to a tolerance.
struct Promise {
  const char* column;
  bool exact;
  bool since_version_1;  ///< means the same in all versions of the schema
};
constexpr Promise kPromises[]{{"status", true, true},
                              {"reached", true, true},
                              {"raw_bytes", true, true},
                              {"payload_bytes", true, false},
                              {"payload_bytes_max", true, false},
                              {"wire_bytes_per_rank", true, true},
                              {"element_ratio", true, false},
                              {"element_ratio_max", true, false},
                              {"nmse", false, true},
                              {"cosine", false, true},
                              {"relative_bias", false, true},
                              {"max_abs_error", false, true},
                              {"sign_agreement", false, true},
                              {"zeroed_fraction", false, true},
                              {"cumulative_nmse", false, true},
                              {"residual_ratio", false, true},
                              {"codec_nmse", false, true},
                              {"bias_nmse", false, true},
                              {"variance_nmse", false, true}};

/// "ratio=0.01,ef=on" by name.
std::map<std::string, std::string> parameters_of(const std::string& text) {
  std::map<std::string, std::string> parameters;
  for (const std::string_view one : split(text, ',')) {
    const std::size_t equals = one.find('=');
    if (equals != std::string_view::npos) parameters.emplace(one.substr(0, equals), one.substr(equals + 1));
  }
  return parameters;
}

/// A measured row, by what tells it from the others of its run.
struct Key {
  std::vector<std::string> parts;  ///< without the parameters
  std::map<std::string, std::string> parameters;

  Key(const Table& table, std::size_t row) {
    for (const char* column : {"codec", "aggregation", "tensor", "granularity", "elements", "ranks", "seed", "timing",
                               "pipeline", "codec_inner"})
      parts.push_back(text_at(table, row, column));
    // A codec with levels of its own says so in its parameters, and older versions did not say it here.
    parts.push_back(parts.back().empty() ? "" : text_at(table, row, "levels"));
    const std::string op = text_at(table, row, "op");
    parts.push_back(op.empty() ? "all-reduce" : op);  // the only one of older versions
    const std::string quantity = text_at(table, row, "quantity");
    parts.push_back(quantity.empty() ? "gradient" : quantity);  // older versions do not say
    parameters = parameters_of(text_at(table, row, "params"));
  }
  /// Parameters that one side lacks are those of another version.
  [[nodiscard]] bool matches(const Key& other) const {
    return parts == other.parts && std::all_of(parameters.begin(), parameters.end(), [&](const auto& parameter) {
             const auto same = other.parameters.find(parameter.first);
             return same == other.parameters.end() || same->second == parameter.second;
           });
  }
};

struct Row {
  std::size_t index = 0;
  Key key;
};

std::vector<Row> measured_rows(const Table& table) {
  std::vector<Row> rows;
  for (std::size_t i = 0; i < table.rows().size(); ++i) {
    if (text_at(table, i, "time_source") != "modelled") rows.push_back({i, Key{table, i}});
  }
  return rows;
}

/// Labels of rows, among those of both runs: with the parameters, and the way, in which rows of the codec differ.
class Labels {
 public:
  explicit Labels(const std::vector<Row>& rows) {
    for (const Row& row : rows) {
      const auto& parts = row.key.parts;
      for (std::size_t part = 0; part < parts.size(); ++part) {
        if (!parts[part].empty()) parts_[part].insert(parts[part]);
      }
      ways_[parts[0]].insert(parts[1]);
      for (const auto& [name, value] : row.key.parameters) parameters_[parts[0]][name].insert(value);
    }
  }

  /// `with_timing`: where a run has both timings; phases tell them apart as well.
  [[nodiscard]] std::string of(const Row& row, bool with_timing = true) const {
    const auto& parts = row.key.parts;
    std::vector<std::string> own;
    for (const auto& [name, value] : row.key.parameters) {
      if (parameters_.at(parts[0]).at(name).size() > 1) own.push_back(fmt::format("{}={}", name, value));
    }
    std::string label = parts[0] + (own.empty() ? "" : ":") + joined(own, ",");
    const auto varies = [this](std::size_t part) { return parts_.contains(part) && parts_.at(part).size() > 1; };
    if (ways_.at(parts[0]).size() > 1) label += " by " + parts[1];
    if (parts[2] != "all") label += " " + parts[2];
    if (varies(3)) label += " " + parts[3];
    if (varies(5)) label += " " + parts[5] + " ranks";
    if (varies(6) && !parts[6].empty()) label += " seed " + parts[6];
    if (with_timing && varies(7)) label += " " + parts[7];
    if (parts[8] != "1") label += " pipelined";
    return printable(label);
  }

 private:
  std::map<std::size_t, std::set<std::string>> parts_;
  std::map<std::string, std::set<std::string>> ways_;
  std::map<std::string, std::map<std::string, std::set<std::string>>> parameters_;
};

bool same_cell(const Cell& a, const Cell& b, double tolerance) {
  const auto number = [](const Cell& cell) -> std::optional<double> {
    if (const auto* whole = std::get_if<std::int64_t>(&cell)) return static_cast<double>(*whole);
    if (const auto* real = std::get_if<double>(&cell)) return *real;
    return std::nullopt;
  };
  const auto x = number(a), y = number(b);
  if (!x || !y) return a == b;
  if (*x == *y || (std::isnan(*x) && std::isnan(*y))) return true;
  return std::abs(*x - *y) <= tolerance * std::max(std::abs(*x), std::abs(*y));
}

double log_median(std::vector<double>& seconds) {
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  if (seconds.size() % 2 == 1) return std::log(*middle);
  return std::log(0.5 * (*middle + *std::max_element(seconds.begin(), middle)));
}

/// A median, and how well it is known.
struct Known {
  double log = 0.0;        ///< of the median in seconds
  double deviation = 0.0;  ///< standard deviation of that
  int freedom = 0;         ///< degrees of freedom of the deviation; 0: the deviation is not known
};

/// From samples: the bootstrap of median_interval(), on the logarithm.
Known from_samples(const BenchRun::Samples& samples, std::mt19937_64& random) {
  constexpr std::size_t kFewest = 5;
  constexpr std::size_t kResamples = 400;
  std::vector<double> drawn = samples.seconds;
  Known known{.log = log_median(drawn)};
  if (drawn.size() < kFewest) return known;
  std::vector<std::span<const double>> rounds;
  for (std::size_t first = 0; const std::size_t size : samples.rounds) {
    if (size > 0) rounds.push_back(std::span{samples.seconds}.subspan(first, size));
    first += size;
  }
  if (rounds.empty()) rounds.emplace_back(samples.seconds);
  const auto below = [&random](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  std::vector<double> logs;
  for (std::size_t resample = 0; resample < kResamples; ++resample) {
    drawn.clear();
    for (std::size_t r = 0; r < rounds.size(); ++r) {
      const auto round = rounds[below(rounds.size())];
      for (std::size_t i = 0; i < round.size(); ++i) drawn.push_back(round[below(round.size())]);
    }
    logs.push_back(log_median(drawn));
  }
  // From the range of the middle 90 %, which for a normal distribution is 3.29 standard deviations, and which a rare
  // sample that took ten times as long does not blow up.
  std::sort(logs.begin(), logs.end());
  const double spread = (logs[kResamples - 1 - kResamples / 20] - logs[kResamples / 20]) / 3.29;
  // A draw with replacement from k rounds varies by a factor of sqrt((k-1)/k) too little.
  const std::size_t clusters = rounds.size() > 1 ? rounds.size() : samples.seconds.size();
  const auto k = static_cast<double>(clusters);
  known.deviation = spread * std::sqrt(k / (k - 1.0));
  known.freedom = static_cast<int>(std::min<std::size_t>(clusters - 1, 1000));
  return known;
}

/// From the columns of a table alone, whose interval is one of 95 %.
Known from_table(const Table& table, std::size_t row, const std::string& phase) {
  const auto column = [&](const char* what) { return number_at(table, row, phase + "_us_" + what); };
  Known known{.log = std::log(*column("median") * 1e-6)};
  const auto low = column("low"), high = column("high");
  if (!low || !high || !(*low > 0.0)) return known;
  known.deviation = std::log(*high / *low) / (2.0 * 1.96);
  known.freedom = 4;  // of five rounds, the default; the table does not say how many there were
  return known;
}

std::optional<Known> time_of(const BenchRun& run, std::size_t row, std::size_t phase, std::mt19937_64& random) {
  const auto median = number_at(run.table, row, fmt::format("{}_us_median", kPhases[phase]));
  if (!median || !(*median > 0.0)) return std::nullopt;
  if (!run.samples.empty() && !run.samples[row][phase].seconds.empty()) {
    const auto& samples = run.samples[row][phase];
    if (*std::min_element(samples.seconds.begin(), samples.seconds.end()) > 0.0) return from_samples(samples, random);
  }
  return from_table(run.table, row, kPhases[phase]);
}

TimeDifference difference(const std::string& row, std::size_t phase, const Known& a, const Known& b) {
  TimeDifference d{.row = row, .phase = kPhases[phase], .a = std::exp(a.log), .b = std::exp(b.log)};
  d.ratio = std::exp(b.log - a.log);
  if (a.freedom == 0 || b.freedom == 0) return d;
  const double deviation = std::hypot(a.deviation, b.deviation);
  const int freedom = a.freedom + b.freedom;
  const double reach = t_quantile(freedom) * deviation;
  d.interval = Interval{.low = d.ratio * std::exp(-reach), .high = d.ratio * std::exp(reach)};
  const double far = std::abs(b.log - a.log);
  d.p = far <= std::log1p(kLeast) ? 1.0 : deviation > 0.0 ? t_tails(far / deviation, freedom) : 0.0;
  return d;
}

/// Verdicts of all times together (Benjamini and Hochberg 1995).
void judge(std::vector<TimeDifference>& times, double margin) {
  std::vector<TimeDifference*> order;
  for (auto& time : times) {
    if (time.interval) order.push_back(&time);
  }
  std::sort(order.begin(), order.end(), [](auto* a, auto* b) { return a->p < b->p; });
  std::size_t found = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (order[i]->p <= kFalseDiscoveries * static_cast<double>(i + 1) / static_cast<double>(order.size()))
      found = i + 1;
  }
  for (std::size_t i = 0; i < order.size(); ++i) {
    TimeDifference& time = *order[i];
    const bool hidden = time.interval->high > 1.0 + margin || time.interval->low < 1.0 / (1.0 + margin);
    time.verdict = i < found ? (time.ratio > 1.0 ? TimeVerdict::slower : TimeVerdict::faster)
                   : hidden  ? TimeVerdict::unclear
                             : TimeVerdict::same;
  }
}

/// Captures are told apart by the hash of the file where both runs have it, else by its name and model, and their parts
/// by the iterations.
std::string other_capture(const BenchRun& a, const BenchRun& b) {
  if (a.table.rows().empty() || b.table.rows().empty()) return "";
  const auto differs = [&](const char* column) {
    const std::string x = text_at(a.table, 0, column), y = text_at(b.table, 0, column);
    return !x.empty() && !y.empty() && x != y;
  };
  const auto words = [](const BenchRun& run) {
    std::string text = text_at(run.table, 0, "file");
    if (const std::string model = text_at(run.table, 0, "model"); !model.empty()) text += fmt::format(" of {}", model);
    text +=
        fmt::format(", iterations {} to {}", text_at(run.table, 0, "first_step"), text_at(run.table, 0, "last_step"));
    if (!run.capture_sha256.empty()) text += fmt::format(" (SHA-256 {}...)", run.capture_sha256.substr(0, 12));
    return text;
  };
  const bool hashed = !a.capture_sha256.empty() && !b.capture_sha256.empty();
  const bool other_file = hashed ? a.capture_sha256 != b.capture_sha256 : differs("file") || differs("model");
  const bool other_steps = differs("first_step") || differs("last_step");
  if (!other_file && !other_steps) return "";
  return fmt::format("{}: A is of {}, and B of {}", other_file ? "two captures" : "other steps of a capture", words(a),
                     words(b));
}

/// "comm is threads in A and mpi in B": what makes other times, and no other bytes.
std::string other_setting(const BenchRun& a, const BenchRun& b) {
  std::vector<std::string> found;
  for (const char* column : {"comm", "device", "threads"}) {
    if (a.table.rows().empty() || b.table.rows().empty()) continue;
    const std::string x = text_at(a.table, 0, column), y = text_at(b.table, 0, column);
    if (!x.empty() && !y.empty() && x != y) found.push_back(fmt::format("{} is {} in A and {} in B", column, x, y));
  }
  return joined(found, ", ");
}

}  // namespace

bool Comparison::regression() const {
  return !changed.empty() || !only_a.empty() || !columns_only_a.empty() ||
         std::any_of(times.begin(), times.end(), [](auto& time) { return time.verdict == TimeVerdict::slower; });
}

Comparison compare_runs(const BenchRun& a, const BenchRun& b, const CompareOptions& options) {
  Comparison out;
  const auto rows_a = measured_rows(a.table), rows_b = measured_rows(b.table);
  std::vector<Row> both = rows_a;
  both.insert(both.end(), rows_b.begin(), rows_b.end());
  const Labels labels{both};
  const auto version = [](const BenchRun& run) {
    return run.table.rows().empty() ? std::string{} : text_at(run.table, 0, "schema_version");
  };
  out.other_capture = other_capture(a, b);
  if (options.times) out.other_setting = other_setting(a, b);
  out.versions_differ = version(a) != version(b);
  std::vector<Promise> promises;  // whose columns both have
  for (const Promise& promise : kPromises) {
    if (out.versions_differ && !promise.since_version_1) continue;
    const bool in_a = has_column(a.table, promise.column), in_b = has_column(b.table, promise.column);
    if (in_a && in_b) promises.push_back(promise);
    if (in_a && !in_b) out.columns_only_a.emplace_back(promise.column);
    if (in_b && !in_a) out.columns_only_b.emplace_back(promise.column);
  }
  std::map<std::vector<std::string>, std::vector<const Row*>> free;  // rows of B that have no partner yet
  for (const Row& row : rows_b) free[row.key.parts].push_back(&row);
  std::mt19937_64 random{1};
  for (const Row& row : rows_a) {
    auto& candidates = free[row.key.parts];
    const auto found = std::find_if(candidates.begin(), candidates.end(),
                                    [&](const Row* other) { return row.key.matches(other->key); });
    const std::string label = labels.of(row);
    if (found == candidates.end()) {
      out.only_a.push_back(label);
      continue;
    }
    const Row* partner = *found;
    candidates.erase(found);
    ++out.rows;
    for (const Promise& promise : promises) {
      const Cell& x = a.table.at(row.index, promise.column);
      const Cell& y = b.table.at(partner->index, promise.column);
      if (!same_cell(x, y, promise.exact ? 0.0 : options.tolerance))
        out.changed.push_back({label, promise.column, x, y});
    }
    if (!options.times) continue;
    const std::string short_label = labels.of(row, false);
    for (std::size_t phase = 0; phase < kPhases.size(); ++phase) {
      // Phases are told apart where ranks take turns; where all run at once only the whole is a time of its own.
      if ((text_at(a.table, row.index, "timing") == "concurrent") != (phase == 3)) continue;
      const auto x = time_of(a, row.index, phase, random), y = time_of(b, partner->index, phase, random);
      if (!x || !y || std::max(x->log, y->log) < std::log(kShortest)) continue;
      out.times.push_back(difference(short_label, phase, *x, *y));
    }
  }
  std::vector<std::size_t> left;
  for (const auto& [parts, rows] : free) {
    for (const Row* row : rows) left.push_back(static_cast<std::size_t>(row - rows_b.data()));
  }
  std::sort(left.begin(), left.end());
  for (const std::size_t place : left) out.only_b.push_back(labels.of(rows_b[place]));
  judge(out.times, options.margin);
  return out;
}

}  // namespace gradtool
