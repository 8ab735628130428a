// Prints the results of a probe for people.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lib/core/text.hpp"
#include "lib/probe/probe.hpp"

namespace gradtool {
namespace {

/// A size as nccl-tests' options have it: 512 B, 32 KiB, 8 MiB.
std::string size_text(double bytes) {
  constexpr double kStep = 1024.0;
  const char* unit = "B";
  for (const char* next : {"KiB", "MiB", "GiB"}) {
    if (bytes < kStep) break;
    bytes /= kStep;
    unit = next;
  }
  return fmt::format("{:.4g} {}", bytes, unit);
}

/// Four significant digits unless told otherwise, at most four decimals, without an exponent.
std::string number(double value, int significant = 4) {
  const int digits = value > 0.0 ? static_cast<int>(std::floor(std::log10(value))) + 1 : 1;
  return fmt::format("{:.{}f}", value, std::clamp(significant - digits, 0, 4));
}

// On a machine that does much else a time may be off by more than anybody wants to read; tables keep their width.
constexpr double kMostTold = 9.99;

std::string percent(double share) {
  return fmt::format("{:+.0f} %", 100.0 * std::min(share, kMostTold));
}

/// "94.1-96.3", or a dash where it is not known.
std::string interval_text(const std::optional<Interval>& range, double scale) {
  return range ? fmt::format("{}-{}", number(range->low * scale, 3), number(range->high * scale, 3)) : "-";
}

/// How far the farther end of the interval is from the value, in per cent of the value; a dash where it is not known.
std::string spread_text(double value, const std::optional<Interval>& range) {
  if (!range) return "-";
  const double wider = std::max(value - range->low, range->high - value);
  return value > 0.0 ? fmt::format("{:.0f}", 100.0 * std::min(wider / value, kMostTold)) : "-";
}

std::string rows_text(const ProbeOptions& options, const ProbeReport& report) {
  const Table table = to_table(options, report);
  std::vector<std::vector<std::string>> lines;
  for (std::size_t i = 0; i < report.rows.size(); ++i) {
    const Pattern pattern = report.rows[i].pattern;
    if (i == 0 || report.rows[i - 1].pattern != pattern) {
      const auto& info = patterns()[static_cast<std::size_t>(pattern)];
      lines.push_back({fmt::format("{}: {}", info.name, info.meaning)});
    }
    const auto value = [&](const char* column) { return std::get<double>(table.at(i, column)); };
    const double time = value("time_us_median");
    std::optional<Interval> range;
    if (const auto* low = std::get_if<double>(&table.at(i, "time_us_low"))) {
      range = Interval{*low, value("time_us_high")};
    }
    lines.push_back({size_text(report.rows[i].times.bytes), number(time), spread_text(time, range),
                     number(value("algbw_gbit_s")), number(value("busbw_gbit_s")), number(value("modelled_us")),
                     percent(value("modelled_off"))});
  }
  return format_rows({"size", "time us", "+-%", "algbw", "busbw", "modelled us", "off"}, lines,
                     std::vector<bool>(7, true));
}

std::string fits_text(const ProbeOptions& options, const ProbeReport& report) {
  std::vector<std::vector<std::string>> lines;
  for (std::size_t i = 0; i < report.fits.size(); ++i) {
    const LinkFit& fit = report.fits[i];
    std::vector<const ProbeRow*> rows;
    for (const ProbeRow& row : report.rows) {
      if (row.pattern == report.patterns[i]) rows.push_back(&row);
    }
    lines.push_back(
        {fmt::format("{}{}", name_of(report.patterns[i]), report.patterns[i] == options.link_from ? " *" : ""),
         number(fit.link.alpha * 1e6), spread_text(fit.link.alpha, fit.alpha), number(gbit(fit.link.beta)),
         spread_text(fit.link.beta, fit.beta), fmt::format("{:.0f} %", 100.0 * std::min(fit.misfit, kMostTold)),
         fmt::format("{} {}", percent(fit.off[fit.worst]), size_text(rows[fit.worst]->times.bytes))});
  }
  return format_rows({"fit of", "alpha us", "+-%", "Gbit/s", "+-%", "misfit", "worst at"}, lines,
                     {false, true, true, true, true, true, true});
}

}  // namespace

std::string terminal_text(const ProbeOptions& options, const ProbeReport& report) {
  std::string out = fmt::format(
      "{} ranks{}, {}. Rates in Gbit/s, 1e9 bits of data a second; modelled by the fit that has the *, pairs "
      "by their own.",
      report.ranks, report.hosts > 1 ? fmt::format(" on {} hosts", report.hosts) : "", options.comm);
  out = wrapped(out, 80, "") + "\n" + rows_text(options, report) + "\n" + fits_text(options, report) + "\n";
  const auto say = [&out](const std::string& text) { out += wrapped(text, 80); };
  const LinkFit &alone = report.fit_of(Pattern::pair), &together = report.fit_of(options.link_from);
  const Contention contention = contention_of(options, report);
  say(fmt::format("The link: {} Gbit/s for two ranks alone (95 %: {}), {} us a message.", number(gbit(alone.link.beta)),
                  interval_text(alone.beta, gbit(1.0)), number(alone.link.alpha * 1e6)));
  say(fmt::format("What bench models, all ranks at once: {} Gbit/s, contention {:.2f} (95 %: {}), {} us a message.",
                  number(gbit(together.link.beta)), contention.factor, interval_text(contention.interval, 1.0),
                  number(together.link.alpha * 1e6)));
  if (report.pairs.size() > 1) {
    const auto [slowest, fastest] = std::minmax_element(
        report.pairs.begin(), report.pairs.end(),
        [](const PairRate& a, const PairRate& b) { return a.bytes_per_second < b.bytes_per_second; });
    say(fmt::format("Pairs alone: slowest ranks {} and {}, {} Gbit/s; fastest {} and {}, {}.", slowest->from,
                    slowest->to, number(gbit(slowest->bytes_per_second)), fastest->from, fastest->to,
                    number(gbit(fastest->bytes_per_second))));
  }
  std::string bent;
  for (std::size_t i = 0; i < report.fits.size(); ++i) {
    if (!report.fits[i].fits()) bent += fmt::format("{}{}", bent.empty() ? "" : ", ", name_of(report.patterns[i]));
  }
  if (!bent.empty()) {
    say(fmt::format("No line fits {} within {:.0f} % at every size: the model is off by what the last column says.",
                    bent, 100.0 * LinkFit::kMostOff));
  }
  if (report.hosts == 1) {
    say("All ranks share one machine: this is its memory or its bus, not a network between machines.");
  } else if (report.ranks > report.hosts) {
    say("Several ranks share a host: some of these messages never left it. One rank a host measures the network.");
  }
  return out;
}

}  // namespace gradtool
