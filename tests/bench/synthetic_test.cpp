// Gradients that nobody captured: the sizes of a sweep, and values that look like gradients.
#include "lib/bench/synthetic.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "lib/core/error.hpp"

namespace gradtool::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Sizes, AreOneSizeOrASweepByFactorOrStep) {
  EXPECT_THAT(parse_sizes("16MB"), ElementsAre(16'000'000));
  EXPECT_THAT(parse_sizes("1MB:1GB:x10"), ElementsAre(1'000'000, 10'000'000, 100'000'000, 1'000'000'000));
  EXPECT_THAT(parse_sizes("1M:5M"), ElementsAre(1U << 20, 4U << 20)) << "nccl-tests' letters; a factor of 4";
  EXPECT_THAT(parse_sizes("8:20:+4"), ElementsAre(8, 12, 16, 20));
  EXPECT_THAT(parse_sizes("1000:1000:x2"), ElementsAre(1000));
  EXPECT_THAT(parse_sizes("10:40:x1.5"), ElementsAre(8, 12, 16, 24)) << "whole elements, and each size once";
}

TEST(Sizes, ThatAreNoneAreRefusedWithWhatWouldBeValid) {
  for (const char* text : {"", "1MB:", "2MB:1MB:x2", "1MB:2MB:x1", "1MB:2MB:x0.5", "1MB:2MB:xinf", "1MB:2MB:+0",
                           "1MB:2MB:2", "1MB:2MB:x2:3", "3", "1XB", "-1MB", "4:4G:+4", "4:1GB:x1.0000000000000002",
                           "1025GiB", "4294967296G:4294967297G:+4"}) {
    try {
      static_cast<void>(parse_sizes(text));
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.fault(), Fault::usage) << text;
      EXPECT_THAT(error.what(), HasSubstr("--synthetic")) << text;
    }
  }
}

TEST(Sizes, AreNamedInTheUnitThatFits) {
  EXPECT_EQ(size_name(4'000'000), "size:4MB");
  EXPECT_EQ(size_name(4U << 20), "size:4MiB");
  EXPECT_EQ(size_name(1'500'000), "size:1500kB");
  EXPECT_EQ(size_name(1004), "size:1004");
}

struct Moments {
  double mean = 0.0, variance = 0.0, kurtosis = 0.0;
};
Moments moments_of(const std::vector<float>& values) {
  Moments m;
  const auto n = static_cast<double>(values.size());
  for (const float v : values) m.mean += static_cast<double>(v) / n;
  double fourth = 0.0;
  for (const float v : values) {
    const double d = static_cast<double>(v) - m.mean;
    m.variance += d * d / n;
    fourth += d * d * d * d / n;
  }
  m.kurtosis = fourth / (m.variance * m.variance);
  return m;
}
double correlation(const std::vector<float>& a, const std::vector<float>& b) {
  double aa = 0.0, bb = 0.0, ab = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    aa += static_cast<double>(a[i]) * static_cast<double>(a[i]);
    bb += static_cast<double>(b[i]) * static_cast<double>(b[i]);
    ab += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  }
  return ab / std::sqrt(aa * bb);
}

/// Sampling error of what follows is below 0.005 for 1e6 values.
TEST(SyntheticGradients, AreHeavyTailedAndHalfCommonToWorkersAndNewInEachStep) {
  const auto sources = SyntheticGradients::make({400'000, 4'000'000}, 3);
  const GradientSource& source = *sources[1];
  ASSERT_EQ(source.workers(), 3U);
  ASSERT_EQ(source.elements(), 1'000'000U);
  EXPECT_THAT(source.tensors()[0].shape, ElementsAre(1000, 1000));
  std::vector<std::vector<float>> read;
  for (std::size_t step = 0; step < source.steps().size(); ++step) {
    for (std::size_t worker = 0; worker < 3; ++worker)
      source.read_gradient(0, step, worker, read.emplace_back(1'000'000));
  }
  for (const auto& values : read) {
    const Moments m = moments_of(values);
    EXPECT_NEAR(m.mean, 0.0, 5e-6);
    EXPECT_NEAR(std::sqrt(m.variance), 1e-3, 1e-5);
    EXPECT_NEAR(m.kurtosis, 4.5, 0.15) << "of the sum of two Laplace variables; a normal one has 3";
  }
  for (std::size_t i = 0; i < read.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j)
      EXPECT_NEAR(correlation(read[i], read[j]), i / 3 == j / 3 ? 0.5 : 0.0, 0.01) << i << " and " << j;
  }
  std::vector<float> small(100'000), moment(1'000'000), weight(1'000'000), part(10);
  sources[0]->read_gradient(0, 1, 2, small);
  EXPECT_TRUE(std::equal(small.begin(), small.end(), read[5].begin())) << "the beginning of the larger one";
  source.read_gradient_part(0, 1, 2, 999'990, part);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), read[5].end() - 10));
  source.read_second_moment(0, 1, 2, moment);
  double sum = 0.0;
  for (const float v : moment) sum += static_cast<double>(v);
  // (g^2 + v) / K on average, with v = K / 2 of g's variance and K = 8.
  EXPECT_NEAR(sum / 1e6, 1e-6 * (1.0 + 4.0) / 8.0, 1e-8);
  source.read_weight(0, 0, weight);
  EXPECT_NEAR(std::sqrt(moments_of(weight).variance), 0.05, 5e-4);
  EXPECT_NEAR(correlation(weight, read[0]), 0.0, 0.01);
}

}  // namespace
}  // namespace gradtool::test
