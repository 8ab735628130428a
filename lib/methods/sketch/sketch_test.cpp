// Count sketches: the sketch of a sum is the sum of sketches, estimates err as the theory says, and two rounds find the
// elements that are large.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "lib/methods/sketch/count_sketch.hpp"
#include "tests/reduce/model_run.hpp"

namespace gradtool::test {
namespace {

std::vector<float> sketch_of(const CountSketch& sketch, const std::vector<float>& x) {
  std::vector<float> cells(sketch.cells());
  std::vector<float> scratch(sketch.scratch());
  sketch.add_up({}, {x.data(), x.size()}, {cells.data(), cells.size()}, {scratch.data(), scratch.size()});
  return cells;
}
std::vector<float> estimates_of(const CountSketch& sketch, const std::vector<float>& cells, std::size_t n) {
  std::vector<float> out(n);
  std::vector<float> scratch(sketch.scratch());
  sketch.estimate({}, {cells.data(), cells.size()}, {out.data(), n}, {scratch.data(), scratch.size()});
  return out;
}
std::vector<float> whole_numbers(std::size_t n, std::uint32_t seed) {
  std::vector<float> x(n);
  for (std::size_t i = 0; i < n; ++i) x[i] = std::floor(200.0F * uniform_at(seed, i)) - 100.0F;
  return x;
}

TEST(CountSketch, TheSketchOfASumIsTheSumOfSketches) {
  const std::size_t n = 5003;
  for (const std::size_t rows : {1U, 3U, 5U, 7U}) {
    const CountSketch sketch{{}, n, rows, 141, 42};
    const auto a = whole_numbers(n, 1);  // sums of whole numbers are exact
    const auto b = whole_numbers(n, 2);
    std::vector<float> sum(n);
    for (std::size_t i = 0; i < n; ++i) sum[i] = a[i] + 3.0F * b[i];
    const auto a_sketch = sketch_of(sketch, a);
    const auto b_sketch = sketch_of(sketch, b);
    const auto sum_sketch = sketch_of(sketch, sum);
    for (std::size_t i = 0; i < sum_sketch.size(); ++i) ASSERT_EQ(sum_sketch[i], a_sketch[i] + 3.0F * b_sketch[i]);
  }
}

TEST(CountSketch, OneRowIsUnbiasedWithTheVarianceOfItsCells) {
  // E (estimate - x)^2 = (sum of the other squares) / columns, over the hash functions.
  const std::size_t n = 2000;
  const std::size_t columns = 67;
  const auto x = gradient_like(n, 4);
  double energy = 0.0;
  for (const float v : x) energy += static_cast<double>(v) * static_cast<double>(v);
  double bias = 0.0;
  double square = 0.0;
  constexpr int kSeeds = 200;
  for (int seed = 0; seed < kSeeds; ++seed) {
    const CountSketch sketch{{}, n, 1, columns, static_cast<std::uint64_t>(seed)};
    const auto y = estimates_of(sketch, sketch_of(sketch, x), n);
    for (std::size_t i = 0; i < n; ++i) {
      const double d = static_cast<double>(y[i]) - static_cast<double>(x[i]);
      bias += d * (x[i] < 0 ? -1.0 : 1.0);
      square += d * d;
    }
  }
  const double expected = energy / static_cast<double>(columns);
  EXPECT_NEAR(square / (kSeeds * static_cast<double>(n)), expected, 0.06 * expected);
  EXPECT_NEAR(bias / (kSeeds * static_cast<double>(n)), 0.0, 0.02 * std::sqrt(expected));
}

TEST(CountSketch, TheMedianOfRowsErrsLessOftenThanOneRow) {
  const std::size_t n = 20'000;
  const auto x = gradient_like(n, 4);
  const auto far_off = [&](std::size_t rows) {
    const CountSketch sketch{{}, n, rows, 256, 42};
    const auto y = estimates_of(sketch, sketch_of(sketch, x), n);
    double energy = 0.0;
    for (const float v : x) energy += static_cast<double>(v) * static_cast<double>(v);
    const double limit = 2.0 * std::sqrt(energy / static_cast<double>(sketch.columns()));
    std::size_t count = 0;
    for (std::size_t i = 0; i < n; ++i) count += std::abs(y[i] - x[i]) > limit ? 1 : 0;
    return static_cast<double>(count) / static_cast<double>(n);
  };
  // A normal distribution has 4.55 % of its mass outside of two standard deviations. At least three of five rows err
  // with a probability of 10 q^3 = 0.0009 for q = 0.0455.
  EXPECT_NEAR(far_off(1), 0.0455, 0.02);
  EXPECT_LT(far_off(5), 0.006);
}

TEST(CountSketch, DoesNotDependOnThreads) {
  TaskPool pool{3};
  const std::size_t n = 70'001;
  const CountSketch sketch{{&pool}, n, 5, 320, 42};
  const auto x = gradient_like(n);
  const auto one_thread = sketch_of(sketch, x);
  std::vector<float> three_threads(sketch.cells());
  std::vector<float> scratch(sketch.scratch());
  sketch.add_up({&pool}, {x.data(), n}, {three_threads.data(), three_threads.size()}, {scratch.data(), scratch.size()});
  EXPECT_EQ(one_thread, three_threads);
}

/// Noise and 20 elements that stand far out of it, the same places on all ranks.
std::vector<float> planted(std::size_t n, int rank, int step) {
  auto x = gradient_like(n, static_cast<std::uint32_t>(100 * step + rank + 1));
  for (std::size_t j = 0; j < 20; ++j)
    x[(j * n) / 20 + 7] = (j % 2 == 0 ? 1.0F : -1.0F) * (1.0F + 0.1F * static_cast<float>(j));
  return x;
}

TEST(Sketch, FindsWhatStandsOutWithItsExactSum) {
  const std::size_t n = 40'000;
  const auto out = run_model({.codec = "sketch:ratio=0.0005",
                              .ranks = 4,
                              .steps = 1,
                              .layout = Layout::flat(n),
                              .gradient = [](int rank, int step) { return planted(40'000, rank, step); }});
  for (std::size_t i = 0; i < n; ++i) {
    const bool large = std::abs(out.inputs[0][0][i]) >= 0.9F;
    ASSERT_EQ(out.results[0][0][i] != 0.0F, large) << i;
    if (large) ASSERT_NEAR(out.results[0][0][i], out.inputs[0][0][i], 1e-6) << i;
  }
}

TEST(Sketch, NothingIsLostOverSteps) {
  const auto out = run_model({.codec = "sketch:ratio=0.02,compression=8", .ranks = 3, .steps = 10});
  EXPECT_LT(largest_loss(out), 1e-6);
}

TEST(Sketch, AllCandidatesAndAllKeptIsTopKOfTheSum) {
  // With every element a candidate the sketch does not matter; only the second round does.
  const std::size_t n = 3000;
  const auto out = run_model(
      {.codec = "sketch:compression=1e6,candidates=99,ratio=0.01", .ranks = 3, .steps = 1, .layout = Layout::flat(n)});
  std::vector<double> sum(n, 0.0);
  for (const auto& rank : out.inputs)
    for (std::size_t i = 0; i < n; ++i) sum[i] += static_cast<double>(rank[0][i]);
  double least_kept = 1e9;
  double most_left = 0.0;
  for (std::size_t i = 0; i < n; ++i) {
    auto& side = out.results[0][0][i] != 0.0F ? least_kept : most_left;
    side = out.results[0][0][i] != 0.0F ? std::min(side, std::abs(sum[i])) : std::max(side, std::abs(sum[i]));
  }
  // 2970 of 3000 are candidates: at most one or two of the top 30 can be missing, far below the others.
  EXPECT_GT(least_kept, 0.8 * most_left);
}

TEST(Sketch, BytesAreTwoRingsWhateverTheGradient) {
  const std::size_t n = 64'000;
  const auto out = run_model({.codec = "sketch:ratio=0.001", .ranks = 2, .steps = 1, .layout = Layout::flat(n)});
  const std::size_t cells = 5 * 320;
  EXPECT_EQ(out.payload[0][0], 4 * (cells + 4 * 64));
  EXPECT_EQ(out.wire[0][0] + out.wire[1][0], 2 * 4 * (cells + 4 * 64));
}

}  // namespace
}  // namespace gradtool::test
