// Importance-weighted pruning: the same elements on every rank, nothing lost, and the dense limit.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/sums.hpp"
#include "kernels/vector.hpp"
#include "lib/core/task_pool.hpp"
#include "tests/codecs/inputs.hpp"
#include "tests/reduce/model_run.hpp"

namespace gradtool::test {
namespace {

std::vector<std::size_t> sent_elements(const std::vector<float>& result) {
  std::vector<std::size_t> sent;
  for (std::size_t i = 0; i < result.size(); ++i) {
    if (result[i] != 0.0F) sent.push_back(i);
  }
  return sent;
}

TEST(Iwp, AppliedPlusHeldIsTheSumOfGradients) {
  for (const std::string spec : {"iwp", "iwp:policy=mean_std,k=1", "iwp:policy=fixed,threshold=1,roots=1",
                                 "iwp:policy=dispersion,bernoulli=0.5", "iwp:warmup=1"}) {
    const auto out = run_model({.codec = spec, .ranks = 4, .steps = 8});
    const std::size_t n = out.inputs[0][0].size();
    double off = 0.0;
    double size = 0.0;
    for (std::size_t i = 0; i < n; ++i) {
      double given = 0.0;
      double left = 0.0;
      for (std::size_t r = 0; r < 4; ++r) {
        for (const auto& step : out.inputs[r]) given += static_cast<double>(step[i]) / 4.0;
        left += static_cast<double>(out.residuals[r][i]) / 4.0;
      }
      double applied = 0.0;
      for (const auto& step : out.results[0]) applied += static_cast<double>(step[i]);
      off = std::max(off, std::abs(given - applied - left));
      size = std::max(size, std::abs(given));
    }
    EXPECT_LT(off, 1e-6 * size) << spec;
  }
}

TEST(Iwp, FullDensityIsTheDenseMean) {
  const auto out = run_model({.codec = "iwp:density=1", .ranks = 3, .steps = 3});
  const auto dense = run_model({.codec = "none", .ranks = 3, .steps = 3});
  EXPECT_EQ(out.results, dense.results);
}

TEST(Iwp, FullDensityWithMomentumIsMomentumSgd) {
  const auto out = run_model({.codec = "iwp:density=1,mu=0.9,masking=off", .ranks = 3, .steps = 5});
  const std::size_t n = out.inputs[0][0].size();
  std::vector<double> velocity(n, 0.0);
  for (std::size_t step = 0; step < 5; ++step) {
    for (std::size_t i = 0; i < n; ++i) {
      double mean = 0.0;
      for (const auto& rank : out.inputs) mean += static_cast<double>(rank[step][i]) / 3.0;
      velocity[i] = 0.9 * velocity[i] + mean;
      ASSERT_NEAR(out.results[0][step][i], velocity[i], 1e-7) << step << " " << i;
    }
  }
}

TEST(Iwp, MaskingForgetsTheMomentumOfWhatWasSent) {
  const auto out = run_model({.codec = "iwp:density=1,mu=0.9", .ranks = 2, .steps = 3, .layout = Layout::flat(500)});
  const auto plain = run_model({.codec = "none", .ranks = 2, .steps = 3, .layout = Layout::flat(500)});
  EXPECT_EQ(out.results, plain.results);  // everything is sent every step, so no momentum is ever left
}

TEST(Iwp, FirstMaskHasTheDensityAskedForAndVectorsAreDense) {
  const auto layout = small_model();
  const auto out = run_model({.codec = "iwp:density=0.05,roots=1", .ranks = 4, .steps = 1});
  for (const auto& tensor : layout.tensors) {
    std::size_t sent = 0;
    for (std::size_t i = 0; i < tensor.elements; ++i) sent += out.results[0][0][tensor.first + i] != 0.0F ? 1 : 0;
    if (tensor.shape.size() < 2) {
      EXPECT_EQ(sent, tensor.elements) << tensor.name;
    } else {
      EXPECT_EQ(sent, static_cast<std::size_t>(std::llround(0.05 * static_cast<double>(tensor.elements))))
          << tensor.name;
    }
  }
}

TEST(Iwp, DensityGrowsWithBroadcastersAtMostInProportion) {
  const auto sent = [](const char* spec) {
    return sent_elements(
               run_model({.codec = spec, .ranks = 4, .steps = 1, .layout = Layout::flat(20'000)}).results[0][0])
        .size();
  };
  const auto one = sent("iwp:roots=1");
  EXPECT_EQ(one, 200U);
  EXPECT_GT(sent("iwp:roots=4"), one);
  EXPECT_LE(sent("iwp:roots=4"), 4 * one);
}

TEST(Iwp, ImportanceIsRelativeToTheWeight) {
  // All elements have equal gradients, so the smallest weights are sent. Without weights ties leave nothing above the
  // quantile.
  const std::size_t n = 1000;
  const auto constant = [n](int, int) { return std::vector<float>(n, 0.5F); };
  const auto out = run_model(
      {.codec = "iwp:density=0.1,roots=1", .ranks = 2, .steps = 1, .layout = Layout::flat(n), .gradient = constant});
  const auto weight = model_weight(n);
  const auto sent = sent_elements(out.results[0][0]);
  ASSERT_GE(sent.size(), 90U);
  double largest_sent = 0.0;
  for (const auto i : sent) largest_sent = std::max(largest_sent, std::abs(static_cast<double>(weight[i])));
  std::size_t smaller = 0;
  for (const float w : weight) smaller += std::abs(static_cast<double>(w)) < largest_sent ? 1 : 0;
  EXPECT_LE(smaller, sent.size());
}

TEST(Iwp, TheControllerReachesItsDensity) {
  // Six standard deviations are far too many for 2 %; the controller finds the number that is right.
  const auto out = run_model({.codec = "iwp:policy=mean_std,k=6,density=0.02,roots=1",
                              .ranks = 1,
                              .steps = 100,
                              .layout = Layout::flat(5000)});
  EXPECT_LT(sent_elements(out.results[0].front()).size(), 60U);
  std::size_t last = 0;
  for (std::size_t step = 80; step < 100; ++step) last += sent_elements(out.results[0][step]).size();
  EXPECT_GE(last, 20 * 70U);
  EXPECT_LE(last, 20 * 130U);
}

TEST(Iwp, ClippingLimitsTheNormOfEachRank) {
  const auto out = run_model({.codec = "iwp:density=1,clip=0.01", .ranks = 4, .steps = 1});
  double squares = 0.0;
  for (const float value : out.results[0][0]) squares += static_cast<double>(value) * static_cast<double>(value);
  EXPECT_LE(std::sqrt(squares), 0.01 / 2.0 * (1.0 + 1e-6));
}

TEST(Iwp, SumsHaveAPlaceForEveryChunk) {
  for (const std::size_t n : {std::size_t{0}, std::size_t{1}, format::kSumChunk, std::size_t{31'457'280},
                              std::size_t{31'457'281}, std::size_t{1} << 33}) {
    const format::SumCut cut = format::sum_cut(n);
    EXPECT_LE(cut.count, format::kMostChunks) << n;
    EXPECT_GE(cut.chunk, format::kSumChunk) << n;
    EXPECT_EQ(cut.chunk % format::kSumLanes, 0U) << n;
    EXPECT_GE(cut.count * cut.chunk, n);
    if (n > 0) EXPECT_LT((cut.count - 1) * cut.chunk, n);
  }
}

TEST(Iwp, SumsDoNotDependOnThreads) {
  const auto x = gradient_like(600'001);
  double sum = 0.0, squares = 0.0;
  for (const float value : x) {
    sum += static_cast<double>(value);
    squares += static_cast<double>(value) * static_cast<double>(value);
  }
  TaskPool three{3};
  const Moments alone = moments(Queue<Space::host>{}, {x.data(), x.size()});
  const Moments shared = moments({&three}, {x.data(), x.size()});
  EXPECT_EQ(alone.sum, shared.sum);
  EXPECT_EQ(alone.squares, shared.squares);
  EXPECT_NEAR(alone.sum, sum, 1e-9 * std::sqrt(squares * static_cast<double>(x.size())));
  EXPECT_NEAR(alone.squares, squares, 1e-12 * squares);
}

TEST(Iwp, BytesAreMasksOfTheBroadcastersAndValues) {
  const std::size_t n = 4096;
  const auto out =
      run_model({.codec = "iwp:density=0.01,roots=1,mask=bitmap", .ranks = 2, .steps = 1, .layout = Layout::flat(n)});
  const std::size_t values = 4 * sent_elements(out.results[0][0]).size();
  std::vector<std::uint64_t> payload{out.payload[0][0], out.payload[1][0]};
  std::sort(payload.begin(), payload.end());
  EXPECT_EQ(payload[0], values);
  EXPECT_EQ(payload[1], values + 16 + n / 8);
  EXPECT_EQ(out.wire[0][0] + out.wire[1][0], 2 * values + 16 + n / 8);
}

}  // namespace
}  // namespace gradtool::test
