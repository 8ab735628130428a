#include "lib/analysis/noise_scale.hpp"

#include <gtest/gtest.h>

#include <random>

#include "feed.hpp"

namespace gradtool::test {
namespace {

TEST(NoiseScale, IsExactForTwoWorkers) {
  // Gradients 3 and 1: their mean is 2 and their variance is 2, so that of 2^2 there is 2/2 too much.
  const NoiseScale scale = noise_scale(5.0, 4.0, 2);
  EXPECT_DOUBLE_EQ(scale.signal, 3.0);
  EXPECT_DOUBLE_EQ(scale.noise, 2.0);
  EXPECT_EQ(noise_scale(5.0, 5.0, 1).noise, 0.0);
}

TEST(NoiseScale, FindsWhatWasPlanted) {
  constexpr std::size_t kElements = 4000, kSteps = 20, kWorkers = 4;
  Capture capture{kSteps, kWorkers};
  std::vector<float> noise(kElements * kSteps * kWorkers);
  std::mt19937 random{1};
  std::normal_distribution<float> normal{0.0F, 0.5F};
  for (auto& value : noise) value = normal(random);
  capture.add(vector_of(kElements), [&](std::size_t step, std::size_t worker, std::size_t i) {
    return 0.125 + static_cast<double>(noise[(step * kWorkers + worker) * kElements + i]);
  });
  capture.scope.batch_size = 32;
  const auto analysis = make_noise(capture.scope);
  const auto tables = run(*analysis, capture);
  ASSERT_EQ(tables.size(), 2U);
  const double signal = kElements * 0.125 * 0.125, planted = kElements * 0.25;
  for (std::size_t row = 0; row < tables[0].rows().size(); ++row) {
    EXPECT_NEAR(number(tables[0], row, "signal"), signal, 0.08 * signal);
    EXPECT_NEAR(number(tables[0], row, "noise"), planted, 0.02 * planted);
    EXPECT_NEAR(number(tables[0], row, "noise_scale"), 16.0, 1.3);
    EXPECT_NEAR(number(tables[0], row, "noise_scale_samples"), 32 * number(tables[0], row, "noise_scale"), 1e-9);
  }
  EXPECT_EQ(tables[1].rows().size(), 2 * kSteps);
}

TEST(NoiseScale, HasNothingToSayOfOneWorker) {
  Capture capture{2, 1};
  capture.add(vector_of(10), [](auto, auto, std::size_t i) { return static_cast<double>(i); });
  const auto tables = run(*make_noise(capture.scope), capture);
  EXPECT_EQ(tables[0].at(0, "noise_scale"), Cell{});
  EXPECT_TRUE(tables[1].rows().empty());
}

}  // namespace
}  // namespace gradtool::test
