// Writes the results of a probe: the table of rows, and the network file.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "lib/comm/launch.hpp"
#include "lib/core/parse.hpp"
#include "lib/probe/probe.hpp"
#include "lib/report/json.hpp"

namespace gradtool {
namespace {

using Json = nlohmann::ordered_json;

/// With six significant digits, more than any measurement has: so that the name that bench gives the network is short.
double rounded(double value) {
  return number_of<double>(fmt::format("{:.6g}", value)).value_or(value);
}

/// A value and the interval that it lies in: null where that is not known.
void add(Json& json, const std::string& name, double value, const std::optional<Interval>& interval, double scale) {
  json[name] = rounded(value * scale);
  json[name + "_low"] = interval ? Json(rounded(interval->low * scale)) : Json();
  json[name + "_high"] = interval ? Json(rounded(interval->high * scale)) : Json();
}
void add_alpha(Json& json, const LinkFit& fit) {
  add(json, "alpha_us", fit.link.alpha, fit.alpha, 1e6);
}
void add_beta(Json& json, const LinkFit& fit) {
  add(json, "beta_gbit_s", fit.link.beta, fit.beta, gbit(1.0));
}

}  // namespace

Table to_table(const ProbeOptions& options, const ProbeReport& report) {
  Table table{"probe",
              {{"collective", "who sends to whom, see docs/network-model.md"},
               {"bytes", "of the message, the summed vector, or all parts together, as nccl-tests count"},
               {"ranks", "that took part"},
               {"samples", "each the mean of as many operations as repeats says"},
               {"repeats", "operations in a sample"},
               {"time_us_median", "microseconds of one operation, slowest rank: median over samples"},
               {"time_us_low", "where the median lies with 95 % confidence, from here; empty for fewer than 5 samples"},
               {"time_us_high", "and to here"},
               {"time_us_min", "smallest sample"},
               {"algbw_gbit_s", "8e-9 bytes / time"},
               {"busbw_gbit_s", "the same by what crosses each link, as nccl-tests define it"},
               {"modelled_us", "by the network's alpha and beta; pairs by their own"},
               {"modelled_off", "modelled_us / time_us_median - 1"}}};
  for (const ProbeRow& row : report.rows) {
    const LinkFit& fit = report.fit_of(row.pattern == Pattern::pair ? Pattern::pair : options.link_from);
    const Summary summary = summarise(row.times.seconds);
    const auto interval = median_interval(row.times.seconds, row.times.rounds);
    const double modelled = modelled_seconds(row.pattern, row.times.bytes, report.ranks, fit.link);
    const double rate = gbit(row.times.bytes / summary.median);
    const auto end = [&](double Interval::*side) { return interval ? Cell{(*interval).*side * 1e6} : Cell{}; };
    table.add({std::string{name_of(row.pattern)}, static_cast<std::int64_t>(row.bytes),
               static_cast<std::int64_t>(row.pattern == Pattern::pair ? 2 : report.ranks),
               static_cast<std::int64_t>(summary.samples), static_cast<std::int64_t>(row.repeats), summary.median * 1e6,
               end(&Interval::low), end(&Interval::high), summary.min * 1e6, rate,
               rate * bus_factor(row.pattern, report.ranks), modelled * 1e6, modelled / summary.median - 1.0});
  }
  return table;
}

nlohmann::ordered_json record(const ProbeOptions& options, const ProbeReport& report, const std::string& name) {
  Json out;
  out["format"] = kNetworkFormat;
  out["schema_version"] = kNetworkSchema;
  out["command"] = options.command;
  out["provenance"] = provenance();
  for (const auto& backend : comm_backends()) {
    if (backend.name == options.comm)
      out["provenance"]["communicator"] = {{"name", backend.name}, {"detail", backend.detail}};
  }
  out["name"] = name;
  out["comm"] = options.comm;
  out["ranks"] = report.ranks;
  out["hosts"] = report.hosts;
  const LinkFit &alone = report.fit_of(Pattern::pair), &together = report.fit_of(options.link_from);
  const Contention contention = contention_of(options, report);
  add_alpha(out["link"], together);
  add_beta(out["link"], alone);
  add(out["link"], "contention", contention.factor, contention.interval, 1.0);
  out["link"]["from"] = name_of(options.link_from);
  for (const PairRate& pair : report.pairs)
    out["pairs"].push_back({{"from", pair.from}, {"to", pair.to}, {"gbit_s", rounded(gbit(pair.bytes_per_second))}});
  for (std::size_t i = 0; i < report.fits.size(); ++i) {
    const LinkFit& fit = report.fits[i];
    Json one{{"collective", name_of(report.patterns[i])}};
    add_alpha(one, fit);
    add_beta(one, fit);
    one["misfit"] = rounded(fit.misfit);
    one["worst_off"] = rounded(fit.off[fit.worst]);
    one["fits"] = fit.fits();
    out["fits"].push_back(std::move(one));
  }
  auto rows = gradtool::to_json(to_table(options, report));
  for (std::size_t i = 0; i < report.rows.size(); ++i) {
    rows[i]["round_samples"] = report.rows[i].times.rounds;
    for (const double seconds : report.rows[i].times.seconds) rows[i]["samples_us"].push_back(rounded(seconds * 1e6));
  }
  out["rows"] = std::move(rows);
  return out;
}

}  // namespace gradtool
