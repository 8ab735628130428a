#include "lib/analysis/prediction.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "feed.hpp"

namespace gradtool::test {
namespace {

std::vector<Table> all_tables(const Capture& capture) {
  std::vector<std::unique_ptr<Analysis>> analyses;
  analyses.push_back(make_spectrum(capture.scope));
  analyses.push_back(make_correlation(capture.scope, 128, 0));
  analyses.push_back(make_gradiveq(capture.scope, 128, 0));
  analyses.push_back(make_low_rank(capture.scope));
  analyses.push_back(make_variance(capture.scope));
  analyses.push_back(make_distribution(capture.scope));
  std::vector<Table> tables;
  for (const auto& analysis : analyses) {
    for (auto& table : run(*analysis, capture)) tables.push_back(std::move(table));
  }
  return tables;
}

double predicted(const Table& predictions, const std::string& codec) {
  for (std::size_t r = 0; r < predictions.rows().size(); ++r) {
    if (to_text(predictions.at(r, "codec")) == codec) return number(predictions, r, "predicted_nmse");
  }
  throw std::runtime_error("nothing is predicted of " + codec);
}

TEST(Prediction, WhiteNoiseOfIndependentWorkers) {
  const std::size_t rows = 128, columns = 256, n = rows * columns, workers = 4;
  const auto noise = normal(4 * workers * n, 1);
  Capture capture{4, workers};
  TensorInfo matrix;
  matrix.shape = {rows, columns}, matrix.kind = "linear";
  capture.add(matrix, [&](std::size_t s, std::size_t w, std::size_t i) { return noise[(s * workers + w) * n + i]; });
  const Table table = predict(all_tables(capture));
  EXPECT_NEAR(predicted(table, "topk:ratio=0.1,ef=off"), 1 - 0.4375, 0.01);
  EXPECT_EQ(predicted(table, "randomk:ratio=0.1,ef=off"), 0.9);
  EXPECT_NEAR(predicted(table, "efsignsgd:ef=off"), 1 - 2 / std::acos(-1.0), 0.01) << "1 - (E|x|)^2 of normal values";
  // Blocks of 512: the largest is about 3.27 deviations, in 7 levels, whose error is a sixth of their square.
  EXPECT_NEAR(predicted(table, "qsgd:bits=4"), 3.27 * 3.27 / 49 / 6, 0.003);
  // 2.5 E|x| - 1 but for what is clipped.
  EXPECT_NEAR(predicted(table, "terngrad"), 2.5 * 0.798 - 1, 0.03);
  EXPECT_GT(predicted(table, "powersgd:rank=1,ef=off"), 0.95);
  // Addends of 4 workers and 3 sums, all of rounding error 2.75e-6: (4 + 2 + 3 + 4) / 4 of it.
  EXPECT_NEAR(predicted(table, "bf16:ef=off"), 13.0 / 4 * 2.75e-6, 0.2e-6);
  if (spectrum_available()) {
    EXPECT_NEAR(predicted(table, "fft:theta=0.85"), 1 - 0.4346, 0.01);
  }
  const std::string text = describe_predictions(table);
  EXPECT_NE(text.find("makes up for it (above 0.5): topk:ratio=0.1 "), std::string::npos) << text;
}

TEST(Prediction, RoundingOfEqualWorkersIsAveraged) {
  const auto values = normal(4096, 2);
  Capture capture{2, 8};
  capture.add(vector_of(4096), [&](auto, auto, std::size_t i) { return values[i]; });
  const Table table = predict(all_tables(capture));
  EXPECT_NEAR(predicted(table, "qsgd:bits=4"), 3.27 * 3.27 / 49 / 6 / 8, 0.0006) << "drawn independently, divided by 8";
  EXPECT_NEAR(predicted(table, "topk:ratio=0.1,ef=off"), 1 - 0.4375, 0.03) << "what is dropped is the same everywhere";
}

TEST(Prediction, MeasuredErrorsAreSetBesideIt) {
  Capture capture{2, 2};
  const auto values = normal(2000, 3);
  capture.add(vector_of(1000), [&](auto, std::size_t w, std::size_t i) { return values[w * 1000 + i]; });
  Table table = predict(all_tables(capture));
  std::size_t topk = 0;
  while (to_text(table.at(topk, "codec")) != "topk:ratio=0.1,ef=off") ++topk;
  const double expected = predicted(table, "topk:ratio=0.1,ef=off");
  set_measured(table, topk, 1.1 * expected);
  EXPECT_NEAR(number(table, topk, "off"), 1.1, 1e-12);
  EXPECT_NE(describe_predictions(table).find("Of 1 measured, prediction fails for: none"), std::string::npos);
  set_measured(table, topk, 2 * expected);
  EXPECT_NE(describe_predictions(table).find("topk:ratio=0.1 (2 times as much)"), std::string::npos);
}

TEST(Prediction, RatiosAreOfTheBytesThatTheJobSends) {
  const auto values = normal(8192, 4);
  Capture capture{2, 2};
  capture.add(vector_of(2048), [&](auto s, std::size_t w, std::size_t i) { return values[(2 * s + w) * 2048 + i]; });
  const auto tables = all_tables(capture);
  const Table in_float32 = predict(tables), in_bfloat16 = predict(tables, 2.0);
  ASSERT_EQ(in_float32.rows().size(), in_bfloat16.rows().size());
  for (std::size_t r = 0; r < in_float32.rows().size(); ++r) {
    if (to_text(in_float32.at(r, "ratio")).empty()) continue;
    EXPECT_EQ(number(in_bfloat16, r, "ratio"), number(in_float32, r, "ratio") / 2)
        << to_text(in_float32.at(r, "codec"));
  }
  EXPECT_NE(describe_predictions(in_float32).find(" bf16 "), std::string::npos);
  EXPECT_EQ(describe_predictions(in_bfloat16).find(" bf16 "), std::string::npos) << "the job sends bfloat16 already";
}

TEST(Prediction, NothingOfNothing) {
  const Table table = predict({});
  EXPECT_EQ(describe_predictions(table), "");
}

}  // namespace
}  // namespace gradtool::test
