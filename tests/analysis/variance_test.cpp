#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "feed.hpp"
#include "lib/analysis/variance.hpp"

namespace gradtool::test {
namespace {

std::vector<Table> variance_of(const Capture& capture, std::size_t pieces = 1) {
  const auto analysis = make_variance(capture.scope);
  return run(*analysis, capture, pieces);
}

TEST(Moments, OfAKnownSequence) {
  DistributionMoments moments;
  const std::vector<float> values{2, 4, 4, 4, 5, 5, 7, 9};
  moments.add(values);
  EXPECT_EQ(moments.mean, 5);
  EXPECT_EQ(moments.variance(), 4);
  EXPECT_NEAR(moments.skewness(), 0.65625, 1e-15);          // (-27 - 3 + 8 + 64) / 8 / 8
  EXPECT_NEAR(moments.excess_kurtosis(), -0.21875, 1e-15);  // (81 + 3 + 16 + 256) / 8 / 16 - 3
  EXPECT_EQ(moments.min, 2);
  EXPECT_EQ(moments.max, 9);
}

TEST(Moments, MergeEqualsWholeAndSurvivesALargeMean) {
  const auto draw = normal(10000, 40);
  std::vector<float> values;
  for (const double x : draw) values.push_back(static_cast<float>(1000 + std::exp(x)));
  DistributionMoments whole, joined;
  whole.add(values);
  for (std::size_t first = 0, size = 1; first < values.size(); first += size, size = size * 2 + 1) {
    DistributionMoments part;
    part.add(std::span{values}.subspan(first, std::min(size, values.size() - first)));
    joined.merge(part);
  }
  EXPECT_EQ(joined.count, whole.count);
  EXPECT_NEAR(joined.mean / whole.mean, 1, 1e-13);
  EXPECT_NEAR(joined.variance() / whole.variance(), 1, 1e-11);
  EXPECT_NEAR(joined.skewness() / whole.skewness(), 1, 1e-10);
  EXPECT_NEAR(joined.excess_kurtosis() / whole.excess_kurtosis(), 1, 1e-10);
}

TEST(RatioHistogram, FewAndManyRatiosGiveTheSameQuantiles) {
  // Few ratios are kept one by one, many are counted; parts are merged in all combinations of both.
  for (const std::size_t size : {1U, 2U, 1023U, 1024U, 1025U, 5000U}) {
    std::vector<double> ratios(size);
    for (std::size_t i = 0; i < size; ++i) ratios[i] = std::exp(std::sin(static_cast<double>(i * i + 1)) * 20.0);
    for (const std::size_t cut : {std::size_t{0}, size / 3, size - std::min<std::size_t>(size, 5)}) {
      RatioHistogram first, second;
      for (std::size_t i = 0; i < size; ++i) (i < cut ? first : second).add(ratios[i]);
      first.merge(second);
      EXPECT_EQ(first.count(), size);
      auto sorted = ratios;
      std::sort(sorted.begin(), sorted.end());
      for (const double q : {0.001, 0.25, 0.5, 0.9, 1.0}) {
        const auto rank = static_cast<std::size_t>(std::max(1.0, std::ceil(q * static_cast<double>(size))));
        EXPECT_NEAR(first.quantile(q) / sorted[rank - 1], 1, 1.3e-4) << size << " " << cut << " " << q;
      }
    }
  }
}

TEST(RatioHistogram, QuantilesAreNearestRankToTheStatedResolution) {
  RatioHistogram histogram;
  for (int i = 1; i <= 1000; ++i) histogram.add(i * 1e-3);
  EXPECT_NEAR(histogram.quantile(0.05) / 0.050, 1, 1.3e-4);
  EXPECT_NEAR(histogram.quantile(0.5) / 0.5, 1, 1.3e-4);
  EXPECT_NEAR(histogram.quantile(1.0), 1, 1.3e-4);
  RatioHistogram edges;
  edges.add(0);
  edges.add(1e-45);
  edges.add(1e300);
  edges.add(std::numeric_limits<double>::infinity());
  EXPECT_EQ(edges.quantile(0.5), 0);
  EXPECT_EQ(edges.quantile(0.75), std::numeric_limits<double>::infinity());
}

TEST(SignalRatio, NoisePassShareIsStudentsTail) {
  // P(|t| > 1) with 1, 2, 3, 4, 7 and very many degrees of freedom.
  EXPECT_NEAR(noise_pass_share(2), 0.5, 1e-12);
  EXPECT_NEAR(noise_pass_share(3), 0.42264973, 1e-8);
  EXPECT_NEAR(noise_pass_share(4), 0.39100222, 1e-8);
  EXPECT_NEAR(noise_pass_share(5), 0.37390097, 1e-8);
  EXPECT_NEAR(noise_pass_share(8), 0.35061666, 1e-8);
  EXPECT_NEAR(noise_pass_share(1000000), 0.31731051, 3e-4);
  // Squares of the quantiles of Student's t (scipy.stats.t.ppf((1 + share) / 2, samples - 1)).
  EXPECT_NEAR(noise_ratio_quantile(2, 0.5), 1.0, 1e-9);
  EXPECT_NEAR(noise_ratio_quantile(4, 0.25), 0.1219532735, 1e-8);
  EXPECT_NEAR(noise_ratio_quantile(4, 0.5), 0.5850602736, 1e-8);
  EXPECT_NEAR(noise_ratio_quantile(9, 0.75), 1.5383893880, 1e-8);
}

TEST(SignalRatio, BothFormsOfTheTestAgree) {
  // Four micro-batches, or four workers, with the same four gradients: same ratio, and the same passing at alpha = 1.
  constexpr std::size_t kN = 2000, kK = 4;
  const auto noise = normal(kN * kK, 41);
  std::vector<float> workers(kN * kK), mean(kN), moment(kN);
  for (std::size_t i = 0; i < kN; ++i) {
    double sum = 0, squares = 0;
    for (std::size_t k = 0; k < kK; ++k) {
      workers[k * kN + i] = static_cast<float>(noise[k * kN + i] + 0.4);
      sum += workers[k * kN + i];
      squares += std::pow(workers[k * kN + i] / double{kK}, 2);
    }
    mean[i] = static_cast<float>(sum / kK);
    moment[i] = static_cast<float>(squares);
  }
  SignalRatio by_workers, by_micro_batches;
  by_workers.add_workers(workers, kK);
  by_micro_batches.add_micro_batches(mean, moment, kK);
  EXPECT_EQ(by_workers.passed(0), by_micro_batches.passed(0));
  EXPECT_NEAR(by_workers.histogram().quantile(0.5) / by_micro_batches.histogram().quantile(0.5), 1, 2.5e-4);
  // alpha = 2 of the workers' form is alpha = 2 * 4 / (4 - 1 + 2) = 1.6 of the other: between its 1.5 and 2.
  EXPECT_LE(by_workers.passed(2), by_micro_batches.passed(1));
  EXPECT_GE(by_workers.passed(2), by_micro_batches.passed(2));
}

TEST(SignalRatio, StrictInequalityAndImpossibleMoments) {
  SignalRatio ratio;
  // K = 2. v = G^2: the test at alpha = 1 must not pass. v = G^2 / 2: two equal micro-batches, no variance at all.
  const std::vector<float> gradient{2, 2, 0, 2, 2};
  const std::vector<float> moment{4, 2, 0, 1.5F, NAN};
  ratio.add_micro_batches(gradient, moment, 2);
  EXPECT_EQ(ratio.samples(), 5U);
  EXPECT_EQ(ratio.undefined(), 1U);
  EXPECT_EQ(ratio.inconsistent(), 2U);
  EXPECT_EQ(ratio.passed(0), 1U);
  EXPECT_EQ(ratio.passed(1), 1U);
  EXPECT_EQ(ratio.passed(2), 0U);  // G^2 = 2 v is not above 2 v
  EXPECT_EQ(ratio.histogram().quantile(1.0), std::numeric_limits<double>::infinity());
}

TEST(Variance, OfAKnownProcessOverWorkers) {
  constexpr std::size_t kWorkers = 5, kSteps = 4, kN = 20000;
  const auto noise = normal(kWorkers * kSteps * kN, 42);
  Capture capture{kSteps, kWorkers};
  capture.add(vector_of(kN, "noise"),
              [&](std::size_t s, std::size_t w, std::size_t i) { return 3 * noise[(s * kWorkers + w) * kN + i]; });
  capture.add(vector_of(kN, "signal"), [&](std::size_t s, std::size_t w, std::size_t i) {
    return 1 + 0.01 * noise[(s * kWorkers + w) * kN + i];
  });
  const auto table = variance_of(capture)[0];
  EXPECT_EQ(to_text(table.at(0, "source")), "workers");
  // Pure noise: the ratio is Student's t squared, 4 degrees of freedom.
  EXPECT_NEAR(number(table, 0, "pass_share_1"), noise_pass_share(kWorkers), 0.01);
  EXPECT_NEAR(number(table, 0, "ratio_q50"), 0.740697 * 0.740697, 0.02);
  EXPECT_NEAR(number(table, 0, "std"), 3, 0.02);
  EXPECT_NEAR(number(table, 0, "excess_kurtosis"), 0, 0.05);
  EXPECT_NEAR(number(table, 0, "l2_norm_rms"), 3 * std::sqrt(double{kN}), 3);
  EXPECT_NEAR(number(table, 0, "l1_norm_mean"), 3 * std::sqrt(2 / 3.14159265) * kN, 200);
  EXPECT_EQ(number(table, 1, "pass_share_2"), 1.0);
  EXPECT_GT(number(table, 1, "ratio_q05"), 1000);
  EXPECT_EQ(number(table, 1, "zero_fraction"), 0);
}

TEST(Variance, TakesTheSecondMomentWhereItIsStored) {
  Capture capture{2, 2, 4};
  const auto two = [](auto, auto, std::size_t i) { return i == 0 ? 2.0 : 0.0; };
  capture.add(vector_of(4, "stored"), two, [](auto, auto, std::size_t i) { return i == 0 ? 3.0 : 1.0; });
  capture.add(vector_of(4, "not stored"), two);
  auto table = variance_of(capture)[0];
  EXPECT_EQ(to_text(table.at(0, "source")), "second_moment");
  EXPECT_EQ(number(table, 0, "pass_share_1"), 0.25);   // 4 > 3 for one element of four
  EXPECT_EQ(number(table, 0, "pass_share_1_5"), 0.0);  // 4 > 4.5 is false
  EXPECT_NEAR(number(table, 0, "ratio_q95"), 3 * 4.0 / (4 * 3 - 4), 1e-3);
  EXPECT_EQ(number(table, 0, "zero_fraction"), 0.75);
  EXPECT_EQ(to_text(table.at(1, "source")), "workers");
  EXPECT_EQ(number(table, 1, "undefined_share"), 0.75);
  EXPECT_EQ(to_text(table.at(2, "source")), "mixed");

  capture.scope.micro_batches = 1;  // one micro-batch has no variance
  EXPECT_EQ(to_text(variance_of(capture)[0].at(0, "source")), "workers");
}

TEST(Variance, OneWorkerWithoutMomentsHasNone) {
  Capture capture{3, 1};
  capture.add(vector_of(1), [](auto, auto, auto) { return 7.0; });
  const auto table = variance_of(capture)[0];
  EXPECT_EQ(to_text(table.at(0, "source")), "none");
  for (const char* column : {"ratio_q50", "pass_share_1", "noise_pass_share_1", "undefined_share", "skewness"}) {
    EXPECT_TRUE(is_empty(table, 0, column)) << column;
  }
  EXPECT_EQ(number(table, 0, "mean"), 7);
  EXPECT_EQ(number(table, 0, "std"), 0);
}

TEST(Variance, PartsJoinToTheWholeAndBadTensorsStay) {
  const auto noise = normal(3 * 4 * 700, 43);
  Capture capture{3, 4};
  capture.add(vector_of(700),
              [&](std::size_t s, std::size_t w, std::size_t i) { return noise[(s * 4 + w) * 700 + i]; });
  capture.add(vector_of(10), [](std::size_t s, std::size_t w, auto) { return s == 2 && w == 3 ? NAN : 1.0; });
  const auto whole = variance_of(capture)[0];
  EXPECT_EQ(to_text(whole.at(1, "status")), "skipped");
  EXPECT_EQ(number(whole, 1, "non_finite_count"), 10);
  EXPECT_EQ(number(whole, 2, "non_finite_count"), 10);
  EXPECT_EQ(number(whole, 2, "values"), 700 * 12);
  for (const std::size_t pieces : {2, 5, 100}) EXPECT_EQ(difference(whole, variance_of(capture, pieces)[0], 1e-11), "");
}

}  // namespace
}  // namespace gradtool::test
