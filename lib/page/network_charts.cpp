#include "lib/page/bench_sheet.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lib/page/sweep.hpp"

namespace gradtool {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kDrawnSpeed = 3;  // every third speed of the sweep is drawn

std::string two_digits(double value) {
  return value >= 10.0 ? fmt::format("{:.0f}", value) : fmt::format("{:.2g}", value);
}

Cell cell(const std::optional<double>& value) {
  return value ? Cell{*value} : Cell{};
}

void draw_taken(BenchSheet& sheet, const Json& networks) {
  const BenchModel& model = sheet.model;
  struct Range {
    std::size_t first, last;
    std::string codec;
  };
  std::vector<Range> ranges;
  // The advice takes no codec if noise leaves it open whether one gains, but it does not say to stay uncompressed.
  const auto taken_name = [&model](const NetworkAdvice& at) {
    if (at.taken != nullptr) return model.name(*at.taken);
    return std::string{at.answer == "stay uncompressed" ? "none" : BenchSheet::kUndecided};
  };
  for (std::size_t i = 0; i < model.swept_advice.size(); ++i) {
    const std::string codec = taken_name(model.swept_advice[i]);
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
      const NetworkAdvice& at = model.swept_advice[i];
      return at.taken == nullptr ? 1.0 : judged_seconds(*at.none) / judged_seconds(*at.taken);
    };
    table.add({codec, from, to, gain(range.first), gain(range.last), sheet.shown_as(codec)});
    const std::string clause = codec == "none"                   ? "stay uncompressed"
                               : codec == BenchSheet::kUndecided ? "it is too close to call"
                                                                 : "take " + codec;
    const bool first = range.first == 0, last = range.last + 1 == kSweepSpeeds;
    sheet.figures.by_speed += first && last ? "at every speed " + clause
                              : first       ? fmt::format("below {} Gbit/s {}", two_digits(to), clause)
                              : last        ? fmt::format("above {} {}", two_digits(from), clause)
                                            : fmt::format("from {} to {} {}", two_digits(from), two_digits(to), clause);
    sheet.figures.by_speed += last ? "." : "; ";
  }
  Blanks filled = sheet.blanks();
  std::vector<std::string> taken;
  for (const Range& range : ranges) {
    if (std::find(taken.begin(), taken.end(), sheet.shown_as(range.codec)) == taken.end())
      taken.push_back(sheet.shown_as(range.codec));
  }
  filled["taken"] = taken;
  sheet.figures.by_speed =
      fmt::format("By the speed of a link, with {}: {}", filled.at("where").get<std::string>(), sheet.figures.by_speed);
  sheet.add("take_by_speed", std::move(table), filled, networks);
}

void draw_times(BenchSheet& sheet, const Json& networks) {
  const BenchModel& model = sheet.model;
  Table table{"break_even",
              {{"codec", "with the parameters that were given"},
               {"link_gbit_s", "speed of the network's links, each way"},
               {"alpha_us", "latency of a message, microseconds"},
               {"ranks", "that are modelled"},
               sheet.time_column(),
               {model.unit.name + "_low", "where it lies with 95 % confidence of the codec's times, from here"},
               {model.unit.name + "_high", "and to here"},
               {"speedup_vs_none", "time of none / time of this codec"},
               {"shown_as", "colour in the charts"}}};
  double least = INFINITY, most = 0.0;
  for (std::size_t i = 0; i < model.swept_advice.size(); i += kDrawnSpeed) {
    const NetworkAdvice& at = model.swept_advice[i];
    for (const ResultRow* row : at.group.rows) {
      const double time = judged_seconds(*row) * model.unit.per_second;
      const TimeRange range{*row, model.unit};
      table.add({model.name(*row), row->network->link.beta * 8e-9, row->network->link.alpha * 1e6,
                 std::int64_t{row->ranks}, time, range.low, range.high, judged_seconds(*at.none) / judged_seconds(*row),
                 sheet.shown_as(model.name(*row))});
      if (row->codec.name() == "noop" || !(time > 0.0)) continue;
      if (row->codec.name() == "none" || sheet.shown_as(model.name(*row)) != BenchSheet::kOthers) {
        least = std::min(least, time);
        most = std::max(most, time);
      }
    }
  }
  Blanks filled = sheet.blanks();
  filled["time_range"] = {least / 2.0, most * 2.0};
  sheet.add("break_even", std::move(table), filled, networks);
}

}  // namespace

void draw_speeds(BenchSheet& sheet) {
  const BenchModel& model = sheet.model;
  const std::string why = model.synthetic     ? "the gradients are made up (--synthetic), so nothing can be advised"
                          : sheet.source.json ? "no codec was timed by itself (--timing isolated)"
                                              : "a CSV does not have the collectives that each codec takes part in";
  if (model.swept_advice.empty()) {
    sheet.lacks("break_even", why);
    return;
  }
  Json named = Json::array();
  for (const Network& network : model.networks) {
    const double gbit_s = network.link.beta * 8e-9;
    if (gbit_s > sweep_speed(0) && gbit_s < sweep_speed(kSweepSpeeds - 1)) {
      named.push_back({{"network", network.name.substr(0, network.name.find(':'))}, {"link_gbit_s", gbit_s}});
    }
  }
  draw_taken(sheet, named);
  draw_times(sheet, named);
}

void draw_scaling(BenchSheet& sheet) {
  const BenchModel& model = sheet.model;
  if (!model.can_model()) {
    sheet.lacks("scaling", sheet.source.json ? "no codec was timed by itself (--timing isolated)"
                                             : "a CSV does not have the collectives that each codec takes part in");
    return;
  }
  std::vector<int> counts;
  for (int count = 2; count <= 1024; count *= 2) counts.push_back(count);
  std::vector<ResultRow> rows = model.modelled_for(model.networks, counts);
  Table table{"scaling",
              {{"network", "that is modelled"},
               {"nodes", "machines"},
               {"ranks", "on all of them"},
               {"codec", "with the parameters that were given"},
               sheet.time_column(),
               {"speedup_vs_none", "time of none / time of this codec"},
               {"scaling_efficiency", "throughput of a rank against one rank alone, where iterations are modelled"},
               {"shown_as", "colour in the charts"}}};
  double most = 1.0;
  for (const NetworkAdvice& at : advice_of(rows, sheet.options.acceptance)) {
    for (const ResultRow* row : at.group.rows) {
      if (row->codec.name() == "noop") continue;
      const double gain = judged_seconds(*at.none) / judged_seconds(*row);
      table.add({row->network->name, std::int64_t{row->ranks / row->network->node}, std::int64_t{row->ranks},
                 model.name(*row), judged_seconds(*row) * model.unit.per_second, gain, cell(row->scaling_efficiency()),
                 sheet.shown_as(model.name(*row))});
      most = std::max(most, gain);
    }
  }
  Blanks filled = sheet.blanks();
  filled["most_gain"] = 1.2 * most;
  sheet.add("scaling", std::move(table), filled);
}

void draw_predicted(BenchSheet& sheet) {
  const BenchModel& bench = sheet.model;
  Table table{"predicted",
              {{"codec", "with the parameters that were given"},
               {"network", "that the model was given"},
               {"ranks", "of both"},
               {"comm", "what the measured ranks met over"},
               {"predicted_" + bench.unit.name, "total_us_median of the modelled row, in " + bench.unit.words},
               {"measured_" + bench.unit.name, "total_us_median of the measured row, all ranks at once"},
               {"measured_" + bench.unit.name + "_low", "95 % interval of that, from here"},
               {"measured_" + bench.unit.name + "_high", "and to here"}}};
  // Also of the ways that other charts leave out: all ranks at once are measured on a codec's own way alone.
  const BenchRecord& all = sheet.source.record;
  std::vector<std::pair<const ResultRow*, Cell>> models;
  for (std::size_t j = 0; j < bench.modelled.size(); ++j)
    models.emplace_back(&bench.modelled[j], sheet.time_at(bench.modelled_cells, j, "total_us_median"));
  for (std::size_t j = 0; bench.as_recorded() && j < all.rows.size(); ++j) {
    const auto same = [&](auto& model) { return bench.name(*model.first) == bench.name(all.rows[j]); };
    if (all.rows[j].modelled() && std::none_of(models.begin(), models.end(), same))
      models.emplace_back(&all.rows[j], sheet.time_at(all.table, all.place[j], "total_us_median"));
  }
  for (std::size_t i = 0; i < all.rows.size(); ++i) {
    const ResultRow& row = all.rows[i];
    // Ranks that share a memory are on no network that could be predicted.
    if (row.modelled() || row.timing != Timing::concurrent || !row.total || (row.comm != "mpi" && row.comm != "nccl"))
      continue;
    for (const auto& [model, predicted] : models) {
      if (bench.name(*model) != bench.name(row) || model->ranks != row.ranks || row.codec.name() == "noop") continue;
      const auto at = [&](const char* column) { return sheet.time_at(all.table, all.place[i], column); };
      table.add({bench.name(row), model->network->name, std::int64_t{row.ranks}, row.comm, predicted,
                 at("total_us_median"), at("total_us_low"), at("total_us_high")});
    }
  }
  if (table.rows().empty()) {
    sheet.lacks("predicted", "it needs ranks that met over a network, and that network modelled for as many ranks");
    return;
  }
  sheet.add("predicted", std::move(table), sheet.blanks());
}

}  // namespace gradtool
