// The vote of signSGD against counting, its bytes, and Signum's momentum.
#include <gtest/gtest.h>

#include <cmath>

#include "lib/methods/signsgd/format.hpp"
#include "tests/reduce/model_run.hpp"

namespace gradtool::test {
namespace {

TEST(Majority, TopPlaneSaysMoreThanHalf) {
  for (std::uint32_t ranks = 1; ranks <= 70; ++ranks) {
    const auto majority = format::Majority::of(ranks);
    ASSERT_LT(majority.planes(), format::Majority::kMaxPlanes);
    for (std::uint32_t set = 0; set <= ranks; ++set) {
      const std::uint32_t count = majority.start + set;
      EXPECT_LT(count, 1U << majority.planes());
      EXPECT_EQ(count >> majority.top, set > ranks / 2 ? 1U : 0U) << set << " of " << ranks;
    }
  }
}

std::vector<float> majority_of(const std::vector<std::vector<float>>& rows) {
  std::vector<float> signs;
  for (std::size_t i = 0; i < rows[0].size(); ++i) {
    int sum = 0;
    for (const auto& row : rows) sum += row[i] < 0.0F ? -1 : 1;
    signs.push_back(sum < 0 ? -1.0F : 1.0F);
  }
  return signs;
}

TEST(SignSgd, ResultIsTheSignOfTheSumOfSigns) {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    const auto out = run_model({.codec = "signsgd:scale=none", .ranks = ranks, .steps = 1, .threads = 2});
    std::vector<std::vector<float>> rows;
    for (const auto& rank : out.inputs) rows.push_back(rank[0]);
    for (const auto& rank : out.results) ASSERT_EQ(rank[0], majority_of(rows)) << ranks << " ranks";
  }
}

TEST(SignSgd, TiesAndZerosArePositive) {
  const auto halves = [](int rank, int) { return std::vector<float>(100, rank == 0 ? -1.0F : 1.0F); };
  const auto zeros = [](int, int) { return std::vector<float>(100, -0.0F); };
  for (const GradientOf& gradient : {GradientOf{halves}, GradientOf{zeros}}) {
    const auto out = run_model(
        {.codec = "signsgd:scale=none", .ranks = 2, .steps = 1, .layout = Layout::flat(100), .gradient = gradient});
    EXPECT_EQ(out.results[1][0], std::vector<float>(100, 1.0F));
  }
}

TEST(SignSgd, MagnitudeIsTheMeanOverRanksOfTheMeanMagnitude) {
  const auto out = run_model({.codec = "signsgd", .ranks = 3, .steps = 1});
  for (const auto& tensor : small_model().tensors) {
    double mean = 0.0;
    for (const auto& rank : out.inputs) {
      for (std::size_t i = tensor.first; i < tensor.first + tensor.elements; ++i)
        mean += std::abs(static_cast<double>(rank[0][i])) / 3.0 / static_cast<double>(tensor.elements);
    }
    for (std::size_t i = tensor.first; i < tensor.first + tensor.elements; ++i)
      ASSERT_NEAR(std::abs(out.results[0][0][i]), mean, 1e-6 * mean) << tensor.name;
  }
}

/// Both collectives carry (p-1)/p of n/8 bytes: a 32nd of a dense ring.
TEST(SignSgd, SendsA32ndOfADenseRing) {
  const std::size_t n = 4 * 32 * 100;
  const auto gradient = [n](int rank, int step) { return model_gradient(n, rank, step); };
  const auto out = run_model(
      {.codec = "signsgd:scale=none", .ranks = 4, .steps = 1, .layout = Layout::flat(n), .gradient = gradient});
  for (const auto& rank : out.wire) EXPECT_EQ(rank[0], 2 * 3 * n / 8 / 4);
  EXPECT_EQ(out.payload[0][0], n / 8);
  const auto scaled =
      run_model({.codec = "signsgd", .ranks = 4, .steps = 1, .layout = Layout::flat(n), .gradient = gradient});
  EXPECT_EQ(scaled.payload[0][0], n / 8 + 4);
}

TEST(SignSgd, SignumVotesOnMomentum) {
  // +1, then -0.5 each step: m = 0.9 m + 0.1 g is 0.1, 0.04, -0.014.
  const auto gradient = [](int, int step) { return std::vector<float>(64, step == 0 ? 1.0F : -0.5F); };
  const auto out = run_model(
      {.codec = "signsgd:momentum=0.9", .ranks = 3, .steps = 3, .layout = Layout::flat(64), .gradient = gradient});
  EXPECT_NEAR(out.results[0][0][0], 0.1F, 1e-6);
  EXPECT_NEAR(out.results[0][1][0], 0.04F, 1e-6);
  EXPECT_NEAR(out.results[0][2][0], -0.014F, 1e-6);
}

TEST(SignSgd, AMinorityOfAdversariesDoesNotChangeTheVote) {
  const auto gradient = [](int rank, int) {
    auto x = model_gradient(small_model().elements, 1, 4);
    for (auto& value : x) value *= rank < 2 ? -100.0F : 1.0F;
    return x;
  };
  const auto out = run_model({.codec = "signsgd:scale=none", .ranks = 5, .steps = 1, .gradient = gradient});
  const auto truth = gradient(4, 0);
  for (std::size_t i = 0; i < truth.size(); ++i) ASSERT_EQ(out.results[0][0][i] < 0.0F, truth[i] < 0.0F);
}

}  // namespace
}  // namespace gradtool::test
