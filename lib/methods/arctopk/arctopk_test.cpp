// ARC-Top-K: planted rows, equal rows, rows that are no numbers, and what the residual keeps.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/reduce/model_run.hpp"

namespace gradtool::test {
namespace {

constexpr std::size_t kHigh = 40;
constexpr std::size_t kWide = 30;

/// Noise of size `small`, with rows 3, 17 and 39 a thousand times as large.
std::vector<float> with_large_rows(float small, std::uint32_t seed) {
  auto x = noise(kHigh * kWide, seed);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t row = i / kWide;
    x[i] *= row == 3 || row == 17 || row == 39 ? 1000.0F * small : small;
  }
  return x;
}

TEST(ArcTopK, KeepsTheLargeRowsExactlyAndTheRestForLater) {
  const auto left = with_large_rows(1e-3F, 1);
  const auto right = with_large_rows(1e-3F, 2);
  const auto out = run_model({.codec = "arctopk:ratio=0.075",  // three rows of forty
                              .ranks = 2,
                              .steps = 1,
                              .layout = Layout::matrix(kHigh, kWide),
                              .gradient = [&](int rank, int) { return rank == 0 ? left : right; }});
  for (std::size_t i = 0; i < kHigh * kWide; ++i) {
    const std::size_t row = i / kWide;
    const bool kept = row == 3 || row == 17 || row == 39;
    EXPECT_EQ(out.results[0][0][i], kept ? (left[i] + right[i]) * 0.5F : 0.0F) << row;
  }
}

TEST(ArcTopK, EqualRowsAreKeptInTheirOrder) {
  const std::vector<float> ones(kHigh * kWide, 1.0F);
  const auto out = run_model({.codec = "arctopk:ratio=0.1,ef=off",
                              .ranks = 3,
                              .steps = 1,
                              .layout = Layout::matrix(kHigh, kWide),
                              .gradient = [&](int, int) { return ones; }});
  for (std::size_t i = 0; i < kHigh * kWide; ++i)
    EXPECT_EQ(out.results[0][0][i], i / kWide < 4 ? 1.0F : 0.0F) << i / kWide;
}

TEST(ArcTopK, ResidualBringsEveryRowInTurn) {
  const auto x = noise(kHigh * kWide, 5);
  constexpr int steps = 60;
  const auto out = run_model({.codec = "arctopk:ratio=0.2",
                              .ranks = 2,
                              .steps = steps,
                              .layout = Layout::matrix(kHigh, kWide),
                              .gradient = [&](int, int) { return x; }});
  // The sum of all results is that of all gradients but for a residual, which is of the last few steps alone.
  double wrong = 0.0, all = 0.0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    double sum = 0.0;
    for (int step = 0; step < steps; ++step)
      sum += static_cast<double>(out.results[0][static_cast<std::size_t>(step)][i]);
    wrong += std::pow(sum - steps * static_cast<double>(x[i]), 2.0);
    all += std::pow(steps * static_cast<double>(x[i]), 2.0);
  }
  EXPECT_LT(wrong / all, 0.02);
  EXPECT_GT(model_nmse(out, 0), 0.5) << "a fifth of rows of one size holds about a fifth of the energy";
}

TEST(ArcTopK, ARowThatIsNoNumberIsSentAndShows) {
  auto x = with_large_rows(1e-3F, 1);
  x[5 * kWide] = std::numeric_limits<float>::quiet_NaN();
  const auto out = run_model({.codec = "arctopk:ratio=0.025,ef=off",  // one row
                              .ranks = 2,
                              .steps = 1,
                              .layout = Layout::matrix(kHigh, kWide),
                              .gradient = [&](int, int) { return x; }});
  EXPECT_TRUE(std::isnan(out.results[0][0][5 * kWide]));
  EXPECT_EQ(out.results[0][0][5 * kWide + 1], x[5 * kWide + 1]);
}

}  // namespace
}  // namespace gradtool::test
