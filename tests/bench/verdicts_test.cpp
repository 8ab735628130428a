#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "lib/bench/result.hpp"

namespace gradtool::test {
namespace {

/// Times in microseconds.
struct Measured {
  std::string codec;  ///< with parameters
  double wire = 0.0, encode = 0.0, decode = 0.0, total = 0.0;
  double nmse = 0.0, cumulative_nmse = 0.0;
};

PhaseSummary microseconds(double value) {
  return {.median = value * 1e-6};
}

/// Rows as run_bench makes them, with the few numbers that verdicts need.
class Verdicts : public testing::Test {
 protected:
  static ResultRow row(const Measured& m, Timing timing) {
    ResultRow row{parse_codec(m.codec)};
    row.timing = timing;
    row.ranks = row.measured_ranks = 4;
    // One broadcast of what it sends: its time is a latency, the same for all, and bytes over speed.
    row.units.resize(timing == Timing::isolated ? 1 : 0);
    for (auto& unit : row.units) add_use(unit.uses, "broadcast", m.wire);
    row.bytes = {.payload = 0.0, .wire_per_rank = m.wire, .values_sent = 0.0};
    row.encode = microseconds(m.encode);
    row.decode = microseconds(m.decode);
    row.errors = ErrorSums{.xx = 1.0, .error = m.nmse};
    row.cumulative_nmse = m.cumulative_nmse;
    if (timing == Timing::concurrent) row.total = microseconds(m.total);
    return row;
  }
  void add(const Measured& m, Timing timing) { rows_.push_back(row(m, timing)); }
  /// On a network, with an iteration that computes for 10 ms.
  void add_modelled(const Measured& m, const std::string& network, double iteration_ms) {
    ResultRow modelled = row(m, Timing::isolated);
    modelled.network = Network::parse(network + ":alpha=1us,beta=1GBps");
    modelled.total = microseconds(m.total);
    modelled.iteration = {.compute_seconds = 10e-3, .overlap = Overlap::bucket, .seconds = iteration_ms * 1e-3};
    rows_.push_back(std::move(modelled));
  }
  [[nodiscard]] const ResultRow::Verdict& verdict(std::size_t row) const { return rows_.at(row).verdict; }
  [[nodiscard]] bool on_front(std::size_t row) const { return verdict(row).pareto.value(); }
  std::vector<ResultRow> rows_;
};

TEST_F(Verdicts, BreakEvenIsWhereBothTakeTheSameTime) {
  add({.codec = "none", .wire = 1'000'000, .decode = 10.0}, Timing::isolated);
  add({.codec = "fp16", .wire = 500'000, .encode = 60.0, .decode = 50.0}, Timing::isolated);
  add({.codec = "zstd", .wire = 2'000'000, .encode = 1.0, .decode = 1.0}, Timing::isolated);
  add({.codec = "bf16", .wire = 500'000, .decode = 5.0}, Timing::isolated);
  add({.codec = "zfp", .wire = 2'000'000, .encode = 20.0, .decode = 1.0}, Timing::isolated);
  set_verdicts(rows_);
  const double gbit = verdict(1).breakeven_gbit_s.value();
  // 500 kB saved against 100 us more: 4e6 bits / 1e-4 s.
  EXPECT_NEAR(gbit, 40.0, 1e-9);
  const double bytes_per_us = gbit * 1e9 / 8.0 / 1e6;
  EXPECT_NEAR(1e6 / bytes_per_us + 10.0, 5e5 / bytes_per_us + 110.0, 1e-9);
  // Sends more, but computes 8 us less: only on networks that carry 1 MB more in that time.
  EXPECT_TRUE(std::isinf(verdict(2).breakeven_gbit_s.value()));
  EXPECT_NEAR(verdict(2).breakeven_from.value(), 1000.0, 1e-6);
  EXPECT_EQ(verdict(1).breakeven_from.value(), 0.0);
  EXPECT_TRUE(std::isinf(verdict(3).breakeven_gbit_s.value()));  // faster to compute: always
  EXPECT_FALSE(verdict(0).breakeven_gbit_s.has_value());
  EXPECT_EQ(verdict(4).breakeven_gbit_s.value(), 0.0);  // sends more and computes longer: never
}

// Wang et al. 2020 (FFT), section 3.2: a codec pays when k > 1 / (1 - 2 T_comm S), S = 4/600 + 1/71 + 1/67 + 1/30 s/GB
// on each side, where uncompressed means M / T_comm. The values of k are those of its figure 10.
TEST_F(Verdicts, BreakEvenAgreesWithTheClosedFormOfTheFftPaper) {
  const double cost = 4.0 / 600 + 1.0 / 71 + 1.0 / 67 + 1.0 / 30;  // seconds a GB
  constexpr double kMegabytes = 100.0;
  const double codec_us = kMegabytes * 1e6 * cost / 1e9 * 1e6;
  const std::vector<std::pair<double, double>> figure{{10, 1.21}, {20, 1.53}, {32, 2.23},
                                                      {40, 3.23}, {48, 5.8},  {56, 29.5}};
  add({.codec = "none", .wire = kMegabytes * 1e6}, Timing::isolated);
  for (const auto& [gbit, read_off] : figure) {
    const double ratio = 1.0 / (1.0 - 2.0 * (gbit / 8.0) * cost);
    EXPECT_NEAR(ratio, read_off, 0.005 * read_off) << gbit;
    add({.codec = "fft", .wire = kMegabytes * 1e6 / ratio, .encode = codec_us, .decode = codec_us}, Timing::isolated);
  }
  // However much it compresses, it does not pay above 1 / (2 S) = 58 Gbit/s.
  add({.codec = "fft", .wire = 1e-3, .encode = codec_us, .decode = codec_us}, Timing::isolated);
  set_verdicts(rows_);
  for (std::size_t i = 0; i < figure.size(); ++i) {
    EXPECT_NEAR(verdict(1 + i).breakeven_gbit_s.value(), figure[i].first, 1e-9 * figure[i].first);
  }
  EXPECT_NEAR(verdict(1 + figure.size()).breakeven_gbit_s.value(), 58.0, 0.1);
}

// One model: at its break-even a codec is as fast as none, on a slower network faster, on a faster one slower; with
// latency, for any number of ranks, and for collectives of several kinds.
TEST_F(Verdicts, BreakEvenIsWhereTheModelledSpeedupIsOne) {
  std::mt19937 random{7};
  const auto between = [&random](double low, double high) {
    return std::exp(std::uniform_real_distribution{std::log(low), std::log(high)}(random));
  };
  int finite = 0;
  for (int trial = 0; trial < 200; ++trial) {
    rows_.clear();
    const double bytes = between(1e4, 1e8);
    add({.codec = "none", .encode = 0.0, .decode = between(1.0, 100.0)}, Timing::isolated);
    add({.codec = "fp16", .encode = between(1.0, 1e5), .decode = between(1.0, 1e5)}, Timing::isolated);
    rows_[0].units[0].uses = rows_[1].units[0].uses = no_uses();
    add_use(rows_[0].units[0].uses, "all_reduce_sum", bytes);
    add_use(rows_[1].units[0].uses, trial % 2 == 0 ? "all_gather_v" : "all_reduce_half", bytes / between(2.0, 1000.0));
    if (trial % 3 == 0) add_use(rows_[1].units[0].uses, "all_gather", 8.0);
    rows_[1].scheme = Scheme::sum;  // so that decoding does not grow with ranks
    for (auto& row : rows_) {
      row.units[0].encode = row.encode->median;
      row.units[0].decode = row.decode->median;
    }
    const int ranks = static_cast<int>(between(2.0, 200.0));
    const auto modelled_at = [&](double gbit) {
      std::vector<ResultRow> rows = rows_;
      const std::vector<Network> networks{
          Network::parse(fmt::format("lab:alpha={}us,beta={}Gbps", trial % 5 == 0 ? 0 : 17, gbit))};
      const std::vector<int> machines{ranks};
      const std::vector<double> tensors;
      gradtool::add_modelled(rows, {.networks = networks, .machines = machines, .tensor_bytes = tensors});
      set_verdicts(rows);
      return rows.back().verdict;
    };
    const double breakeven = modelled_at(10.0).breakeven_gbit_s.value();
    if (breakeven == 0.0) {
      for (const double gbit : {0.01, 1.0, 100.0}) EXPECT_LE(modelled_at(gbit).speedup_vs_none.value(), 1.0 + 1e-9);
    } else if (std::isfinite(breakeven)) {
      ++finite;
      EXPECT_NEAR(modelled_at(breakeven).speedup_vs_none.value(), 1.0, 1e-6) << trial;
      EXPECT_GT(modelled_at(0.98 * breakeven).speedup_vs_none.value(), 1.0) << trial;
      EXPECT_LT(modelled_at(1.02 * breakeven).speedup_vs_none.value(), 1.0) << trial;
    }
  }
  EXPECT_GT(finite, 100);
}

TEST_F(Verdicts, BreakEvenMovesWithTheNoiseOfTheCodecsTimes) {
  add({.codec = "none", .wire = 1'000'000}, Timing::isolated);
  add({.codec = "fp16", .wire = 500'000, .encode = 50.0, .decode = 50.0}, Timing::isolated);
  rows_[1].encode->low = 30e-6;
  rows_[1].encode->high = 150e-6;
  rows_[1].decode->low = rows_[1].decode->high = 50e-6;
  set_verdicts(rows_);
  EXPECT_NEAR(verdict(1).breakeven_gbit_s.value(), 40.0, 1e-9);
  EXPECT_NEAR(verdict(1).breakeven_low.value(), 20.0, 1e-9);
  EXPECT_NEAR(verdict(1).breakeven_high.value(), 50.0, 1e-9);

  // The codec takes 100 us, 20 less or 100 more; what it is compared with 0, or 75 more: as independent errors add up.
  rows_[0].decode->low = 0.0;
  rows_[0].decode->high = 75e-6;
  set_verdicts(rows_);
  EXPECT_NEAR(verdict(1).breakeven_low.value(), 20.0, 1e-9);
  EXPECT_NEAR(verdict(1).breakeven_high.value(), 4000.0 / (100.0 - std::hypot(20.0, 75.0)), 1e-9);
}

TEST_F(Verdicts, GranularitiesAreComparedEachWithItsOwnBaseline) {
  add({.codec = "none", .total = 1000.0}, Timing::concurrent);
  add({.codec = "fp16", .total = 500.0}, Timing::concurrent);
  add({.codec = "none", .total = 100.0}, Timing::concurrent);
  add({.codec = "fp16", .total = 200.0}, Timing::concurrent);
  rows_[2].granularity = rows_[3].granularity = "model";
  set_verdicts(rows_);
  EXPECT_DOUBLE_EQ(verdict(1).speedup_vs_none.value(), 2.0);
  EXPECT_DOUBLE_EQ(verdict(3).speedup_vs_none.value(), 0.5);
}

TEST_F(Verdicts, SpeedupAndHeadroom) {
  add({.codec = "none", .total = 1000.0}, Timing::concurrent);
  add({.codec = "noop", .total = 10.0, .nmse = 1.0}, Timing::concurrent);
  add({.codec = "fp16", .total = 500.0, .nmse = 0.1}, Timing::concurrent);
  set_verdicts(rows_);
  EXPECT_DOUBLE_EQ(verdict(2).speedup_vs_none.value(), 2.0);
  EXPECT_DOUBLE_EQ(verdict(2).headroom_vs_noop.value(), 50.0);
  EXPECT_FALSE(verdict(2).iteration_speedup_vs_none.has_value());
}

TEST_F(Verdicts, ParetoFrontHasWhatNothingIsBetterThan) {
  add({.codec = "none", .total = 1000.0, .nmse = 2e-15}, Timing::concurrent);
  add({.codec = "noop", .total = 10.0, .nmse = 1.0, .cumulative_nmse = 1.0}, Timing::concurrent);
  add({.codec = "fp16", .total = 500.0, .nmse = 0.1}, Timing::concurrent);
  add({.codec = "bf16", .total = 600.0, .nmse = 0.2}, Timing::concurrent);
  add({.codec = "int8", .total = 500.0, .nmse = 0.1}, Timing::concurrent);    // as fp16 in both: both stay
  add({.codec = "mx", .total = 550.0, .nmse = 0.1}, Timing::concurrent);      // as exact as fp16, slower
  add({.codec = "fp8", .total = 100.0, .nmse = 1.5}, Timing::concurrent);     // worse than sending nothing
  add({.codec = "natural", .total = 1.0, .nmse = NAN}, Timing::concurrent);   // no error to judge by
  add({.codec = "zfp", .total = 1100.0, .nmse = 1e-15}, Timing::concurrent);  // rounding, as none
  add({.codec = "terngrad", .total = 2000.0, .nmse = 0}, Timing::isolated);   // compared with nobody
  set_verdicts(rows_);
  for (const std::size_t row : {0, 2, 4}) EXPECT_TRUE(on_front(row)) << row;
  for (const std::size_t row : {3, 5, 6, 7, 8}) EXPECT_FALSE(on_front(row)) << row;
  EXPECT_FALSE(verdict(1).pareto.has_value());
  EXPECT_FALSE(verdict(9).pareto.has_value());
}

TEST_F(Verdicts, WhatDelaysIsJudgedByItsSumOverSteps) {
  add({.codec = "topk:ef=off", .total = 400.0, .nmse = 0.4, .cumulative_nmse = 0.3}, Timing::concurrent);
  add({.codec = "topk:ef=on", .total = 500.0, .nmse = 0.9, .cumulative_nmse = 0.1}, Timing::concurrent);
  add({.codec = "dgc", .total = 600.0, .nmse = 0.9, .cumulative_nmse = 0.05},
      Timing::concurrent);  // a memory of its own
  set_verdicts(rows_);
  EXPECT_EQ(judged_error(rows_[0]), 0.4);
  EXPECT_EQ(judged_error(rows_[1]), 0.1);
  EXPECT_EQ(judged_error(rows_[2]), 0.05);
  // A memory that holds nothing back: momentum, importance.
  for (const char* codec : {"signsgd", "dlcp"}) {
    EXPECT_EQ(judged_error(row({.codec = codec, .nmse = 0.7, .cumulative_nmse = 0.1}, Timing::concurrent)), 0.7);
  }
  for (const std::size_t row : {0, 1, 2}) EXPECT_TRUE(on_front(row)) << row;
}

TEST_F(Verdicts, IterationsAreComparedOnOneNetworkByTheirOwnTime) {
  add_modelled({.codec = "none", .wire = 1000, .total = 8000.0}, "slow", 16.0);
  add_modelled({.codec = "fp16", .wire = 500, .encode = 100.0, .total = 5000.0, .nmse = 0.1}, "slow", 12.5);
  // A shorter step but a longer iteration: it computes where the other one waits for a link that computation hides.
  add_modelled({.codec = "qsgd", .wire = 100, .encode = 900.0, .total = 4000.0, .nmse = 0.2}, "slow", 13.0);
  add_modelled({.codec = "qsgd", .wire = 100, .encode = 900.0, .total = 1.0, .nmse = 0.0}, "fast", 10.0);
  set_verdicts(rows_);
  EXPECT_DOUBLE_EQ(rows_[1].scaling_efficiency().value(), 0.8);
  EXPECT_DOUBLE_EQ(verdict(1).iteration_speedup_vs_none.value(), 1.28);
  EXPECT_DOUBLE_EQ(verdict(1).speedup_vs_none.value(), 1.6);
  EXPECT_NEAR(verdict(1).breakeven_gbit_s.value(), 500 * 8 / 100e3, 1e-12);
  EXPECT_TRUE(on_front(1));
  EXPECT_FALSE(on_front(2));
  EXPECT_TRUE(on_front(3));
  EXPECT_FALSE(verdict(3).iteration_speedup_vs_none.has_value());  // no row of none there
}

}  // namespace
}  // namespace gradtool::test
