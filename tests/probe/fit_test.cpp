// Links that are planted are found again, and a curve that is no line is said to be none.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "lib/probe/fit.hpp"

namespace gradtool {
namespace {

/// Times of the pattern on a planted link: 8 B to 8 MiB, 5 rounds of 2 samples, delayed by about so much, and in each
/// round all of them by half of that.
std::vector<SizeTimes> planted(Pattern pattern, const Link& link, int ranks, double noise) {
  std::mt19937_64 random{7};
  std::normal_distribution<double> normal;
  std::vector<double> of_round;
  for (int round = 0; round < 5; ++round) of_round.push_back(1.0 + 0.5 * noise * std::abs(normal(random)));
  std::vector<SizeTimes> sizes;
  for (double bytes = 8.0; bytes <= 8 << 20; bytes *= 4.0) {
    SizeTimes size{.bytes = static_cast<double>(size_for(pattern, static_cast<std::uint64_t>(bytes), ranks)),
                   .seconds = {},
                   .rounds = std::vector<std::size_t>(5, 2)};
    for (std::size_t i = 0; i < 10; ++i) {
      const double factor = of_round[i / 2] * (1.0 + noise * std::abs(normal(random)));
      size.seconds.push_back(factor * modelled_seconds(pattern, size.bytes, ranks, link));
    }
    sizes.push_back(std::move(size));
  }
  return sizes;
}

}  // namespace

void PrintTo(const PatternInfo& info, std::ostream* out) {
  *out << info.name;
}

namespace {

class EveryPattern : public testing::TestWithParam<PatternInfo> {};

TEST_P(EveryPattern, FindsAPlantedLinkExactly) {
  for (const int ranks : {2, 3, 4, 16}) {
    for (const Link link : {Link{50e-6, 0.117e9}, Link{2e-6, 48e9}, Link{20e-3, 1e7}}) {
      const auto sizes = planted(GetParam().pattern, link, ranks, 0.0);
      const LinkFit fit = fit_link(GetParam().pattern, sizes, ranks);
      EXPECT_NEAR(fit.link.beta / link.beta, 1.0, 1e-3) << ranks;
      EXPECT_NEAR(fit.link.alpha / link.alpha, 1.0, 1e-3) << ranks;
      EXPECT_LT(fit.misfit, 1e-3);
      EXPECT_TRUE(fit.fits());
    }
  }
}

TEST_P(EveryPattern, FindsItInNoise) {
  const Link link{50e-6, 0.117e9};
  const LinkFit fit = fit_link(GetParam().pattern, planted(GetParam().pattern, link, 4, 0.05), 4);
  EXPECT_NEAR(fit.link.beta / link.beta, 1.0, 0.05);
  EXPECT_NEAR(fit.link.alpha / link.alpha, 1.0, 0.05);
  ASSERT_TRUE(fit.beta && fit.alpha);
  EXPECT_LE(fit.beta->low, fit.link.beta);
  EXPECT_GE(fit.beta->high, fit.link.beta);
  EXPECT_LT(fit.beta->low, link.beta);
  EXPECT_GT(fit.beta->high, link.beta * 0.96);
  EXPECT_LT(fit.beta->high / fit.beta->low, 1.25);
  EXPECT_TRUE(fit.fits());
}

INSTANTIATE_TEST_SUITE_P(Fit, EveryPattern, testing::ValuesIn(patterns().begin(), patterns().end()),
                         [](const auto& info) { return std::string{info.param.name}; });

TEST(Fit, IsNotMovedByWhatDisturbsHalfOfTheSamples) {
  const Link link{50e-6, 0.117e9};
  auto sizes = planted(Pattern::sendrecv, link, 4, 0.01);
  for (SizeTimes& size : sizes) {
    for (std::size_t i = 0; i < size.seconds.size(); i += 2) size.seconds[i] *= 1.0 + static_cast<double>(i);
  }
  const LinkFit fit = fit_link(Pattern::sendrecv, sizes, 4);
  EXPECT_NEAR(fit.link.beta / link.beta, 1.0, 0.03);
  EXPECT_NEAR(fit.link.alpha / link.alpha, 1.0, 0.05);
}

TEST(Fit, SaysWhereTheLineDoesNotFit) {
  const Link link{50e-6, 0.117e9};
  auto sizes = planted(Pattern::sendrecv, link, 4, 0.01);
  std::size_t bent = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i].bytes != 32768.0) continue;
    for (double& seconds : sizes[i].seconds) seconds *= 3.0;  // a change of protocol
    bent = i;
  }
  const LinkFit fit = fit_link(Pattern::sendrecv, sizes, 4);
  EXPECT_FALSE(fit.fits());
  EXPECT_EQ(fit.worst, bent);
  EXPECT_NEAR(fit.off[fit.worst], 1.0 / 3.0 - 1.0, 0.05);
  EXPECT_NEAR(fit.link.beta / link.beta, 1.0, 0.05) << "the largest sizes decide, not the bend";
  EXPECT_NEAR(fit.link.alpha / link.alpha, 1.0, 0.10);
}

/// A bucket of tokens lets 62 kB pass at once, so that times do not grow up to there.
TEST(Fit, IsNotFooledByBursts) {
  const Link link{50e-6, 0.117e9};
  auto sizes = planted(Pattern::pair, link, 4, 0.0);
  for (SizeTimes& size : sizes) {
    for (double& seconds : size.seconds) seconds = link.alpha + std::max(0.0, size.bytes - 62e3) / link.beta;
  }
  EXPECT_NEAR(fit_link(Pattern::pair, sizes, 4).link.beta / link.beta, 1.0, 0.05);
}

TEST(Fit, TakesTimesThatDoNotGrow) {
  std::vector<SizeTimes> sizes;
  for (const double bytes : {8.0, 1024.0, 65536.0})
    sizes.push_back({.bytes = bytes, .seconds = {1e-3, 1e-3, 0.9e-3}, .rounds = {3}});
  sizes.back().seconds = {0.5e-3};
  sizes.back().rounds = {1};
  const LinkFit fit = fit_link(Pattern::sendrecv, sizes, 2);
  EXPECT_GE(fit.link.alpha, 0.0);
  EXPECT_FALSE(fit.alpha || fit.beta) << "an interval from three samples";
  EXPECT_TRUE(std::isfinite(fit.link.beta) && fit.link.beta > 0.0);
}

TEST(Sizes, AreWholePartsForEveryRank) {
  EXPECT_EQ(size_for(Pattern::sendrecv, 7, 3), 7U);
  EXPECT_EQ(size_for(Pattern::all_gather, 8, 3), 12U);
  EXPECT_EQ(size_for(Pattern::all_reduce, 24, 3), 24U);
  EXPECT_DOUBLE_EQ(bus_factor(Pattern::all_reduce, 4), 1.5);
  EXPECT_DOUBLE_EQ(bus_factor(Pattern::broadcast, 4), 1.0);
}

}  // namespace
}  // namespace gradtool
