#include <gtest/gtest.h>

#include <cmath>

#include "lib/bench/rows.hpp"

namespace gradtool::test {
namespace {

/// Rows as run_bench makes them, with the few columns that verdicts need.
class Verdicts : public testing::Test {
 protected:
  void add(const std::string& codec, const std::string& timing, std::int64_t wire, double encode, double decode,
           double total, double nmse) {
    RowBuilder row{table_};
    row.set("codec", codec).set("timing", timing).set("tensor", std::string{"all"}).set("status", std::string{"ok"});
    row.set("wire_bytes_per_rank", wire)
        .set("encode_us_median", encode)
        .set("decode_us_median", decode)
        .set("nmse", nmse);
    if (timing == "concurrent") row.set("total_us_median", total);
    table_.add(row.take());
  }
  Table table_{"bench", bench_columns()};
};

TEST_F(Verdicts, BreakEvenIsWhereBothTakeTheSameTime) {
  add("none", "isolated", 1'000'000, 0.0, 10.0, 0, 0.0);
  add("half", "isolated", 500'000, 60.0, 50.0, 0, 0.1);
  add("large", "isolated", 2'000'000, 1.0, 1.0, 0, 0.1);
  add("free", "isolated", 500'000, 0.0, 5.0, 0, 0.1);
  set_verdicts(table_);
  const double gbit = std::get<double>(table_.at(1, "breakeven_gbit_s"));
  // 500 kB saved against 100 us more: 4e6 bits / 1e-4 s.
  EXPECT_DOUBLE_EQ(gbit, 40.0);
  const double bytes_per_us = gbit * 1e9 / 8.0 / 1e6;
  EXPECT_NEAR(1e6 / bytes_per_us + 10.0, 5e5 / bytes_per_us + 110.0, 1e-9);
  EXPECT_EQ(std::get<double>(table_.at(2, "breakeven_gbit_s")), 0.0);           // sends more: never
  EXPECT_TRUE(std::isinf(std::get<double>(table_.at(3, "breakeven_gbit_s"))));  // faster to compute: always
}

TEST_F(Verdicts, SpeedupHeadroomAndParetoFront) {
  add("none", "concurrent", 100, 0, 0, 1000.0, 0.0);
  add("noop", "concurrent", 0, 0, 0, 10.0, 1.0);
  add("good", "concurrent", 50, 1, 1, 500.0, 0.1);
  add("bad", "concurrent", 50, 1, 1, 600.0, 0.2);
  set_verdicts(table_);
  EXPECT_DOUBLE_EQ(std::get<double>(table_.at(2, "speedup_vs_none")), 2.0);
  EXPECT_DOUBLE_EQ(std::get<double>(table_.at(2, "headroom_vs_noop")), 50.0);
  EXPECT_TRUE(std::get<bool>(table_.at(0, "pareto")));
  EXPECT_TRUE(std::get<bool>(table_.at(2, "pareto")));
  EXPECT_FALSE(std::get<bool>(table_.at(3, "pareto")));
}

}  // namespace
}  // namespace gradtool::test
