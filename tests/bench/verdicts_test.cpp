#include "lib/bench/verdicts.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "lib/bench/rows.hpp"

namespace gradtool::test {
namespace {

struct Measured {
  std::string codec;  ///< with parameters
  double wire = 0.0, encode = 0.0, decode = 0.0, total = 0.0;
  double nmse = 0.0, cumulative_nmse = 0.0;
};

/// Rows as run_bench makes them, with the few columns that verdicts need.
class Verdicts : public testing::Test {
 protected:
  RowBuilder row(const Measured& m, const std::string& timing) {
    const CodecSpec spec = parse_codec(m.codec);
    RowBuilder row{table_};
    row.set("codec", spec.name()).set("params", spec.params_text()).set("timing", timing);
    row.set("tensor", std::string{"all"}).set("status", std::string{"ok"}).set("time_source", std::string{"measured"});
    row.set("wire_bytes_per_rank", m.wire).set("encode_us_median", m.encode).set("decode_us_median", m.decode);
    row.set("nmse", m.nmse).set("cumulative_nmse", m.cumulative_nmse).set("ranks", std::int64_t{4});
    if (timing == "concurrent") row.set("total_us_median", m.total);
    return row;
  }
  void add(const Measured& m, const std::string& timing) { table_.add(row(m, timing).take()); }
  /// On a network, with an iteration.
  void add_modelled(const Measured& m, const std::string& network, double iteration_ms) {
    RowBuilder modelled = row(m, "isolated");
    modelled.set("time_source", std::string{"modelled"}).set("network", network).set("node", std::int64_t{1});
    modelled.set("total_us_median", m.total).set("compute_ms", 10.0).set("iteration_ms", iteration_ms);
    table_.add(modelled.take());
  }
  [[nodiscard]] double value(std::size_t row, const char* column) const {
    return std::get<double>(table_.at(row, column));
  }
  [[nodiscard]] bool empty(std::size_t row, const char* column) const {
    return std::holds_alternative<std::monostate>(table_.at(row, column));
  }
  [[nodiscard]] bool on_front(std::size_t row) const { return std::get<bool>(table_.at(row, "pareto")); }
  Table table_{"bench", bench_columns()};
};

TEST_F(Verdicts, BreakEvenIsWhereBothTakeTheSameTime) {
  add({.codec = "none", .wire = 1'000'000, .decode = 10.0}, "isolated");
  add({.codec = "fp16", .wire = 500'000, .encode = 60.0, .decode = 50.0}, "isolated");
  add({.codec = "zstd", .wire = 2'000'000, .encode = 1.0, .decode = 1.0}, "isolated");
  add({.codec = "bf16", .wire = 500'000, .decode = 5.0}, "isolated");
  set_verdicts(table_);
  const double gbit = value(1, "breakeven_gbit_s");
  // 500 kB saved against 100 us more: 4e6 bits / 1e-4 s.
  EXPECT_DOUBLE_EQ(gbit, 40.0);
  const double bytes_per_us = gbit * 1e9 / 8.0 / 1e6;
  EXPECT_NEAR(1e6 / bytes_per_us + 10.0, 5e5 / bytes_per_us + 110.0, 1e-9);
  EXPECT_EQ(value(2, "breakeven_gbit_s"), 0.0);           // sends more: never
  EXPECT_TRUE(std::isinf(value(3, "breakeven_gbit_s")));  // faster to compute: always
  EXPECT_TRUE(empty(0, "breakeven_gbit_s"));
}

// Wang et al. 2020 (FFT), section 3.2: a codec pays when k > 1 / (1 - 2 T_comm S), S = 4/600 + 1/71 + 1/67 + 1/30 s/GB
// on each side, where uncompressed means M / T_comm. The values of k are those of its figure 10.
TEST_F(Verdicts, BreakEvenAgreesWithTheClosedFormOfTheFftPaper) {
  const double cost = 4.0 / 600 + 1.0 / 71 + 1.0 / 67 + 1.0 / 30;  // seconds a GB
  constexpr double kMegabytes = 100.0;
  const double codec_us = kMegabytes * 1e6 * cost / 1e9 * 1e6;
  const std::vector<std::pair<double, double>> figure{{10, 1.21}, {20, 1.53}, {32, 2.23},
                                                      {40, 3.23}, {48, 5.8},  {56, 29.5}};
  add({.codec = "none", .wire = kMegabytes * 1e6}, "isolated");
  for (const auto& [gbit, read_off] : figure) {
    const double ratio = 1.0 / (1.0 - 2.0 * (gbit / 8.0) * cost);
    EXPECT_NEAR(ratio, read_off, 0.005 * read_off) << gbit;
    add({.codec = "fft", .wire = kMegabytes * 1e6 / ratio, .encode = codec_us, .decode = codec_us}, "isolated");
  }
  // However much it compresses, it does not pay above 1 / (2 S) = 58 Gbit/s.
  add({.codec = "fft", .wire = 1e-3, .encode = codec_us, .decode = codec_us}, "isolated");
  set_verdicts(table_);
  for (std::size_t i = 0; i < figure.size(); ++i) {
    EXPECT_NEAR(value(1 + i, "breakeven_gbit_s"), figure[i].first, 1e-9 * figure[i].first);
  }
  EXPECT_NEAR(value(1 + figure.size(), "breakeven_gbit_s"), 58.0, 0.1);
}

TEST_F(Verdicts, SpeedupAndHeadroom) {
  add({.codec = "none", .total = 1000.0}, "concurrent");
  add({.codec = "noop", .total = 10.0, .nmse = 1.0}, "concurrent");
  add({.codec = "fp16", .total = 500.0, .nmse = 0.1}, "concurrent");
  set_verdicts(table_);
  EXPECT_DOUBLE_EQ(value(2, "speedup_vs_none"), 2.0);
  EXPECT_DOUBLE_EQ(value(2, "headroom_vs_noop"), 50.0);
  EXPECT_TRUE(empty(2, "iteration_speedup_vs_none"));
}

TEST_F(Verdicts, ParetoFrontHasWhatNothingIsBetterThan) {
  add({.codec = "none", .total = 1000.0, .nmse = 2e-15}, "concurrent");
  add({.codec = "noop", .total = 10.0, .nmse = 1.0, .cumulative_nmse = 1.0}, "concurrent");
  add({.codec = "fp16", .total = 500.0, .nmse = 0.1}, "concurrent");
  add({.codec = "bf16", .total = 600.0, .nmse = 0.2}, "concurrent");
  add({.codec = "int8", .total = 500.0, .nmse = 0.1}, "concurrent");    // as fp16 in both: both stay
  add({.codec = "mx", .total = 550.0, .nmse = 0.1}, "concurrent");      // as exact as fp16, slower
  add({.codec = "fp8", .total = 100.0, .nmse = 1.5}, "concurrent");     // worse than sending nothing
  add({.codec = "natural", .total = 1.0, .nmse = NAN}, "concurrent");   // no error to judge by
  add({.codec = "zfp", .total = 1100.0, .nmse = 1e-15}, "concurrent");  // rounding, as none
  add({.codec = "terngrad", .total = 2000.0, .nmse = 0}, "isolated");   // compared with nobody
  set_verdicts(table_);
  for (const std::size_t row : {0, 2, 4}) EXPECT_TRUE(on_front(row)) << row;
  for (const std::size_t row : {3, 5, 6, 7, 8}) EXPECT_FALSE(on_front(row)) << row;
  EXPECT_TRUE(empty(1, "pareto"));
  EXPECT_TRUE(empty(9, "pareto"));
}

TEST_F(Verdicts, WhatDelaysIsJudgedByItsSumOverSteps) {
  add({.codec = "topk:ef=off", .total = 400.0, .nmse = 0.4, .cumulative_nmse = 0.3}, "concurrent");
  add({.codec = "topk:ef=on", .total = 500.0, .nmse = 0.9, .cumulative_nmse = 0.1}, "concurrent");
  add({.codec = "dgc", .total = 600.0, .nmse = 0.9, .cumulative_nmse = 0.05}, "concurrent");  // a memory of its own
  set_verdicts(table_);
  EXPECT_EQ(judged_error(table_, 0), 0.4);
  EXPECT_EQ(judged_error(table_, 1), 0.1);
  EXPECT_EQ(judged_error(table_, 2), 0.05);
  for (const std::size_t row : {0, 1, 2}) EXPECT_TRUE(on_front(row)) << row;
}

TEST_F(Verdicts, IterationsAreComparedOnOneNetworkByTheirOwnTime) {
  add_modelled({.codec = "none", .wire = 1000, .total = 8000.0}, "slow", 16.0);
  add_modelled({.codec = "fp16", .wire = 500, .encode = 100.0, .total = 5000.0, .nmse = 0.1}, "slow", 12.5);
  // A shorter step but a longer iteration: it computes where the other one waits for a link that computation hides.
  add_modelled({.codec = "qsgd", .wire = 100, .encode = 900.0, .total = 4000.0, .nmse = 0.2}, "slow", 13.0);
  add_modelled({.codec = "qsgd", .wire = 100, .encode = 900.0, .total = 1.0, .nmse = 0.0}, "fast", 10.0);
  set_verdicts(table_);
  EXPECT_DOUBLE_EQ(value(1, "scaling_efficiency"), 0.8);
  EXPECT_DOUBLE_EQ(value(1, "iteration_speedup_vs_none"), 1.28);
  EXPECT_DOUBLE_EQ(value(1, "speedup_vs_none"), 1.6);
  EXPECT_DOUBLE_EQ(value(1, "breakeven_gbit_s"), 500 * 8 / 100e3);
  EXPECT_TRUE(on_front(1));
  EXPECT_FALSE(on_front(2));
  EXPECT_TRUE(on_front(3));
  EXPECT_TRUE(empty(3, "iteration_speedup_vs_none"));  // no row of none there
}

}  // namespace
}  // namespace gradtool::test
