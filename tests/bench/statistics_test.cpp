#include "lib/bench/statistics.hpp"

#include <gtest/gtest.h>

#include <cmath>
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
}

}  // namespace
}  // namespace gradtool::test
