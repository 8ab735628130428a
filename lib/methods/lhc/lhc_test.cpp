// Lossless homomorphic compression: tables add, peeling gives the sum back, and beyond its threshold it does not.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "kernels/marks.hpp"
#include "lib/methods/lhc/peeling.hpp"
#include "tests/core/fault.hpp"
#include "tests/reduce/model_run.hpp"

namespace gradtool::test {
namespace {

/// Peels what a table with `rows` rows holds of `count` random elements of n; returns how many are left.
std::size_t peel(std::size_t n, std::size_t lanes, std::size_t count, std::size_t rows, std::uint32_t seed,
                 Queue<Space::host> queue = {}, std::vector<float>* decoded = nullptr) {
  PeelingTable table{queue, n, lanes, rows, seed};
  table.set_rows(rows);
  std::vector<std::uint32_t> marks(mark_words(n));
  for (std::size_t i = 0; count > 0; ++i) {  // distinct places, whole numbers, so that sums are exact
    const auto place = static_cast<std::size_t>(static_cast<double>(uniform_at(seed + 1, i)) * static_cast<double>(n));
    if ((marks[place / 32] >> place % 32 & 1U) != 0) continue;
    marks[place / 32] |= 1U << place % 32;
    --count;
  }
  std::vector<std::uint32_t> positions;
  std::vector<float> values;
  for_each_mark({}, {marks.data(), marks.size()}, [&](std::size_t, std::size_t i) {
    positions.push_back(static_cast<std::uint32_t>(i));
    values.push_back(std::floor(1000.0F * uniform_at(seed + 2, i)) - 500.0F);
  });
  std::vector<float> cells(table.cells());
  table.write({positions.data(), positions.size()}, {values.data(), values.size()}, {cells.data(), cells.size()});
  std::vector<float> out(n, 0.0F);
  const std::size_t left =
      table.read(queue, {marks.data(), marks.size()}, {cells.data(), cells.size()}, 1.0F, {out.data(), n});
  if (left == 0) {
    for (std::size_t k = 0; k < positions.size(); ++k) EXPECT_EQ(out[positions[k]], values[k]);
  }
  if (decoded != nullptr) *decoded = out;
  return left;
}

TEST(PeelingTable, GivesEverythingBackWithAFewMoreCellsThanElements) {
  EXPECT_EQ(peel(200'000, 1, 20'000, 25'200, 3), 0U);       // 1.26 cells an element
  EXPECT_GT(peel(200'000, 1, 20'000, 23'400, 3), 10'000U);  // 1.17: nearly all of it is stuck
}

TEST(PeelingTable, RefusesMarksBehindTheLastElement) {
  const std::size_t n = 33;
  PeelingTable table{{}, n, 1, 12, 9};
  table.set_rows(12);
  std::vector<std::uint32_t> marks{0, 1U << 1};  // element 33, the first that is not there
  std::vector<float> cells(table.cells(), 1.0F), out(n, 0.0F);
  const std::string message = message_of(Fault::data, [&] {
    table.read({}, {marks.data(), 2}, {cells.data(), cells.size()}, 1.0F, {out.data(), n});
  });
  EXPECT_NE(message.find("past the end"), std::string::npos) << message;
}

TEST(PeelingTable, RoundingDoesNotGrowAlongTheWay) {
  // Elements that come out late are computed from many others, and more of them the nearer the threshold is.
  const std::size_t n = 200'000;
  PeelingTable table{{}, n, 1, 12'600, 9};
  table.set_rows(12'600);
  const auto x = gradient_like(n);
  std::vector<std::uint32_t> marks(mark_words(n));
  std::vector<std::uint32_t> positions;
  std::vector<float> values;
  for (std::size_t i = 0; i < n; i += 20) {
    marks[i / 32] |= 1U << i % 32;
    positions.push_back(static_cast<std::uint32_t>(i));
    values.push_back(x[i]);
  }
  std::vector<float> cells(table.cells());
  std::vector<float> out(n, 0.0F);
  table.write({positions.data(), positions.size()}, {values.data(), values.size()}, {cells.data(), cells.size()});
  EXPECT_EQ(table.read({}, {marks.data(), marks.size()}, {cells.data(), cells.size()}, 1.0F, {out.data(), n}), 0U);
  float largest = 0.0F;
  for (const float v : values) largest = std::max(largest, std::abs(v));
  for (std::size_t k = 0; k < values.size(); ++k) ASSERT_NEAR(out[positions[k]], values[k], 5e-6F * largest);
}

TEST(PeelingTable, LanesPeelApart) {
  for (const std::size_t lanes : {4U, 32U, 256U}) {
    const std::size_t count = lanes * 400;
    EXPECT_EQ(peel(lanes * 4000, lanes, count, 696, 5), 0U) << lanes;  // 1.74 cells an element on average
  }
}

TEST(PeelingTable, DoesNotDependOnThreads) {
  TaskPool pool{3};
  std::vector<float> one_thread;
  std::vector<float> three_threads;
  const auto left = peel(200'003, 128, 30'000, 150, 7, {}, &one_thread);
  EXPECT_EQ(peel(200'003, 128, 30'000, 150, 7, {&pool}, &three_threads), left);
  EXPECT_GT(left, 0U);
  EXPECT_EQ(one_thread, three_threads);
}

/// The sum over ranks of what each keeps, in float64.
std::vector<double> kept_mean(const ModelOutcome& out, std::size_t k) {
  const std::size_t n = out.inputs[0][0].size();
  std::vector<double> mean(n, 0.0);
  for (const auto& rank : out.inputs) {
    std::vector<std::size_t> order(n);
    std::iota(order.begin(), order.end(), 0U);
    std::stable_sort(order.begin(), order.end(),
                     [&](auto a, auto b) { return std::abs(rank[0][a]) > std::abs(rank[0][b]); });
    for (std::size_t i = 0; i < k; ++i)
      mean[order[i]] += static_cast<double>(rank[0][order[i]]) / static_cast<double>(out.inputs.size());
  }
  return mean;
}

TEST(Lhc, IsLosslessForWhatRanksKeep) {
  const std::size_t n = 60'000;
  for (const char* spec :
       {"lhc:ef=off", "lhc:density=0.05,ratio=auto,ef=off", "lhc:density=0.02,ratio=3,block=4,ef=off"}) {
    const auto out = run_model({.codec = spec, .ranks = 4, .steps = 1, .layout = Layout::flat(n)});
    const double density = parse_codec(spec).params.real("density");
    const auto mean = kept_mean(out, static_cast<std::size_t>(std::llround(density * static_cast<double>(n))));
    double largest = 0.0;
    for (const double x : mean) largest = std::max(largest, std::abs(x));
    for (std::size_t i = 0; i < n; ++i) ASSERT_NEAR(out.results[0][0][i], mean[i], 4e-6 * largest) << spec << " " << i;
    EXPECT_EQ(out.note, "") << spec;
  }
}

TEST(Lhc, TooSmallATableSaysSo) {
  const auto out =
      run_model({.codec = "lhc:density=0.05,ratio=20,ef=off", .ranks = 3, .steps = 1, .layout = Layout::flat(30'000)});
  EXPECT_NE(out.note.find("the table was too small"), std::string::npos);
  // Estimates are wrong, but only at marked elements.
  const auto mean = kept_mean(out, 1500);
  for (std::size_t i = 0; i < mean.size(); ++i)
    if (mean[i] == 0.0) ASSERT_EQ(out.results[0][0][i], 0.0F);
}

TEST(Lhc, NothingIsLostOverSteps) {
  const auto out = run_model({.codec = "lhc:density=0.03,ratio=auto", .ranks = 3, .steps = 8});
  EXPECT_LT(largest_loss(out), 2e-6);
}

TEST(Lhc, BytesAreABitmapAndATableOnRings) {
  const std::size_t n = 64 * 1024;  // 6554 rows of one cell, rounded up to a multiple of three
  const auto out = run_model({.codec = "lhc", .ranks = 4, .steps = 1, .layout = Layout::flat(n)});
  EXPECT_EQ(out.payload[0][0], n / 8 + 4 * 6555);
  const auto total = std::accumulate(out.wire.begin(), out.wire.end(), std::uint64_t{0},
                                     [](auto sum, const auto& w) { return sum + w[0]; });
  EXPECT_EQ(total, 2 * 3 * (n / 8 + 4 * 6555));
}

}  // namespace
}  // namespace gradtool::test
