// Two runs of the bench against each other: what must be the same to the last digit, and what differs in time beyond
// noise. Runs are planted: log-normal times whose true medians are known.
#include "lib/compare/compare.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "lib/core/error.hpp"

namespace gradtool::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// The values planted in a run.
struct Planted {
  std::vector<std::string> codecs{"none", "topk", "fp16"};
  double slowdown = 1.0;  ///< of every codec's encoding but none's
  double noise = 0.03;    ///< standard deviation of the log of a sample
  double drift = 0.0;     ///< the same of the speed of a round
  std::size_t rounds = 5, samples = 8;
  std::uint64_t seed = 1;
};

BenchRun planted(const Planted& p) {
  BenchRun run;
  run.path = "planted.json";
  run.table = Table{"bench",
                    {{"schema_version", ""},
                     {"status", ""},
                     {"codec", ""},
                     {"params", ""},
                     {"aggregation", ""},
                     {"tensor", ""},
                     {"granularity", ""},
                     {"elements", ""},
                     {"ranks", ""},
                     {"seed", ""},
                     {"time_source", ""},
                     {"timing", ""},
                     {"pipeline", ""},
                     {"op", ""},
                     {"quantity", ""},
                     {"comm", ""},
                     {"payload_bytes", ""},
                     {"wire_bytes_per_rank", ""},
                     {"nmse", ""},
                     {"encode_us_median", ""},
                     {"decode_us_median", ""}}};
  std::mt19937_64 random{p.seed};
  std::normal_distribution<double> normal;
  const auto i = [](std::int64_t value) { return Cell{value}; };
  for (const auto& codec : p.codecs) {
    auto& samples = run.samples.emplace_back();
    for (const std::size_t phase : {0U, 2U}) {
      const double median = (phase == 0 && codec != "none" ? p.slowdown : 1.0) * 1e-3;
      for (std::size_t round = 0; round < p.rounds; ++round) {
        const double speed = std::exp(p.drift * normal(random));
        for (std::size_t s = 0; s < p.samples; ++s)
          samples[phase].seconds.push_back(median * speed * std::exp(p.noise * normal(random)));
        samples[phase].rounds.push_back(p.samples);
      }
    }
    run.table.add({i(2),
                   std::string{"ok"},
                   codec,
                   codec == "topk" ? Cell{std::string{"ratio=0.01"}} : Cell{std::string{"default"}},
                   std::string{"gather"},
                   std::string{"all"},
                   std::string{"model"},
                   i(1000),
                   i(4),
                   i(1),
                   std::string{"measured"},
                   std::string{"isolated"},
                   i(1),
                   std::string{"all-reduce"},
                   std::string{"gradient"},
                   std::string{"threads"},
                   i(500),
                   i(1500),
                   0.25,
                   1000.0,
                   1000.0});
  }
  return run;
}

TEST(Compare, FindsNothingBetweenARunAndItself) {
  const BenchRun run = planted({});
  const Comparison c = compare_runs(run, run, {});
  EXPECT_EQ(c.rows, 3U);
  EXPECT_EQ(c.times.size(), 6U);
  EXPECT_FALSE(c.regression());
  for (const auto& time : c.times) EXPECT_EQ(time.verdict, TimeVerdict::same) << time.row << time.p;
}

TEST(Compare, FailsOnOneChangedByteAndOneChangedDigit) {
  const BenchRun a = planted({});
  for (const char* column : {"payload_bytes", "wire_bytes_per_rank"}) {
    BenchRun b = planted({});
    b.table.set(1, column, std::get<std::int64_t>(b.table.at(1, column)) + 1);
    const Comparison c = compare_runs(a, b, {.tolerance = 0.5});
    ASSERT_EQ(c.changed.size(), 1U) << column;
    EXPECT_EQ(c.changed[0].row, "topk");
    EXPECT_EQ(c.changed[0].column, column);
    EXPECT_TRUE(c.regression());
    EXPECT_THAT(to_text(c, false), HasSubstr(fmt::format("CHANGED  topk: {} was", column)));
  }
  BenchRun b = planted({});
  b.table.set(2, "nmse", std::nextafter(0.25, 1.0));
  EXPECT_TRUE(compare_runs(a, b, {}).regression());
  EXPECT_FALSE(compare_runs(a, b, {.tolerance = 1e-12}).regression());
  b = planted({});
  b.table.set(0, "status", std::string{"failed"});
  EXPECT_TRUE(compare_runs(a, b, {}).regression());
}

TEST(Compare, NamesRowsThatOneRunLacks) {
  const BenchRun a = planted({}), b = planted({.codecs = {"none", "fp16", "qsgd"}});
  const Comparison c = compare_runs(a, b, {});
  EXPECT_THAT(c.only_a, ElementsAre("topk"));
  EXPECT_THAT(c.only_b, ElementsAre("qsgd"));
  EXPECT_TRUE(c.regression()) << "a row is gone";
  EXPECT_FALSE(compare_runs(planted({.codecs = {"none"}}), a, {}).regression()) << "rows are new";
}

TEST(Compare, MatchesParametersThatBothVersionsKnow) {
  const BenchRun a = planted({});
  BenchRun b = planted({});
  b.table.set(1, "params", std::string{"ratio=0.01,index=auto"});
  EXPECT_THAT(compare_runs(a, b, {}).only_a, IsEmpty());
  b.table.set(1, "params", std::string{"ratio=0.1"});
  EXPECT_THAT(compare_runs(a, b, {}).only_a, ElementsAre("topk:ratio=0.01"));
  EXPECT_THAT(compare_runs(a, b, {}).only_b, ElementsAre("topk:ratio=0.1"));
  b = planted({});
  for (std::size_t row = 0; row < 3; ++row) b.table.set(row, "schema_version", std::int64_t{1});
  b.table.set(1, "payload_bytes", std::int64_t{1});  // of rank 0 in version 1
  const Comparison c = compare_runs(a, b, {});
  EXPECT_TRUE(c.versions_differ);
  EXPECT_THAT(c.changed, IsEmpty());
}

TEST(Compare, TellsWhatWasReplayedAndByWhichCollective) {
  const BenchRun a = planted({});
  for (const auto& [column, other] : {std::pair{"op", "all-gather"}, {"quantity", "weight"}}) {
    BenchRun b = planted({});
    b.table.set(1, column, std::string{other});
    EXPECT_THAT(compare_runs(a, b, {}).only_a, ElementsAre("topk")) << column;
    b.table.set(1, column, std::string{});  // of a version that knew no other
    EXPECT_THAT(compare_runs(a, b, {}).only_a, IsEmpty()) << column;
  }
}

TEST(Compare, SaysWhatMakesOtherTimes) {
  const BenchRun a = planted({});
  BenchRun b = planted({});
  EXPECT_EQ(compare_runs(a, b, {}).other_setting, "");
  for (std::size_t row = 0; row < b.table.rows().size(); ++row) b.table.set(row, "comm", std::string{"mpi"});
  const Comparison c = compare_runs(a, b, {});
  EXPECT_EQ(c.other_setting, "comm is threads in A and mpi in B");
  EXPECT_NE(to_text(c, false).find("Times are of two settings: comm is threads in A and mpi in B."), std::string::npos);
  EXPECT_FALSE(c.regression());
}

TEST(Compare, NamesTheWayOfACodecThatTookTwo) {
  BenchRun a = planted({});
  BenchRun b = planted({});
  b.table.set(1, "aggregation", std::string{"alltoall"});
  EXPECT_THAT(compare_runs(a, b, {}).only_b, ElementsAre("topk by alltoall"));
}

/// At most one in twenty comparisons of a program with itself may find anything, and 5 % more time for encoding must be
/// found in nineteen of twenty rows, whether samples are alike or rounds differ by 1 %.
TEST(Compare, FindsFivePerCentAndNothingWhereNothingChanged) {
  for (const double drift : {0.0, 0.01}) {
    std::size_t false_alarms = 0, found = 0, not_same = 0, times = 0;
    constexpr std::size_t kTrials = 100;
    for (std::uint64_t trial = 0; trial < kTrials; ++trial) {
      const BenchRun a = planted({.drift = drift, .samples = 20, .seed = 3 * trial + 1});
      const Comparison same = compare_runs(a, planted({.drift = drift, .samples = 20, .seed = 3 * trial + 2}), {});
      const Comparison slow =
          compare_runs(a, planted({.slowdown = 1.05, .drift = drift, .samples = 20, .seed = 3 * trial + 3}), {});
      false_alarms += same.regression() ? 1 : 0;
      times += same.times.size();
      for (const auto& time : same.times) not_same += time.verdict != TimeVerdict::same ? 1 : 0;
      for (const auto& time : slow.times)
        found += time.row != "none" && time.phase == "encode" && time.verdict == TimeVerdict::slower ? 1 : 0;
    }
    EXPECT_LE(false_alarms, kTrials / 20) << drift;
    EXPECT_LE(not_same, times / 20) << drift;
    EXPECT_GE(found, 2 * kTrials * 95 / 100) << drift;
  }
}

TEST(Compare, CallsTimesUnclearThatAreTooNoisyToTell) {
  const Comparison c = compare_runs(planted({.drift = 0.3}), planted({.drift = 0.3, .seed = 2}), {});
  for (const auto& time : c.times) EXPECT_EQ(time.verdict, TimeVerdict::unclear) << time.row;
  EXPECT_FALSE(c.regression());
  BenchRun bare = planted({});
  bare.samples.clear();  // a CSV, and here without the columns of the interval
  for (const auto& time : compare_runs(bare, bare, {}).times) EXPECT_EQ(time.verdict, TimeVerdict::unclear);
}

/// Values of a table of the t distribution.
TEST(Compare, HasTheTailsOfStudentsDistribution) {
  EXPECT_NEAR(t_tails(12.706, 1), 0.05, 1e-5);
  EXPECT_NEAR(t_tails(4.303, 2), 0.05, 1e-5);
  EXPECT_NEAR(t_tails(3.182, 3), 0.05, 1e-4);
  EXPECT_NEAR(t_tails(2.306, 8), 0.05, 1e-5);
  EXPECT_NEAR(t_tails(3.250, 9), 0.01, 1e-5);
  EXPECT_NEAR(t_tails(1.960, 2000), 0.0501, 1e-4);
  EXPECT_EQ(t_tails(0.0, 5), 1.0);
}

}  // namespace
}  // namespace gradtool::test
