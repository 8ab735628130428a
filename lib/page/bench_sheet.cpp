#include "lib/page/bench_sheet.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace gradtool {
namespace {

std::vector<std::string> with_none(std::vector<std::string> names, const char* none) {
  names.emplace_back(none);
  return names;
}

std::string what_of(const BenchSheet& sheet) {
  return sheet.model.compute.seconds > 0.0 ? "an iteration" : fmt::format("a step's {}", sheet.collective());
}

}  // namespace

BenchSheet::BenchSheet(const BenchSource& from, const FigureOptions& asked, const std::string& suffix,
                       CodecLooks& looks)
    : source{from}, options{asked}, model{from, asked}, suffix_{suffix}, looks_{looks} {
  choose_shown();
}

/// The codecs that charts bring out: those that are advised anywhere, what other programs' methods brought
/// (--received), then on each network the next fastest with an error that is small enough, or else whatever there is.
void BenchSheet::choose_shown() {
  const auto add = [this](const ResultRow* row) {
    if (row == nullptr || row->codec.name() == "none" || row->codec.name() == "noop") return;
    if (shown_.size() < CodecLooks::kColours &&
        std::find(shown_.begin(), shown_.end(), model.name(*row)) == shown_.end())
      shown_.push_back(model.name(*row));
  };
  for (const auto& one : model.advice) add(one.taken);
  for (const auto& one : model.swept_advice) add(one.taken);
  for (const ResultRow& row : model.measured) add(row.received() && row.errors ? &row : nullptr);
  for (std::size_t place = 0; place < CodecLooks::kColours; ++place) {
    for (const auto& one : model.advice) {
      std::vector<const ResultRow*> fit;
      for (const ResultRow* row : one.group.rows) {
        if (row->reached && judged_error(*row) <= options.acceptance.max_nmse && row->codec.name() != "none")
          fit.push_back(row);
      }
      std::stable_sort(fit.begin(), fit.end(),
                       [](auto* a, auto* b) { return judged_seconds(*a) < judged_seconds(*b); });
      if (place < fit.size()) add(fit[place]);
    }
  }
  if (!std::all_of(shown_.begin(), shown_.end(), [](auto& shown) { return shown.starts_with(kReceivedName); })) return;
  for (const ResultRow& row : model.measured) add(row.errors ? &row : nullptr);
}

std::string BenchSheet::shown_as(const std::string& codec) const {
  if (codec == "none" || codec == kUndecided || codec.starts_with("none with ")) return "uncompressed";
  return std::find(shown_.begin(), shown_.end(), codec) == shown_.end() ? std::string{kOthers} : codec;
}

std::string_view BenchSheet::collective() const {
  return name_of(model.measured.empty() ? Collective::all_reduce : model.measured.front().op);
}

std::string BenchSheet::place_name(const std::string& network, int ranks) {
  return fmt::format("{}, {} ranks", network, ranks);
}

std::vector<std::size_t> BenchSheet::measured_places() const {
  std::vector<std::size_t> places;
  std::set<std::string> seen;
  for (std::size_t i = 0; i < model.record.rows.size(); ++i) {
    const ResultRow& row = model.record.rows[i];
    if (!row.modelled() && row.errors && seen.insert(model.name(row)).second) places.push_back(i);
  }
  return places;
}

Blanks BenchSheet::blanks() const {
  const int node = model.networks.front().node;
  std::vector<std::string> codecs, places, or_none{""}, or_none_labels{"no other"};
  for (const ResultRow& row : model.measured) {
    if (std::find(codecs.begin(), codecs.end(), model.name(row)) == codecs.end()) codecs.push_back(model.name(row));
  }
  or_none.insert(or_none.end(), codecs.begin(), codecs.end());
  or_none_labels.insert(or_none_labels.end(), codecs.begin(), codecs.end());
  for (const auto& group : modelled_groups(model.modelled)) places.push_back(place_name(group.network, group.ranks));
  std::vector<std::string> networks;
  for (const auto& network : model.networks) networks.push_back(network.name);
  std::vector<std::string> colours, shapes;
  std::vector<std::vector<double>> dashes;
  for (const auto& codec : shown_) {
    const CodecLooks::Look look = looks_.of(codec);
    colours.push_back(look.colour);
    dashes.push_back(look.dash);
    shapes.push_back(look.shape);
  }
  const ResultRow* any = model.measured.empty() ? nullptr : &model.measured.front();
  // Second of several networks, because it is most often the one in the middle.
  const auto middle = [](const std::vector<std::string>& names) {
    return names.empty() ? std::string{} : names[std::min<std::size_t>(1, names.size() - 1)];
  };
  return {{"what", what_of(*this)},
          {"where", node > 1 ? fmt::format("{} machines of {} ranks", model.usual_nodes, node)
                             : fmt::format("{} nodes", model.usual_nodes)},
          {"measured", any == nullptr ? std::string{"no ranks"}
                                      : fmt::format("{} ranks ({}, {})", any->measured_ranks, any->comm, any->device)},
          {"shown", shown_},
          {"colours", colours},
          {"dashes", dashes},
          {"shapes", shapes},
          {"shapes_or_none", with_none(shapes, "circle")},
          {"unit", model.unit.name},
          {"unit_low", model.unit.name + "_low"},
          {"unit_high", model.unit.name + "_high"},
          {"encode", "encode_" + model.unit.name},
          {"comm", "comm_" + model.unit.name},
          {"decode", "decode_" + model.unit.name},
          {"total", "total_" + model.unit.name},
          {"total_low", "total_" + model.unit.name + "_low"},
          {"total_high", "total_" + model.unit.name + "_high"},
          {"predicted", "predicted_" + model.unit.name},
          {"measured_time", "measured_" + model.unit.name},
          {"measured_low", "measured_" + model.unit.name + "_low"},
          {"measured_high", "measured_" + model.unit.name + "_high"},
          {"latencies", model.latency_words},
          {"drawn_limit", std::max(options.acceptance.max_nmse, 1e-8)},  // errors below that are drawn there as well
          {"limit_words", fmt::format("largest error accepted: {:g}", options.acceptance.max_nmse)},
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

void BenchSheet::add(const std::string& chart, Table table, const Blanks& filled,
                     const nlohmann::ordered_json& networks) {
  Chart made = make_chart(chart, suffix_, source.origin, std::move(table), filled);
  if (!networks.is_null()) made.spec["datasets"]["networks"] = networks;
  figures.charts.push_back(std::move(made));
}

void BenchSheet::lacks(const std::string& chart, const std::string& why) {
  figures.missing.push_back(missing_chart(chart, why, blanks()));
}

Column BenchSheet::time_column() const {
  return {model.unit.name,
          model.unit.words + (model.compute.seconds > 0.0 ? std::string{" of an iteration"}
                                                          : fmt::format(" of one step's {}", collective()))};
}

Cell BenchSheet::time_at(const Table& table, std::size_t row, const std::string& column) const {
  const auto us = number_at(table, row, column);
  return us && model.unit.per_us != 1.0 ? Cell{*us * model.unit.per_us} : cell_at(table, row, column);
}

Cell cell_at(const Table& table, std::size_t row, const std::string& column) {
  return has_column(table, column) ? table.at(row, column) : Cell{};
}

const char* judged_column(const ResultRow& row) {
  return delays(row.codec) ? "cumulative_nmse" : "nmse";
}

TimeRange::TimeRange(const ResultRow& row, const TimeUnit& unit) {
  const Interval interval = judged_interval(row);
  if (!(interval.high > interval.low)) return;
  low = Cell{interval.low * unit.per_second};
  high = Cell{interval.high * unit.per_second};
}

}  // namespace gradtool
