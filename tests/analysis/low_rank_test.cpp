#include <gtest/gtest.h>

#include <cmath>

#include "feed.hpp"

namespace gradtool::test {
namespace {

TensorInfo matrix_of(std::int64_t rows, std::int64_t columns) {
  TensorInfo info;
  info.shape = {rows, columns};
  info.kind = "linear";
  return info;
}

TEST(LowRank, PlantedRankAndSubspace) {
  // Two directions, the first with four times the energy; the right factors are new at every step.
  for (const bool tall : {false, true}) {
    const std::int64_t rows = tall ? 300 : 40, columns = tall ? 40 : 300;
    Capture capture{4, 2};
    capture.add(matrix_of(rows, columns), [&](std::size_t s, std::size_t w, std::size_t i) {
      const auto row = i / static_cast<std::size_t>(columns), column = i % static_cast<std::size_t>(columns);
      const std::size_t shorter = tall ? column : row, longer = tall ? row : column;
      const auto along = [&](std::size_t which) {
        return shorter == which ? std::sin(static_cast<double>(longer * (which + 1) * (s + 1)) + static_cast<double>(s))
                                : 0.0;
      };
      return (w == 0 ? 1.5 : 0.5) * (2 * along(0) + along(1));
    });
    capture.add(vector_of(10), [](auto, auto, std::size_t i) { return static_cast<double>(i); });
    const auto tables = run(*make_low_rank(capture.scope), capture);
    EXPECT_NEAR(number(tables[0], 0, "rank_1_share"), 0.8, 0.01);
    EXPECT_NEAR(number(tables[0], 0, "rank_2_share"), 1, 1e-6);
    EXPECT_NEAR(number(tables[0], 0, "power_2_share"), 1, 1e-6);
    // A random vector times singular values 2 and 1 keeps (16 x^2 + y^2) / (4 x^2 + y^2) of 5, x and y normal:
    // 4 - 3 E y^2 / (4 x^2 + y^2) = 4 - 3 / (1 + 2) on average.
    EXPECT_NEAR(number(tables[0], 0, "power_1_share"), 0.6, 0.15);
    EXPECT_EQ(number(tables[0], 0, "components_99_percent"), 2);
    EXPECT_EQ(number(tables[0], 0, "components_90_percent"), 2);
    EXPECT_NEAR(number(tables[0], 0, "effective_rank"), std::exp(-0.8 * std::log(0.8) - 0.2 * std::log(0.2)), 0.02);
    EXPECT_NEAR(number(tables[1], row_of(tables[1], "rank", "2"), "overlap"), 1, 1e-6);
    EXPECT_NEAR(number(tables[1], row_of(tables[1], "rank", "2"), "largest_angle"), 0, 0.1);
    EXPECT_TRUE(is_empty(tables[0], 1, "rank_1_share")) << "a vector is no matrix";
    // In the row for all tensors the vector counts as kept: 285 at each step, beside the matrix' 1.
    const double matrix = 5.0 * 40 * 300 / 40 / 2;  // 4 + 1 times the mean square of a sine, 300 elements
    EXPECT_NEAR(number(tables[0], 2, "rank_1_share"), (0.8 * matrix + 285) / (matrix + 285), 0.01);
  }
}

TEST(LowRank, DirectionsThatTurn) {
  // One direction, which turns by 30 degrees from step to step.
  Capture capture{2, 1};
  capture.add(matrix_of(8, 50), [](std::size_t s, auto, std::size_t i) {
    const double angle = static_cast<double>(s) * 3.14159265358979 / 6, along = std::cos(static_cast<double>(i % 50));
    return i / 50 == 0 ? std::cos(angle) * along : i / 50 == 1 ? std::sin(angle) * along : 0.0;
  });
  const auto tables = run(*make_low_rank(capture.scope), capture);
  const auto row = row_of(tables[1], "rank", "1");
  EXPECT_NEAR(number(tables[1], row, "overlap"), 0.75, 1e-5);
  EXPECT_NEAR(number(tables[1], row, "largest_angle"), 30, 1e-3);
  EXPECT_NEAR(number(tables[0], 0, "rank_1_share"), 1, 1e-6);
}

TEST(LowRank, CorrelatedFilters) {
  const auto common = normal(1000, 1), own = normal(20'000, 2);
  Capture capture{2, 1};
  capture.add(matrix_of(20, 1000), [&](auto, auto, std::size_t i) { return common[i % 1000] + own[i]; });
  const auto tables = run(*make_low_rank(capture.scope), capture);
  EXPECT_NEAR(number(tables[0], 0, "filter_pearson_mean"), 0.5, 0.05);
  EXPECT_NEAR(number(tables[0], 0, "filter_pearson_absolute"), 0.5, 0.05);
}

TEST(Steps, LagsOfAnAutoregressiveCapture) {
  const std::size_t steps = 40, n = 5000;
  const double rho = 0.9;
  std::vector<std::vector<double>> gradient(steps);
  for (std::size_t s = 0; s < steps; ++s) {
    gradient[s] = normal(n, static_cast<unsigned>(s + 1));
    for (std::size_t i = 0; s > 0 && i < n; ++i)
      gradient[s][i] = rho * gradient[s - 1][i] + std::sqrt(1 - rho * rho) * gradient[s][i];
  }
  Capture capture{steps, 2};
  capture.add(vector_of(n),
              [&](std::size_t s, std::size_t w, std::size_t i) { return gradient[s][i] + (w == 0 ? 0.3 : -0.3); });
  capture.add(vector_of(50), [](std::size_t s, auto, auto) { return static_cast<double>(s); });
  for (const std::size_t pieces : {1UL, 3UL}) {
    const auto tables = run(*make_steps(capture.scope), capture, pieces);
    for (const int lag : {1, 2, 5, 16}) {
      const auto row = row_of(tables[1], "lag", std::to_string(lag));
      EXPECT_NEAR(number(tables[1], row, "pearson"), std::pow(rho, lag), 0.02) << lag;
      EXPECT_EQ(number(tables[1], row, "pairs"), static_cast<double>(steps) - lag);
    }
    EXPECT_TRUE(is_empty(tables[0], 1, "step_lag_1")) << "constant gradients correlate with nothing";
  }
}

TEST(Steps, WindowsOfACaptureAreNoNeighbours) {
  // Three windows of 4 steps, each with a gradient and a direction of its own that it keeps.
  const std::size_t rows = 12, columns = 40, n = rows * columns;
  std::vector<std::vector<double>> gradient;
  for (unsigned window = 0; window < 3; ++window) {
    const auto left = normal(rows, 2 * window + 1), right = normal(columns, 2 * window + 2);
    auto& values = gradient.emplace_back(n);
    for (std::size_t i = 0; i < n; ++i) values[i] = left[i / columns] * right[i % columns];
  }
  Capture capture{12, 1};
  capture.scope.window_of = {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2};
  capture.add(matrix_of(rows, columns), [&](std::size_t s, auto, std::size_t i) { return gradient[s / 4][i]; });
  const auto lags = run(*make_steps(capture.scope), capture);
  for (const int lag : {1, 2, 3}) {
    const auto row = row_of(lags[1], "lag", std::to_string(lag));
    EXPECT_NEAR(number(lags[1], row, "pearson"), 1.0, 1e-5) << lag;
    EXPECT_EQ(number(lags[1], row, "pairs"), 3.0 * (4 - lag));
  }
  EXPECT_TRUE(is_empty(lags[0], 0, "step_lag_4")) << "no window is that long";
  const auto correlation = run(*make_correlation(capture.scope, 128, 0), capture);
  EXPECT_NEAR(number(correlation[0], 0, "step_pearson_mean_gradient"), 1.0, 1e-5);
  const auto low_rank = run(*make_low_rank(capture.scope), capture);
  EXPECT_NEAR(number(low_rank[1], row_of(low_rank[1], "rank", "1"), "overlap"), 1.0, 1e-5);

  // A part of the steps keeps the windows of the whole.
  Capture part{2, 1};
  part.scope.window_of = capture.scope.window_of;
  part.add(matrix_of(rows, columns), [&](std::size_t s, auto, std::size_t i) { return gradient[s][i]; });
  part.scope.first_step = 3, part.scope.last_step = 4;
  EXPECT_TRUE(is_empty(run(*make_steps(part.scope), part)[0], 0, "step_lag_1"));
  part.scope.window_of = {};
  EXPECT_FALSE(is_empty(run(*make_steps(part.scope), part)[0], 0, "step_lag_1"));
}

TEST(Gradiveq, PlantedRank) {
  // Slices of 4096 elements; each lives in a plane of its own, so that another slice's basis serves for nothing.
  const std::size_t k = 4096, steps = 12;
  const auto a = normal(2 * k, 7), b = normal(2 * k, 8), weights = normal(2 * steps, 9);
  Capture capture{steps, 1};
  capture.add(vector_of(2 * k),
              [&](std::size_t s, auto, std::size_t i) { return weights[2 * s] * a[i] + weights[2 * s + 1] * b[i]; });
  for (const std::size_t pieces : {1UL, 3UL}) {
    const auto tables = run(*make_gradiveq(capture.scope, 128, 0), capture, pieces);
    EXPECT_EQ(number(tables[0], 0, "basis_samples"), steps);
    EXPECT_EQ(number(tables[0], 0, "compared_slices"), 2);
    EXPECT_EQ(number(tables[0], 0, "compared_elements"), k);
    EXPECT_EQ(number(tables[0], 0, "basis_components"), 2);
    EXPECT_LT(number(tables[0], 0, "own_nmse"), 1e-9);
    EXPECT_NEAR(number(tables[0], 0, "other_nmse"), 1, 0.15);
    EXPECT_EQ(number(tables[1], row_of(tables[1], "lambda", "0.001"), "components"), 2);
    EXPECT_EQ(number(tables[1], row_of(tables[1], "lambda", "0.001"), "ratio"), k / 2);
    EXPECT_NEAR(number(tables[3], row_of(tables[3], "components", "2"), "later_share"), 1, 1e-9);
    EXPECT_THROW(row_of(tables[3], "components", "4"), std::runtime_error) << "there are but two components";
  }
}

TEST(Gradiveq, TooFewSteps) {
  Capture capture{3, 2};
  capture.add(vector_of(100),
              [](std::size_t s, std::size_t w, std::size_t i) { return static_cast<double>(s * i + w); });
  const auto tables = run(*make_gradiveq(capture.scope, 128, 0), capture);
  EXPECT_TRUE(is_empty(tables[0], 0, "own_nmse"));
  EXPECT_TRUE(tables[1].rows().empty());
}

}  // namespace
}  // namespace gradtool::test
