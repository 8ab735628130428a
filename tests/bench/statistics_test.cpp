#include "lib/model/statistics.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <span>
#include <vector>

namespace gradtool::test {
namespace {

TEST(Summary, MedianPercentileMinimumAndNoise) {
  std::vector<double> samples;
  for (int i = 20; i >= 1; --i) samples.push_back(i);
  const Summary s = summarise(samples);
  EXPECT_EQ(s.samples, 20U);
  EXPECT_DOUBLE_EQ(s.median, 10.5);
  EXPECT_DOUBLE_EQ(s.p95, 19.0);  // nearest rank: the 19th of 20
  EXPECT_DOUBLE_EQ(s.min, 1.0);
  EXPECT_NEAR(s.noise, std::sqrt(35.0) / 10.5, 1e-12);
  EXPECT_EQ(summarise(std::vector<double>{3.0}).p95, 3.0);
  EXPECT_EQ(summarise({}).samples, 0U);
}

TEST(StopRule, NeedsSamplesAndQuietOrTime) {
  const StopRule rule{.min_samples = 4, .max_noise = 0.01, .timeout_seconds = 10.0};
  const std::vector<double> quiet{1.0, 1.0, 1.0, 1.0};
  const std::vector<double> loud{1.0, 2.0, 1.0, 2.0};
  EXPECT_TRUE(rule.done(quiet, 1.0, 10.0));
  EXPECT_FALSE(rule.done(std::span{quiet}.first(3), 1.0, 10.0));
  EXPECT_FALSE(rule.done(loud, 1.0, 10.0));
  EXPECT_TRUE(rule.done(loud, 10.0, 10.0));
  EXPECT_EQ(rule.limit(0.001), 10.0);
  EXPECT_EQ(StopRule{}.limit(0.001), 0.25);
  EXPECT_EQ(StopRule{}.limit(0.1), 2.0);
  EXPECT_EQ(StopRule{}.limit(60.0), 5.0);
  EXPECT_EQ(StopRule{.most_seconds = 0.5}.limit(0.001), 0.25);
  EXPECT_EQ(StopRule{.most_seconds = 0.5}.limit(60.0), 0.5);
  EXPECT_EQ(StopRule{.least_seconds = 0.1}.limit(0.001), 0.1);
  EXPECT_EQ(StopRule{.least_seconds = 0.1}.limit(0.1), 2.0);
  EXPECT_EQ((StopRule{.timeout_seconds = 10.0, .most_seconds = 0.5}.limit(60.0)), 10.0);
}

// The median of a normal distribution is known, so that the share of intervals that hold it can be counted.
TEST(MedianInterval, HoldsTheMedianNineteenTimesInTwenty) {
  std::mt19937 random{3};
  std::normal_distribution<double> normal{100.0, 15.0};
  int held = 0;
  constexpr int kTrials = 400;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::vector<double> samples(41);
    for (auto& sample : samples) sample = normal(random);
    const auto interval = median_interval(samples, std::vector<std::size_t>{41}).value();
    held += interval.low <= 100.0 && 100.0 <= interval.high ? 1 : 0;
  }
  EXPECT_GT(held, 0.91 * kTrials);
  EXPECT_LT(held, 0.99 * kTrials);
}

TEST(MedianInterval, IsAsWideAsTheRoundsAreApart) {
  // Within a round nothing varies; one of five was disturbed by half, as by another process.
  std::vector<double> samples(50, 10.0);
  for (std::size_t i = 20; i < 30; ++i) samples[i] = 15.0;
  const auto calm = median_interval(samples, std::vector<std::size_t>{50}).value();
  EXPECT_EQ(calm.high, 10.0);  // drawn one by one, half of the samples are hardly ever disturbed ones
  for (std::size_t i = 30; i < 40; ++i) samples[i] = 15.0;
  const auto drifting = median_interval(samples, std::vector<std::size_t>{10, 10, 10, 10, 10}).value();
  EXPECT_EQ(drifting.low, 10.0);
  EXPECT_EQ(drifting.high, 15.0);
}

TEST(MedianInterval, NeedsFiveSamples) {
  const std::vector<double> samples{1.0, 2.0, 3.0, 4.0, 5.0};
  EXPECT_FALSE(median_interval(std::span{samples}.first(4), std::vector<std::size_t>{4}).has_value());
  EXPECT_TRUE(median_interval(samples, std::vector<std::size_t>{2, 0, 3}).has_value());
}

TEST(StopRule, HasEnoughAtSomePointHoweverNoisy) {
  std::vector<double> samples(StopRule::kMostSamples - 1);
  for (std::size_t i = 0; i < samples.size(); ++i) samples[i] = i % 100 == 0 ? 1000.0 : 1.0;
  const StopRule rule{.timeout_seconds = 60.0};
  EXPECT_FALSE(rule.done(samples, 1.0, 60.0));
  samples.push_back(1.0);
  EXPECT_TRUE(rule.done(samples, 1.0, 60.0));
  // The rule takes as many samples as --iters asks for.
  EXPECT_FALSE((StopRule{.min_samples = 20'000, .timeout_seconds = 60.0}.done(samples, 1.0, 60.0)));
}

TEST(StopRule, SharesAddUpToTheWhole) {
  const StopRule rule{.min_samples = 23, .max_noise = 0.01, .timeout_seconds = 6.0};
  std::size_t samples = 0;
  double seconds = 0.0;
  for (std::size_t round = 0; round < 5; ++round) {
    samples += rule.share(round, 5).min_samples;
    seconds += rule.share(round, 5).limit(1.0);
  }
  EXPECT_EQ(samples, 23U);
  EXPECT_NEAR(seconds, 6.0, 1e-12);
  EXPECT_NEAR(StopRule{}.share(0, 4).limit(0.1), 0.5, 1e-12);
}

}  // namespace
}  // namespace gradtool::test
