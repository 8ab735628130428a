#include "lib/train/result.hpp"

#include <gmock/gmock.h>

namespace gradtool {
namespace {

// Worked out with SciPy: scipy.stats.t.interval(0.95, n - 1, mean, sem).
TEST(MeanOverSeeds, HasStudentsInterval) {
  EXPECT_FALSE(mean_over_seeds({}));
  const auto one = mean_over_seeds({0.5});
  EXPECT_EQ(one->mean, 0.5);
  EXPECT_FALSE(one->interval);
  const auto three = mean_over_seeds({0.90, 0.91, 0.95});
  EXPECT_NEAR(three->mean, 0.92, 1e-12);
  EXPECT_NEAR(three->interval->low, 0.8542758, 1e-6);
  EXPECT_NEAR(three->interval->high, 0.9857242, 1e-6);
}

TrainRow row_of(std::int64_t step, double accuracy, double wire, double seconds) {
  TrainRow row;
  row.numbers = {.epoch = step / 10,
                 .step = step,
                 .train_loss = 1.0,
                 .test_loss = 2.0,
                 .test_accuracy = accuracy,
                 .costs = {.wire_bytes = wire, .total = seconds},
                 .tested = 1};
  row.modelled = {3.0 * seconds};
  return row;
}

TrainRun run_of(std::size_t codec, std::int64_t seed, double final_accuracy, double wire) {
  TrainRun run{.codec = codec, .seed = seed, .status = TrainRun::Status::finished};
  run.rows = {row_of(10, 0.5, wire / 2.0, 1.0), row_of(20, 0.9, 0.75 * wire, 2.0),
              row_of(30, final_accuracy, wire, 3.0)};
  return run;
}

struct Example {
  Example() {
    options.training.workers = 4;
    options.codecs = {parse_codec("none"), parse_codec("topk:ratio=0.1")};
    options.seeds = {1, 2, 3};
    options.networks = {Network::parse("1gbe")};
    options.target_accuracy = 0.8;
    report.elements = 100;
    report.runs = {run_of(0, 1, 0.80, 18000.0), run_of(1, 1, 0.79, 1800.0), run_of(0, 2, 0.84, 18000.0),
                   run_of(1, 2, 0.81, 1800.0), run_of(0, 3, 0.88, 18000.0)};
    TrainRun diverged{.codec = 1, .seed = 3, .status = TrainRun::Status::diverged};
    diverged.rows = {row_of(4, 0.0, 10.0, 0.1)};
    diverged.rows[0].numbers.tested = 0;
    report.runs.push_back(diverged);
  }
  TrainOptions options;
  TrainReport report;
};

double number(const Table& table, std::size_t row, const char* column) {
  return std::get<double>(table.at(row, column));
}

TEST(TrainSummary, IsOverFinishedRunsAndPairsBySeed) {
  const Example example;
  const Table table = train_summary(example.options, example.report);
  ASSERT_EQ(table.rows().size(), 2U);
  EXPECT_EQ(std::get<std::int64_t>(table.at(1, "finished")), 2);
  EXPECT_EQ(std::get<std::int64_t>(table.at(1, "diverged")), 1);
  EXPECT_EQ(std::get<std::string>(table.at(1, "diverged_seeds")), "3");
  EXPECT_NEAR(number(table, 0, "final_accuracy"), 0.84, 1e-12);
  EXPECT_NEAR(number(table, 1, "final_accuracy"), 0.80, 1e-12);
  EXPECT_NEAR(number(table, 1, "best_accuracy"), 0.90, 1e-12);
  // -0.01 and -0.03, not 0.80 - 0.84: seed 3 has no pair. t(1) = 12.706, deviation of the mean 0.01.
  EXPECT_NEAR(number(table, 1, "final_accuracy_minus_none"), -0.02, 1e-12);
  EXPECT_NEAR(number(table, 1, "final_accuracy_minus_none_low"), -0.14706, 1e-5);
  EXPECT_TRUE(std::holds_alternative<std::monostate>(table.at(0, "final_accuracy_minus_none")));
  // 2 (3/4) 400 bytes a step, 30 steps: 18000.
  EXPECT_NEAR(number(table, 0, "wire_ratio"), 1.0, 1e-12);
  EXPECT_NEAR(number(table, 1, "wire_ratio"), 10.0, 1e-12);
  EXPECT_EQ(number(table, 1, "steps_to_target"), 20.0);
  EXPECT_EQ(number(table, 1, "modelled_1gbe_seconds_to_target"), 6.0);
}

TEST(TrainTable, HasEveryEpochInTheOrderOfCodecsAndSeeds) {
  const Example example;
  const Table table = train_table(example.options, example.report);
  ASSERT_EQ(table.rows().size(), 16U);
  EXPECT_EQ(std::get<std::string>(table.at(8, "codec")), "none");
  EXPECT_EQ(std::get<std::int64_t>(table.at(8, "seed")), 3);
  EXPECT_EQ(std::get<std::string>(table.at(9, "codec")), "topk");
  EXPECT_EQ(std::get<std::string>(table.at(15, "status")), "diverged");
  EXPECT_TRUE(std::holds_alternative<std::monostate>(table.at(15, "test_accuracy")));
}

TEST(TrainText, NamesWhatDiverged) {
  const Example example;
  EXPECT_THAT(train_text(example.options, example.report), testing::HasSubstr("topk:ratio=0.1: diverged with seed 3"));
}

}  // namespace
}  // namespace gradtool
