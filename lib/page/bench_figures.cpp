#include "lib/page/bench_figures.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "lib/advice/confidence.hpp"
#include "lib/advice/own_trial.hpp"
#include "lib/bench/gate.hpp"
#include "lib/core/text.hpp"
#include "lib/page/bench_model.hpp"
#include "lib/page/sweep.hpp"

namespace gradtool {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kOthers = "other codecs";
constexpr const char* kUndecided = "undecided";

constexpr std::size_t kDrawnSpeed = 3;  // every third speed of the sweep is drawn

std::string two_digits(double value) {
  return value >= 10.0 ? fmt::format("{:.0f}", value) : fmt::format("{:.2g}", value);
}

Cell cell(const std::optional<double>& value) {
  return value ? Cell{*value} : Cell{};
}

std::string meaning_of(const std::string& network) {
  for (const NetworkProfile& profile : network_profiles()) {
    if (profile.name == network) return std::string{profile.meaning};
  }
  return {};
}

class BenchCharts {
 public:
  BenchCharts(const BenchSource& source, const FigureOptions& options, const std::string& suffix, CodecLooks& looks)
      : source_{source}, options_{options}, suffix_{suffix}, looks_{looks}, model_{source, options} {
    choose_shown();
  }

  BenchFigures take() {
    out_.title = title();
    if (const auto& trace = source_.trace) out_.job = {trace->words() + ".", trace->collectives_words() + "."};
    verdicts();
    notes();
    if (!model_.has_codecs()) {
      for (const char* chart :
           {"break_even", "pareto_bytes", "pareto_time", "phases", "error_steps", "layers", "scaling"})
        lacks(chart, model_.measured.empty() ? "the bench has no rows" : "no codec was measured, only the baselines");
      return std::move(out_);
    }
    by_speed();
    pareto_and_phases();
    errors();
    layers();
    scaling();
    predicted();
    return std::move(out_);
  }

 private:
  /// The codecs that charts bring out: those that are advised anywhere, what other programs' methods brought
  /// (--received), then on each network the next fastest with an error that is small enough, or else whatever there is.
  void choose_shown() {
    const auto add = [this](const ResultRow* row) {
      if (row == nullptr || row->codec.name() == "none" || row->codec.name() == "noop") return;
      if (shown_.size() < CodecLooks::kColours &&
          std::find(shown_.begin(), shown_.end(), model_.name(*row)) == shown_.end())
        shown_.push_back(model_.name(*row));
    };
    for (const auto& one : model_.advice) add(one.taken);
    for (const auto& one : model_.swept_advice) add(one.taken);
    for (const ResultRow& row : model_.measured) add(row.received() && row.errors ? &row : nullptr);
    for (std::size_t place = 0; place < CodecLooks::kColours; ++place) {
      for (const auto& one : model_.advice) {
        std::vector<const ResultRow*> fit;
        for (const ResultRow* row : one.group.rows) {
          if (row->reached && judged_error(*row) <= options_.acceptance.max_nmse && row->codec.name() != "none")
            fit.push_back(row);
        }
        std::stable_sort(fit.begin(), fit.end(),
                         [](auto* a, auto* b) { return judged_seconds(*a) < judged_seconds(*b); });
        if (place < fit.size()) add(fit[place]);
      }
    }
    if (!std::all_of(shown_.begin(), shown_.end(), [](auto& shown) { return shown.starts_with(kReceivedName); }))
      return;
    for (const ResultRow& row : model_.measured) add(row.errors ? &row : nullptr);
  }

  [[nodiscard]] std::string shown_as(const std::string& codec) const {
    if (codec == "none" || codec == kUndecided || codec.starts_with("none with ")) return "uncompressed";
    return std::find(shown_.begin(), shown_.end(), codec) == shown_.end() ? std::string{kOthers} : codec;
  }

  // -- Texts ---------------------------------------------------------------------------------------------------------

  [[nodiscard]] std::string title() const {
    if (model_.record.rows.empty()) return source_.origin.file;
    const ResultRow& any = model_.record.rows.front();
    return fmt::format("{}{}, gradients of {} ranks", any.model.empty() ? "" : any.model + ", ", any.file,
                       any.measured_ranks);
  }

  void verdicts() {
    for (const NetworkAdvice& one : model_.advice) {
      NetworkVerdict verdict{.network = one.group.network,
                             .meaning = meaning_of(one.group.network),
                             .ranks = one.group.ranks,
                             .answer = one.answer,
                             .codec = one.taken == nullptr ? "" : model_.name(*one.taken),
                             .speedup = 1.0,
                             .reasons = one.reasons,
                             .others = one.others};
      if (one.taken != nullptr) {
        verdict.speedup = judged_seconds(*one.none) / judged_seconds(*one.taken);
        verdict.in_pytorch = in_pytorch(one);
      }
      out_.verdicts.push_back(std::move(verdict));
    }
    if (options_.acceptance.trials && !model_.advice.empty()) {
      for (auto& sentence : options_.acceptance.trials->verdicts()) out_.job.push_back(std::move(sentence));
    }
    if (!model_.advice.empty()) out_.text = advise(model_.modelled, options_.acceptance);
    if (!model_.advice.empty()) out_.basis = advice_basis(*model_.advice.front().none, options_.acceptance);
  }

  void notes() {
    for (const ResultRow& row : model_.measured) {
      if (row.status == ResultRow::Status::ok) continue;
      const std::string note = fmt::format("{}: {}: {}", model_.name(row), name_of(row.status), row.message);
      if (std::find(out_.notes.begin(), out_.notes.end(), note) == out_.notes.end()) out_.notes.push_back(note);
    }
    if (model_.synthetic) from_which_size();
    const auto replaced = std::find_if(model_.record.rows.begin(), model_.record.rows.end(),
                                       [](const ResultRow& row) { return row.codec_times != CodecTimes::measured; });
    if (replaced != model_.record.rows.end()) {
      out_.notes.push_back(
          fmt::format("modelled rows of the record have the codec times of {} (--codec-speed); what this page models "
                      "for other networks and speeds has those that were measured",
                      processor_text(*replaced)));
    }
    for (const auto& codec : model_.record.unknown_codecs)
      out_.notes.push_back(codec + ": left out, because this build of gradtool does not know the codec");
  }

  void from_which_size() {
    for (const NetworkGates& gates : gates_of(model_.modelled)) {
      std::vector<std::string> codecs;
      for (const ResultRow* row : gates.rows) {
        codecs.push_back(fmt::format("{} {} ({:.2f} times as fast at {})", short_name(*row),
                                     pays_text(*row, model_.modelled), *row->verdict.speedup_vs_none,
                                     human_bytes(gates.largest)));
      }
      out_.notes.push_back(
          fmt::format("{}, {} ranks: the size of a message from which on a codec pays, by the model: {}", gates.network,
                      gates.ranks, joined(codecs, ", ")));
    }
  }

  [[nodiscard]] std::string what() const {
    return model_.compute.seconds > 0.0 ? "an iteration" : fmt::format("a step's {}", collective());
  }
  /// That of the record's rows.
  [[nodiscard]] std::string_view collective() const {
    return name_of(model_.measured.empty() ? Collective::all_reduce : model_.measured.front().op);
  }

  [[nodiscard]] Blanks blanks() const {
    const int node = model_.networks.front().node;
    std::vector<std::string> codecs, places, or_none{""}, or_none_labels{"no other"};
    for (const ResultRow& row : model_.measured) {
      if (std::find(codecs.begin(), codecs.end(), model_.name(row)) == codecs.end()) codecs.push_back(model_.name(row));
    }
    or_none.insert(or_none.end(), codecs.begin(), codecs.end());
    or_none_labels.insert(or_none_labels.end(), codecs.begin(), codecs.end());
    for (const auto& group : modelled_groups(model_.modelled)) places.push_back(place_name(group.network, group.ranks));
    std::vector<std::string> networks;
    for (const auto& network : model_.networks) networks.push_back(network.name);
    std::vector<std::string> colours, shapes;
    std::vector<std::vector<double>> dashes;
    for (const auto& codec : shown_) {
      const CodecLooks::Look look = looks_.of(codec);
      colours.push_back(look.colour);
      dashes.push_back(look.dash);
      shapes.push_back(look.shape);
    }
    const ResultRow* any = model_.measured.empty() ? nullptr : &model_.measured.front();
    // Second of several networks, because it is most often the one in the middle.
    const auto middle = [](const std::vector<std::string>& names) {
      return names.empty() ? std::string{} : names[std::min<std::size_t>(1, names.size() - 1)];
    };
    return {
        {"what", what()},
        {"where", node > 1 ? fmt::format("{} machines of {} ranks", model_.usual_nodes, node)
                           : fmt::format("{} nodes", model_.usual_nodes)},
        {"measured", any == nullptr ? std::string{"no ranks"}
                                    : fmt::format("{} ranks ({}, {})", any->measured_ranks, any->comm, any->device)},
        {"shown", shown_},
        {"colours", colours},
        {"dashes", dashes},
        {"shapes", shapes},
        {"shapes_or_none", with_none(shapes, "circle")},
        {"unit", model_.unit.name},
        {"unit_low", model_.unit.name + "_low"},
        {"unit_high", model_.unit.name + "_high"},
        {"encode", "encode_" + model_.unit.name},
        {"comm", "comm_" + model_.unit.name},
        {"decode", "decode_" + model_.unit.name},
        {"total", "total_" + model_.unit.name},
        {"total_low", "total_" + model_.unit.name + "_low"},
        {"total_high", "total_" + model_.unit.name + "_high"},
        {"predicted", "predicted_" + model_.unit.name},
        {"measured_time", "measured_" + model_.unit.name},
        {"measured_low", "measured_" + model_.unit.name + "_low"},
        {"measured_high", "measured_" + model_.unit.name + "_high"},
        {"latencies", model_.latency_words},
        {"drawn_limit", std::max(options_.acceptance.max_nmse, 1e-8)},  // errors below that are drawn there as well
        {"limit_words", fmt::format("largest error accepted: {:g}", options_.acceptance.max_nmse)},
        {"shown_or_none", with_none(shown_, "uncompressed")},
        {"colours_or_none", with_none(colours, "#b4bcc4")},
        {"phase_colours", {"#4b2e83", "#c3b1e1", "#8464b8"}},
        {"speeds", {sweep_speed(0), sweep_speed(kSweepSpeeds - 1)}},
        {"ticks", {0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000}},
        {"codecs", codecs},
        {"codecs_or_none", or_none},
        {"codecs_or_none_labels", or_none_labels},
        {"places", places},
        {"first_place", middle(places)},
        {"networks", networks},
        {"first_network", middle(networks)}};
  }

  [[nodiscard]] static std::vector<std::string> with_none(std::vector<std::string> names, const char* none) {
    names.emplace_back(none);
    return names;
  }
  [[nodiscard]] static std::string place_name(const std::string& network, int ranks) {
    return fmt::format("{}, {} ranks", network, ranks);
  }

  void add(const std::string& chart, Table table, const Blanks& filled, const Json& networks = {}) {
    Chart made = make_chart(chart, suffix_, source_.origin, std::move(table), filled);
    if (!networks.is_null()) made.spec["datasets"]["networks"] = networks;
    out_.charts.push_back(std::move(made));
  }
  void lacks(const std::string& chart, const std::string& why) {
    out_.missing.push_back(missing_chart(chart, why, blanks()));
  }

  // -- Charts --------------------------------------------------------------------------------------------------------

  void by_speed() {
    const std::string why = model_.synthetic ? "the gradients are made up (--synthetic), so nothing can be advised"
                            : source_.json   ? "no codec was timed by itself (--timing isolated)"
                                             : "a CSV does not have the collectives that each codec takes part in";
    if (model_.swept_advice.empty()) {
      lacks("break_even", why);
      return;
    }
    Json named = Json::array();
    for (const Network& network : model_.networks) {
      const double gbit_s = network.link.beta * 8e-9;
      if (gbit_s > sweep_speed(0) && gbit_s < sweep_speed(kSweepSpeeds - 1)) {
        named.push_back({{"network", network.name.substr(0, network.name.find(':'))}, {"link_gbit_s", gbit_s}});
      }
    }
    add_take_by_speed(named);
    add_break_even(named);
  }

  void add_take_by_speed(const Json& networks) {
    struct Range {
      std::size_t first, last;
      std::string codec;
    };
    std::vector<Range> ranges;
    // The advice takes no codec if noise leaves it open whether one gains, but it does not say to stay uncompressed.
    const auto taken_name = [this](const NetworkAdvice& at) {
      if (at.taken != nullptr) return model_.name(*at.taken);
      return std::string{at.answer == "stay uncompressed" ? "none" : kUndecided};
    };
    for (std::size_t i = 0; i < model_.swept_advice.size(); ++i) {
      const std::string codec = taken_name(model_.swept_advice[i]);
      if (ranges.empty() || ranges.back().codec != codec) ranges.push_back({i, i, codec});
      ranges.back().last = i;
    }
    Table table{"take_by_speed",
                {{"codec", "to take; none: stay uncompressed; undecided: a codec or none, too close to call"},
                 {"from_gbit_s", "speed of a link from which on it is the one to take"},
                 {"to_gbit_s", "and up to which"},
                 {"speedup_at_from", "time of none / time of the codec at the slowest of these speeds"},
                 {"speedup_at_to", "and at the fastest"},
                 {"shown_as", "colour in the charts"}}};
    for (const Range& range : ranges) {
      const auto border = [](std::size_t below) { return std::sqrt(sweep_speed(below) * sweep_speed(below + 1)); };
      const double from = range.first == 0 ? sweep_speed(0) : border(range.first - 1);
      const double to = range.last + 1 == kSweepSpeeds ? sweep_speed(kSweepSpeeds - 1) : border(range.last);
      const std::string& codec = range.codec;
      const auto gain = [&](std::size_t i) {
        const NetworkAdvice& at = model_.swept_advice[i];
        return at.taken == nullptr ? 1.0 : judged_seconds(*at.none) / judged_seconds(*at.taken);
      };
      table.add({codec, from, to, gain(range.first), gain(range.last), shown_as(codec)});
      const std::string clause = codec == "none"       ? "stay uncompressed"
                                 : codec == kUndecided ? "it is too close to call"
                                                       : "take " + codec;
      const bool first = range.first == 0, last = range.last + 1 == kSweepSpeeds;
      out_.by_speed += first && last ? "at every speed " + clause
                       : first       ? fmt::format("below {} Gbit/s {}", two_digits(to), clause)
                       : last        ? fmt::format("above {} {}", two_digits(from), clause)
                                     : fmt::format("from {} to {} {}", two_digits(from), two_digits(to), clause);
      out_.by_speed += last ? "." : "; ";
    }
    Blanks filled = blanks();
    std::vector<std::string> taken;
    for (const Range& range : ranges) {
      if (std::find(taken.begin(), taken.end(), shown_as(range.codec)) == taken.end())
        taken.push_back(shown_as(range.codec));
    }
    filled["taken"] = taken;
    out_.by_speed =
        fmt::format("By the speed of a link, with {}: {}", filled.at("where").get<std::string>(), out_.by_speed);
    add("take_by_speed", std::move(table), filled, networks);
  }

  void add_break_even(const Json& networks) {
    Table table{"break_even",
                {{"codec", "with the parameters that were given"},
                 {"link_gbit_s", "speed of the network's links, each way"},
                 {"alpha_us", "latency of a message, microseconds"},
                 {"ranks", "that are modelled"},
                 time_column(),
                 {model_.unit.name + "_low", "where it lies with 95 % confidence of the codec's times, from here"},
                 {model_.unit.name + "_high", "and to here"},
                 {"speedup_vs_none", "time of none / time of this codec"},
                 {"shown_as", "colour in the charts"}}};
    double least = INFINITY, most = 0.0;
    for (std::size_t i = 0; i < model_.swept_advice.size(); i += kDrawnSpeed) {
      const NetworkAdvice& at = model_.swept_advice[i];
      for (const ResultRow* row : at.group.rows) {
        const double time = judged_seconds(*row) * model_.unit.per_second;
        const Interval interval = judged_interval(*row);
        const bool known = interval.high > interval.low;
        table.add({model_.name(*row), row->network->link.beta * 8e-9, row->network->link.alpha * 1e6,
                   std::int64_t{row->ranks}, time, known ? Cell{interval.low * model_.unit.per_second} : Cell{},
                   known ? Cell{interval.high * model_.unit.per_second} : Cell{},
                   judged_seconds(*at.none) / judged_seconds(*row), shown_as(model_.name(*row))});
        if (row->codec.name() == "noop" || !(time > 0.0)) continue;
        if (row->codec.name() == "none" || shown_as(model_.name(*row)) != kOthers) {
          least = std::min(least, time);
          most = std::max(most, time);
        }
      }
    }
    Blanks filled = blanks();
    filled["time_range"] = {least / 2.0, most * 2.0};
    add("break_even", std::move(table), filled, networks);
  }

  /// Measured rows over all tensors that have an error, one for each codec.
  [[nodiscard]] std::vector<std::size_t> measured_places() const {
    std::vector<std::size_t> places;
    std::set<std::string> seen;
    for (std::size_t i = 0; i < model_.record.rows.size(); ++i) {
      const ResultRow& row = model_.record.rows[i];
      if (!row.modelled() && row.errors && seen.insert(model_.name(row)).second) places.push_back(i);
    }
    return places;
  }

  /// Bytes as the model counts them for each network and its ranks, and as they were counted on the measured ranks.
  void pareto_bytes() {
    Table table{"pareto_bytes",
                {{"network", "and how many ranks, modelled; or the ranks that were measured"},
                 {"codec", "with the parameters that were given"},
                 {"label", "the same with what tells it from others"},
                 {"parameters", "all of them"},
                 {"wire_bytes_per_rank", "what one rank sends in a step, to all others together"},
                 {"payload_bytes", "what one rank's encoder wrote in a step"},
                 {"payload_ratio", "uncompressed bytes / payload bytes"},
                 {"nmse", "error of a step's mean gradient: squared, relative"},
                 {"cumulative_nmse", "of the sum over all steps"},
                 {"judged_by", "which of the two the codec is judged by"},
                 {"error", "that one"},
                 {"shown_as", "colour in the charts"}}};
    const auto add_row = [&](const std::string& place, const ResultRow& row, const Table& from, std::size_t at_row) {
      const auto at = [&](const char* column) { return cell_at(from, at_row, column); };
      const char* judged = delays(row.codec) ? "cumulative_nmse" : "nmse";
      table.add({place, model_.name(row), codec_label(row, model_.measured) + way_words(row), at("params"),
                 at("wire_bytes_per_rank"), at("payload_bytes"), at("payload_ratio"), at("nmse"), at("cumulative_nmse"),
                 judged, at(judged), shown_as(model_.name(row))});
    };
    for (std::size_t i = 0; i < model_.modelled.size(); ++i) {
      const ResultRow& row = model_.modelled[i];
      if (row.errors) add_row(place_name(row.network->name, row.ranks), row, model_.modelled_cells, i);
    }
    for (const std::size_t i : measured_places())
      add_row(measured_place(), model_.record.rows[i], model_.record.table, model_.record.place[i]);
    if (table.rows().empty()) {
      lacks("pareto_bytes", "no row of the bench has an error");
      return;
    }
    Blanks filled = blanks();
    filled["places"].push_back(measured_place());
    if (model_.modelled.empty()) filled["first_place"] = measured_place();
    add("pareto_bytes", std::move(table), filled);
  }
  [[nodiscard]] std::string measured_place() const {
    return model_.measured.empty() ? "" : fmt::format("measured, {} ranks", model_.measured.front().measured_ranks);
  }

  void pareto_and_phases() {
    pareto_bytes();
    if (model_.modelled.empty()) {
      lacks("pareto_time", "the bench modelled no network");
      lacks("phases", "the bench modelled no network");
      return;
    }
    Table time{"pareto_time",
               {{"network", "and how many ranks, modelled"},
                {"codec", "with the parameters that were given"},
                {"label", "the same with what tells it from others"},
                {"parameters", "all of them"},
                time_column(),
                {model_.unit.name + "_low", "where it lies with 95 % confidence of the codec's times, from here"},
                {model_.unit.name + "_high", "and to here"},
                {"judged_by", "the error that the codec is judged by"},
                {"error", "that one: squared, relative"},
                {"speedup_vs_none", "time of none / time of this codec"},
                {"pareto", "no other codec is better in error or time and no worse in the other"},
                {"best", "the advice may take it, and of those it may take none is better so"},
                {"pays_from", "size of a message from which on it is faster than uncompressed"},
                {"shown_as", "colour in the charts"}}};
    std::vector<Column> heads{{"network", "and how many ranks, modelled"},
                              {"codec", "with the parameters that were given"}};
    const std::vector<std::pair<std::string, std::string>> times{
        {"encode", "encode_us_median"}, {"comm", "comm_us_median"},    {"decode", "decode_us_median"},
        {"total", "total_us_median"},   {"total_low", "total_us_low"}, {"total_high", "total_us_high"}};
    Blanks filled = blanks();
    for (const auto& [blank, column] : times)
      heads.push_back(
          {filled.at(blank), fmt::format("{} of one step: the bench's column {}", model_.unit.words, column)});
    Table phases{"phases", heads};
    for (std::size_t i = 0; i < model_.modelled.size(); ++i) {
      const ResultRow& row = model_.modelled[i];
      const std::string place = place_name(row.network->name, row.ranks);
      const Interval interval = judged_interval(row);
      const bool known = interval.high > interval.low;
      const char* judged = delays(row.codec) ? "cumulative_nmse" : "nmse";
      if (row.codec.name() != "noop") {
        time.add({place, model_.name(row), codec_label(row, model_.measured) + way_words(row),
                  cell_at(model_.modelled_cells, i, "params"), judged_seconds(row) * model_.unit.per_second,
                  known ? Cell{interval.low * model_.unit.per_second} : Cell{},
                  known ? Cell{interval.high * model_.unit.per_second} : Cell{}, judged,
                  cell_at(model_.modelled_cells, i, judged),
                  cell_at(model_.modelled_cells, i, row.iteration ? "iteration_speedup_vs_none" : "speedup_vs_none"),
                  cell_at(model_.modelled_cells, i, "pareto"), Cell{is_best(row)},
                  row.gate_bytes ? Cell{gate_text(*row.gate_bytes)} : Cell{}, shown_as(model_.name(row))});
      }
      std::vector<Cell> line{place, model_.name(row)};
      for (const auto& [blank, column] : times) line.push_back(time_at(model_.modelled_cells, i, column));
      phases.add(std::move(line));
    }
    add("pareto_time", std::move(time), filled);
    filled["phases_height"] = 17 * std::max<std::size_t>(3, most_drawn());
    add("phases", std::move(phases), filled);
  }

  [[nodiscard]] bool may_be_taken(const ResultRow& row) const {
    if (row.codec.name() == "noop" || row.status != ResultRow::Status::ok) return false;
    if (row.codec.name() == "none") return true;
    return row.reached && !replaces_mean(row.codec) && is_accepted(row, options_.acceptance);
  }
  /// Whether the advice takes the modelled row, or may take it and no other that it may take there is better in error
  /// or time and no worse in the other.
  [[nodiscard]] bool is_best(const ResultRow& row) const {
    if (std::any_of(model_.advice.begin(), model_.advice.end(), [&row](auto& one) { return one.taken == &row; }))
      return true;
    const auto beats = [&](const ResultRow& other) {
      if (other.network->name != row.network->name || other.ranks != row.ranks) return false;
      const double error = judged_error(other) - judged_error(row), time = judged_seconds(other) - judged_seconds(row);
      return error <= 0.0 && time <= 0.0 && (error < 0.0 || time < 0.0) && may_be_taken(other);
    };
    return may_be_taken(row) && std::none_of(model_.modelled.begin(), model_.modelled.end(), beats);
  }

  /// Bars in the fullest network of the chart of phases, whose specification leaves out what takes five times as long
  /// as uncompressed.
  [[nodiscard]] std::size_t most_drawn() const {
    std::size_t most = 0;
    for (const auto& group : modelled_groups(model_.modelled)) {
      double none = 0.0;
      for (const ResultRow* row : group.rows) {
        if (row->codec.name() == "none" && row->total) none = std::max(none, row->total->median);
      }
      most = std::max<std::size_t>(
          most, static_cast<std::size_t>(std::count_if(group.rows.begin(), group.rows.end(), [&](const ResultRow* row) {
            return row->total && row->total->median <= 5.0 * none;
          })));
    }
    return most;
  }

  [[nodiscard]] Column time_column() const {
    return {model_.unit.name,
            model_.unit.words + (model_.compute.seconds > 0.0 ? std::string{" of an iteration"}
                                                              : fmt::format(" of one step's {}", collective()))};
  }
  /// A cell in microseconds, in the section's unit: as it stands there where that is microseconds.
  [[nodiscard]] Cell time_at(const Table& table, std::size_t row, const std::string& column) const {
    const auto us = number_at(table, row, column);
    return us && model_.unit.per_us != 1.0 ? Cell{*us * model_.unit.per_us} : cell_at(table, row, column);
  }
  [[nodiscard]] static Cell cell_at(const Table& table, std::size_t row, const std::string& column) {
    return has_column(table, column) ? table.at(row, column) : Cell{};
  }

  void errors() {
    Table table{"errors",
                {{"codec", "with the parameters that were given"},
                 {"iteration", "training iteration of the step"},
                 {"nmse", "of the step"},
                 {"cumulative_nmse", "of the sums over the steps of the window so far"},
                 {"window", "of the training that the step is in, from 0"},
                 {"shown_as", "colour in the charts"}}};
    for (const std::size_t i : measured_places()) {
      const std::string codec = model_.name(model_.record.rows[i]);
      if (codec == "noop") continue;  // 1, always
      const auto add_step = [&](const Table& steps, std::size_t s) {
        table.add({codec, cell_at(steps, s, "iteration"), cell_at(steps, s, "nmse"),
                   cell_at(steps, s, "cumulative_nmse"), cell_at(steps, s, "window"), shown_as(codec)});
      };
      if (source_.json) {
        const Json steps = source_.json->at("rows").at(model_.record.place[i]).value("steps", Json::array());
        const Table one = table_from_json("steps", steps, source_.origin.file);
        for (std::size_t s = 0; s < one.rows().size(); ++s) add_step(one, s);
      } else if (source_.steps) {
        const Table& all = *source_.steps;
        // Tables of older versions lack columns.
        for (std::size_t s = 0; s < all.rows().size(); ++s) {
          const auto same = [&](const char* column) {
            return text_at(all, s, column) == text_at(model_.record.table, model_.record.place[i], column);
          };
          const auto same_if_there = [&](const char* column) { return !has_column(all, column) || same(column); };
          if (same("codec") && same("params") && same("aggregation") && same("granularity") && same("timing") &&
              same_if_there("tensor") && same_if_there("levels") && same_if_there("seed") && same_if_there("pipeline"))
            add_step(all, s);
        }
      }
    }
    if (table.rows().empty()) {
      lacks("error_steps", source_.json ? "no codec was measured"
                                        : "a CSV of rows does not have the steps: --json or --steps-csv does");
      return;
    }
    add("error_steps", table, blanks());
    add("error_sums", std::move(table), blanks());
  }

  void layers() {
    std::map<std::vector<std::string>, const ResultRow*> by_key;
    const auto key = [&](std::size_t place) {
      std::vector<std::string> texts;
      for (const char* column : {"codec", "params", "granularity", "aggregation", "levels"})
        texts.push_back(text_at(model_.record.table, place, column));
      return texts;
    };
    for (std::size_t i = 0; i < model_.record.rows.size(); ++i)
      by_key.emplace(key(model_.record.place[i]), &model_.record.rows[i]);
    Table table{"layers",
                {{"codec", "with the parameters that were given"},
                 {"tensor", "name of the parameter"},
                 {"elements", "of the tensor"},
                 {"judged_by", "the error that the codec is judged by"},
                 {"error", "that one: squared, relative"}}};
    std::vector<std::string> tensors;
    std::set<std::pair<std::string, std::string>> seen;
    for (std::size_t i = 0; i < model_.record.table.rows().size(); ++i) {
      const std::string tensor = text_at(model_.record.table, i, "tensor");
      if (tensor == "all" || text_at(model_.record.table, i, "nmse").empty()) continue;
      const auto found = by_key.find(key(i));
      if (found == by_key.end()) continue;
      const std::string codec = model_.name(*found->second);
      if (codec.starts_with("none") || codec.starts_with("noop") || !seen.emplace(codec, tensor).second) continue;
      const char* judged = delays(found->second->codec) ? "cumulative_nmse" : "nmse";
      table.add({codec, tensor, cell_at(model_.record.table, i, "elements"), judged,
                 cell_at(model_.record.table, i, judged)});
      if (std::find(tensors.begin(), tensors.end(), tensor) == tensors.end()) tensors.push_back(tensor);
    }
    if (table.rows().empty()) {
      lacks("layers", "the bench has no rows of single tensors");
      return;
    }
    Blanks filled = blanks();
    filled["tensors"] = tensors;
    std::set<std::string> columns;
    for (const auto& one : seen) columns.insert(one.first);
    filled["layers_height"] = 13 * std::max<std::size_t>(2, tensors.size());
    // A column of 15 pixels for each codec, beside the names of the layers.
    filled["layers_width"] = std::max<std::size_t>(330, 200 + 15 * columns.size());
    add("layers", std::move(table), filled);
  }

  void scaling() {
    if (!model_.can_model()) {
      lacks("scaling", source_.json ? "no codec was timed by itself (--timing isolated)"
                                    : "a CSV does not have the collectives that each codec takes part in");
      return;
    }
    std::vector<int> counts;
    for (int count = 2; count <= 1024; count *= 2) counts.push_back(count);
    std::vector<ResultRow> rows = model_.modelled_for(model_.networks, counts);
    Table table{"scaling",
                {{"network", "that is modelled"},
                 {"nodes", "machines"},
                 {"ranks", "on all of them"},
                 {"codec", "with the parameters that were given"},
                 time_column(),
                 {"speedup_vs_none", "time of none / time of this codec"},
                 {"scaling_efficiency", "throughput of a rank against one rank alone, where iterations are modelled"},
                 {"shown_as", "colour in the charts"}}};
    double most = 1.0;
    for (const NetworkAdvice& at : advice_of(rows, options_.acceptance)) {
      for (const ResultRow* row : at.group.rows) {
        if (row->codec.name() == "noop") continue;
        const double gain = judged_seconds(*at.none) / judged_seconds(*row);
        table.add({row->network->name, std::int64_t{row->ranks / row->network->node}, std::int64_t{row->ranks},
                   model_.name(*row), judged_seconds(*row) * model_.unit.per_second, gain,
                   cell(row->scaling_efficiency()), shown_as(model_.name(*row))});
        most = std::max(most, gain);
      }
    }
    Blanks filled = blanks();
    filled["most_gain"] = 1.2 * most;
    add("scaling", std::move(table), filled);
  }

  void predicted() {
    Table table{"predicted",
                {{"codec", "with the parameters that were given"},
                 {"network", "that the model was given"},
                 {"ranks", "of both"},
                 {"comm", "what the measured ranks met over"},
                 {"predicted_" + model_.unit.name, "total_us_median of the modelled row, in " + model_.unit.words},
                 {"measured_" + model_.unit.name, "total_us_median of the measured row, all ranks at once"},
                 {"measured_" + model_.unit.name + "_low", "95 % interval of that, from here"},
                 {"measured_" + model_.unit.name + "_high", "and to here"}}};
    // Also of the ways that other charts leave out: all ranks at once are measured on a codec's own way alone.
    const BenchRecord& all = source_.record;
    std::vector<std::pair<const ResultRow*, Cell>> models;
    for (std::size_t j = 0; j < model_.modelled.size(); ++j)
      models.emplace_back(&model_.modelled[j], time_at(model_.modelled_cells, j, "total_us_median"));
    for (std::size_t j = 0; model_.as_recorded() && j < all.rows.size(); ++j) {
      const auto same = [&](auto& model) { return model_.name(*model.first) == model_.name(all.rows[j]); };
      if (all.rows[j].modelled() && std::none_of(models.begin(), models.end(), same))
        models.emplace_back(&all.rows[j], time_at(all.table, all.place[j], "total_us_median"));
    }
    for (std::size_t i = 0; i < all.rows.size(); ++i) {
      const ResultRow& row = all.rows[i];
      // Ranks that share a memory are on no network that could be predicted.
      if (row.modelled() || row.timing != Timing::concurrent || !row.total || (row.comm != "mpi" && row.comm != "nccl"))
        continue;
      for (const auto& [model, predicted] : models) {
        if (model_.name(*model) != model_.name(row) || model->ranks != row.ranks || row.codec.name() == "noop")
          continue;
        const auto at = [&](const char* column) { return time_at(all.table, all.place[i], column); };
        table.add({model_.name(row), model->network->name, std::int64_t{row.ranks}, row.comm, predicted,
                   at("total_us_median"), at("total_us_low"), at("total_us_high")});
      }
    }
    if (table.rows().empty()) {
      lacks("predicted", "it needs ranks that met over a network, and that network modelled for as many ranks");
      return;
    }
    add("predicted", std::move(table), blanks());
  }

  const BenchSource& source_;
  const FigureOptions& options_;
  std::string suffix_;
  CodecLooks& looks_;
  BenchModel model_;
  std::vector<std::string> shown_;  ///< codecs with a colour of their own
  BenchFigures out_;
};

}  // namespace

BenchFigures bench_figures(const BenchSource& source, const FigureOptions& options, const std::string& suffix,
                           CodecLooks& looks) {
  return BenchCharts{source, options, suffix, looks}.take();
}

}  // namespace gradtool
