// Dion2's row selection: planted rows, what waits and what decays, draws that ranks share, bytes, and its optimiser.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "tests/reduce/model_run.hpp"

namespace gradtool::test {
namespace {

constexpr std::size_t kHigh = 40;
constexpr std::size_t kWide = 30;

/// Matrices whose rows have equal elements.
ModelOutcome run_rows(const std::string& codec, int ranks, int steps,
                      const std::function<float(int rank, int step, std::size_t row)>& value_of) {
  return run_model({.codec = codec,
                    .ranks = ranks,
                    .steps = steps,
                    .layout = Layout::matrix(kHigh, kWide),
                    .gradient = [&](int rank, int step) {
                      std::vector<float> x(kHigh * kWide);
                      for (std::size_t i = 0; i < x.size(); ++i) x[i] = value_of(rank, step, i / kWide);
                      return x;
                    }});
}

std::set<std::size_t> rows_of(const std::vector<float>& result) {
  std::set<std::size_t> rows;
  for (std::size_t i = 0; i < result.size(); ++i) {
    if (result[i] != 0.0F) rows.insert(i / kWide);
  }
  return rows;
}

/// Row i has elements of i + 1, times the rank's factor. The last two go first.
TEST(Dion2, SentRowsDecayAndOthersWait) {
  const auto out = run_rows("dion2:ratio=0.05,mu=0.5", 2, 3, [](int rank, int, std::size_t row) {
    return static_cast<float>(row + 1) * (rank == 0 ? 1.0F : 3.0F);
  });
  const auto& results = out.results[0];
  EXPECT_EQ(rows_of(results[0]), (std::set<std::size_t>{38, 39}));
  EXPECT_EQ(results[0][39 * kWide], 80.0F);  // (40 + 120) / 2
  EXPECT_EQ(rows_of(results[1]), (std::set<std::size_t>{36, 37}));
  EXPECT_EQ(results[1][37 * kWide], 2.0F * 76.0F);
  // Rows 38 and 39 hold 0.5 + 2 gradients, rows 36 and 37 hold 1 + 1, rows 34 and 35 three.
  EXPECT_EQ(rows_of(results[2]), (std::set<std::size_t>{34, 35}));
  EXPECT_EQ(results[2][35 * kWide], 3.0F * 72.0F);
}

/// Norms are those of the ranks: what cancels in their mean is chosen, and comes out as nothing.
TEST(Dion2, NormsAreOfRanksAndNotOfTheirMean) {
  const auto out = run_rows("dion2:ratio=0.025", 2, 1, [](int rank, int, std::size_t row) {
    return row == 7 ? (rank == 0 ? 5.0F : -5.0F) : row == 20 ? 4.0F : 0.0F;
  });
  EXPECT_TRUE(rows_of(out.results[0][0]).empty());
  EXPECT_NEAR(model_nmse(out, 0), 1.0, 1e-12) << "row 20 was not sent";
}

TEST(Dion2, EqualRowsAreSentInTheirOrder) {
  const auto out = run_rows("dion2:ratio=0.1,mu=0", 3, 2, [](int, int, std::size_t) { return 1.0F; });
  EXPECT_EQ(rows_of(out.results[0][0]), (std::set<std::size_t>{0, 1, 2, 3}));
  EXPECT_EQ(rows_of(out.results[0][1]), (std::set<std::size_t>{4, 5, 6, 7})) << "which have waited";
  EXPECT_EQ(out.results[0][1][4 * kWide], 2.0F);
}

/// All rows and no memory: an average.
TEST(Dion2, AllRowsWithoutMemoryAreTheMeanGradient) {
  const auto out = run_model({.codec = "dion2:ratio=1,mu=0", .ranks = 3, .steps = 3});
  for (int step = 0; step < 3; ++step) EXPECT_LT(model_nmse(out, step), 1e-13);
  for (std::size_t i = 0; i < out.gradients[0][2].size(); ++i) {
    const double mean = (static_cast<double>(out.gradients[0][2][i]) + static_cast<double>(out.gradients[1][2][i]) +
                         static_cast<double>(out.gradients[2][2][i])) /
                        3.0;
    ASSERT_NEAR(out.results[0][2][i], mean, 1e-6 * (1.0 + std::abs(mean))) << i;
  }
  EXPECT_EQ(out.messages[0][0].size(), 1U) << "nothing is to be chosen";
}

/// Drawn rows carry what one optimiser with the mean gradient would select, since decay is the same on all ranks.
TEST(Dion2, DrawnRowsAreThoseOfTheMomentumOfTheMean) {
  constexpr int kSteps = 12;
  const auto out = run_model({.codec = "dion2:ratio=0.25,mu=0.5,select=random",
                              .ranks = 3,
                              .steps = kSteps,
                              .layout = Layout::matrix(kHigh, kWide)});
  std::vector<double> momentum(kHigh * kWide, 0.0);
  std::set<std::size_t> seen;
  for (std::size_t step = 0; step < kSteps; ++step) {
    for (std::size_t i = 0; i < momentum.size(); ++i) {
      for (const auto& rank : out.gradients) momentum[i] += static_cast<double>(rank[step][i]) / 3.0;
    }
    const auto rows = rows_of(out.results[0][step]);
    EXPECT_EQ(rows.size(), kHigh / 4);
    EXPECT_EQ(out.messages[0][step].size(), 1U) << "the draw needs no message";
    for (const std::size_t row : rows) {
      for (std::size_t i = row * kWide; i < (row + 1) * kWide; ++i) {
        ASSERT_NEAR(out.results[0][step][i], momentum[i], 1e-5 * (1.0 + std::abs(momentum[i]))) << step;
        momentum[i] *= 0.5;
      }
    }
    seen.insert(rows.begin(), rows.end());
  }
  EXPECT_GE(seen.size(), kHigh * 8 / 10) << "1 - 0.75^12 of the rows are drawn in twelve steps on average, 97 %";
}

/// A constant gradient comes out as g / (1 - mu) a step, on average.
TEST(Dion2, InTheLongRunItIsMomentum) {
  constexpr int kSteps = 400;
  const auto out =
      run_rows("dion2:ratio=0.25,mu=0.8", 2, kSteps, [](int, int, std::size_t row) { return row < 20 ? 1.0F : -2.0F; });
  for (const std::size_t row : {0, 19, 20, 39}) {
    double sum = 0.0;
    for (std::size_t step = kSteps / 2; step < kSteps; ++step)
      sum += static_cast<double>(out.results[0][step][row * kWide]);
    EXPECT_NEAR(sum / (kSteps / 2), row < 20 ? 5.0 : -10.0, 0.05 * (row < 20 ? 5.0 : 10.0)) << row;
  }
}

TEST(Dion2, BytesFollowTheFormula) {
  for (const bool random : {false, true}) {
    const auto out =
        run_model({.codec = std::string{"dion2:ratio=0.3"} + (random ? ",select=random" : ""), .ranks = 2, .steps = 2});
    std::size_t expected = 0;
    for (const auto& tensor : small_model().tensors) {
      if (!tensor.is_matrix()) {
        expected += tensor.elements;
        for (std::size_t i = tensor.first; i < tensor.first + tensor.elements; ++i)
          EXPECT_EQ(out.results[0][1][i], (out.gradients[0][1][i] + out.gradients[1][1][i]) * 0.5F) << tensor.name;
        continue;
      }
      const auto kept = static_cast<std::size_t>(std::ceil(0.3 * static_cast<double>(tensor.rows())));
      expected += kept * tensor.columns() + (random ? 0 : tensor.rows());
    }
    EXPECT_EQ(out.payload[0][1], 4 * expected);
    EXPECT_EQ(out.wire[0][1], out.payload[0][1]);  // 2 (p-1) / p of it
    EXPECT_EQ(out.messages[0][1].size(), random ? 1U : 2U);
  }
}

TEST(Dion2, ARowThatIsNoNumberIsSentAndShows) {
  const auto out = run_rows("dion2:ratio=0.025", 2, 2, [](int rank, int step, std::size_t row) {
    return row == 5 && rank == 1 && step == 0 ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(row);
  });
  for (std::size_t step = 0; step < 2; ++step) EXPECT_TRUE(std::isnan(out.results[0][step][5 * kWide])) << step;
}

/// Rows of more than one chunk of sums, which threads share.
TEST(Dion2, LongRowsAndManyThreads) {
  ModelSetup setup{.codec = "dion2:ratio=0.4", .ranks = 2, .steps = 3, .layout = Layout::matrix(5, 20000)};
  const auto one = run_model(setup);
  setup.threads = 3;
  const auto three = run_model(setup);
  EXPECT_EQ(one.results, three.results);
  for (std::size_t r = 0; r < 2; ++r) {
    for (std::size_t step = 0; step < 3; ++step) {
      for (std::size_t m = 0; m < one.messages[r][step].size(); ++m)
        EXPECT_EQ(one.messages[r][step][m].bytes, three.messages[r][step][m].bytes);
    }
  }
  EXPECT_EQ(one.messages[0][0][0].bytes.size(), 4U * 5U);
}

}  // namespace
}  // namespace gradtool::test
