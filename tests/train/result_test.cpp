#include "lib/train/result.hpp"

#include <gmock/gmock.h>

#include <tuple>

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
  EXPECT_EQ(std::get<Text>(table.at(1, "diverged_seeds")).str(), "3");
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
  EXPECT_EQ(std::get<Text>(table.at(8, "codec")).str(), "none");
  EXPECT_EQ(std::get<std::int64_t>(table.at(8, "seed")), 3);
  EXPECT_EQ(std::get<Text>(table.at(9, "codec")).str(), "topk");
  EXPECT_EQ(std::get<Text>(table.at(15, "status")).str(), "diverged");
  EXPECT_TRUE(std::holds_alternative<std::monostate>(table.at(15, "test_accuracy")));
}

/// Two factors of the learning rate, which seed 1 tried; topk is better with the second one.
struct WithFactors : Example {
  WithFactors() {
    options.lr_factors = {1.0, 0.1};
    report.runs.clear();
    for (const auto& [codec, factor, accuracy] :
         {std::tuple{0U, 1.0, 0.80}, {0U, 0.1, 0.70}, {1U, 1.0, 0.60}, {1U, 0.1, 0.79}})
      add(codec, 1, factor, accuracy);
  }
  void add(std::size_t codec, std::int64_t seed, double factor, double accuracy) {
    report.runs.push_back(run_of(codec, seed, accuracy, 100.0));
    report.runs.back().lr_factor = factor;
  }
};

TEST(LrFactors, TheFirstSeedChoosesAndTheOthersJudge) {
  WithFactors example;
  EXPECT_EQ(best_lr_factor(example.options, example.report, 0), 1.0);
  EXPECT_EQ(best_lr_factor(example.options, example.report, 1), 0.1);
  for (const std::int64_t seed : {2, 3}) {
    example.add(0, seed, 1.0, 0.82);
    example.add(1, seed, 0.1, 0.81);
  }
  const Table table = train_summary(example.options, example.report);
  EXPECT_EQ(std::get<std::int64_t>(table.at(1, "finished")), 2);
  EXPECT_EQ(number(table, 0, "lr_factor"), 1.0);
  EXPECT_EQ(number(table, 1, "lr_factor"), 0.1);
  EXPECT_NEAR(number(table, 1, "final_accuracy"), 0.81, 1e-12);
  EXPECT_NEAR(number(table, 1, "final_accuracy_minus_none"), -0.01, 1e-12);
  const Table rows = train_table(example.options, example.report);
  ASSERT_EQ(rows.rows().size(), 24U);
  EXPECT_EQ(std::get<Text>(rows.at(0, "judged")).str(), "false");
  EXPECT_EQ(std::get<Text>(rows.at(23, "judged")).str(), "true");
  EXPECT_THAT(train_text(example.options, example.report), testing::HasSubstr("rate x"));
}

TEST(LrFactors, OfOneSeedTheBestRunIsJudged) {
  WithFactors example;
  example.options.seeds = {1};
  const Table table = train_summary(example.options, example.report);
  EXPECT_EQ(std::get<std::int64_t>(table.at(1, "finished")), 1);
  EXPECT_NEAR(number(table, 0, "final_accuracy"), 0.80, 1e-12);
  EXPECT_NEAR(number(table, 1, "final_accuracy_minus_none"), -0.01, 1e-12);
}

TEST(LrFactors, OfOneSeedNothingIsJudgedUntilAllFactorsHaveEnded) {
  WithFactors example;
  example.options.seeds = {1};
  TrainRun& last = example.report.runs.back();
  last.status = TrainRun::Status::unfinished;
  EXPECT_EQ(best_lr_factor(example.options, example.report, 1), std::nullopt);
  const Table open = train_summary(example.options, example.report);
  EXPECT_EQ(std::get<std::int64_t>(open.at(1, "finished")), 0);
  EXPECT_EQ(std::get<std::int64_t>(open.at(1, "unfinished")), 1);
  EXPECT_TRUE(is_judged(example.options, example.report, last));
  // Interrupted between two runs: the one that ended says nothing by itself.
  example.report.runs.pop_back();
  EXPECT_FALSE(is_judged(example.options, example.report, example.report.runs.back()));
}

TEST(LrFactors, WithoutATestSetTheTrainingLossChoosesAndWhatDivergedIsShown) {
  WithFactors example;
  for (TrainRun& run : example.report.runs) {
    for (TrainRow& row : run.rows) row.numbers.tested = 0;
    run.rows.back().numbers.train_loss = run.lr_factor;
    if (run.codec == 1) run.status = TrainRun::Status::diverged;
  }
  EXPECT_EQ(best_lr_factor(example.options, example.report, 0), 0.1);
  EXPECT_EQ(best_lr_factor(example.options, example.report, 1), std::nullopt);
  const Table table = train_summary(example.options, example.report);
  EXPECT_EQ(std::get<std::int64_t>(table.at(1, "diverged")), 1);
  EXPECT_TRUE(std::holds_alternative<std::monostate>(table.at(1, "lr_factor")));
}

TEST(TrainWarning, IsThereWhereNoneDidNotGetBetter) {
  Example example;
  EXPECT_EQ(train_warning(example.options, example.report), "");  // the loss stays, the accuracy rises with every seed
  for (TrainRun& run : example.report.runs) {
    for (TrainRow& row : run.rows) row.numbers.test_accuracy = 0.1;
  }
  EXPECT_THAT(train_warning(example.options, example.report), testing::HasSubstr("none itself did not get better"));
  EXPECT_THAT(train_text(example.options, example.report), testing::HasSubstr("Warning: none itself"));
  const double falls[] = {0.2, 0.3, 0.25};
  for (std::size_t seed = 0; seed < 3; ++seed)
    example.report.runs[2 * seed].rows.back().numbers.train_loss -= falls[seed];
  EXPECT_EQ(train_warning(example.options, example.report), "");
  example.report.runs[0].rows.back().numbers.train_loss =
      1.4;  // one seed rises: the mean falls, within what seeds differ by
  EXPECT_NE(train_warning(example.options, example.report), "");
}

TEST(TrainText, NamesWhatDiverged) {
  const Example example;
  EXPECT_THAT(train_text(example.options, example.report), testing::HasSubstr("topk:ratio=0.1: diverged with seed 3"));
}

}  // namespace
}  // namespace gradtool
