// Tests that a probe's text fits a terminal, whatever was measured.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <sstream>

#include "lib/probe/probe.hpp"

namespace gradtool {
namespace {

/// A probe on a machine that does so much else that each sample takes between a thousandth and a thousand times as long
/// as the link would.
ProbeReport disturbed(const Link& link, std::uint64_t seed) {
  std::mt19937_64 random{seed};
  std::uniform_real_distribution<double> exponent{-3.0, 3.0};
  ProbeReport report;
  report.ranks = 4;
  for (const PatternInfo& info : patterns()) {
    std::vector<SizeTimes> sizes;
    for (double bytes = 12.0; bytes < 1 << 28; bytes *= 18.3) {
      const double whole = std::floor(bytes);
      SizeTimes size{.bytes = whole, .seconds = {}, .rounds = {3, 3}};
      for (int i = 0; i < 6; ++i) {
        size.seconds.push_back(modelled_seconds(info.pattern, whole, 4, link) * std::pow(10.0, exponent(random)));
      }
      report.rows.push_back(
          {.pattern = info.pattern, .bytes = static_cast<std::uint64_t>(whole), .repeats = 1, .times = size});
      sizes.push_back(std::move(size));
    }
    report.patterns.push_back(info.pattern);
    report.fits.push_back(fit_link(info.pattern, sizes, 4));
  }
  report.pairs = {{0, 1, 1e-3 * link.beta}, {1, 2, link.beta}};
  return report;
}

TEST(Terminal, HasNoLineOfMoreThan80Columns) {
  for (const Link link : {Link{50e-6, 0.117e9}, Link{5e-9, 900e9}, Link{2.0, 1e3}}) {
    for (std::uint64_t seed = 0; seed < 5; ++seed) {
      ProbeOptions options;
      options.comm = "threads";
      options.link_from = Pattern::all_reduce_ring;
      std::istringstream lines{terminal_text(options, disturbed(link, seed))};
      for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80U) << line;
    }
  }
}

}  // namespace
}  // namespace gradtool
