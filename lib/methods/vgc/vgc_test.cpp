// Variance-based gradient compression against the specification: its criterion, its quantisation, its hybrid.
#include <gtest/gtest.h>

#include <cmath>

#include "lib/methods/vgc/format.hpp"
#include "tests/codecs/encoder_run.hpp"
#include "tests/codecs/inputs.hpp"

namespace gradtool::test {
namespace {

TEST(Vgc, StreamingCriterionIsTheVarianceCriterion) {
  // (alpha'/b) Var < G^2 exactly when r^2 > alpha v with alpha = alpha' b / (b - 1 + alpha').
  int sent = 0;
  for (std::uint32_t trial = 0; trial < 4000; ++trial) {
    const std::size_t b = 2 + trial % 63;
    const double wanted = 0.5 + 2.0 * static_cast<double>(uniform_at(trial, 999));
    const auto noise = normal(b, trial);
    double mean = 0.0;
    double squares = 0.0;
    for (const double g : noise) {
      const double value = g + 0.3;
      mean += value / static_cast<double>(b);
      squares += value * value / static_cast<double>(b * b);
    }
    double variance = 0.0;
    for (const double g : noise) variance += (g + 0.3 - mean) * (g + 0.3 - mean) / static_cast<double>(b - 1);
    const double left = wanted / static_cast<double>(b) * variance;
    if (std::abs(left - mean * mean) < 1e-5 * left) continue;  // too close for float32
    const double alpha = wanted * static_cast<double>(b) / (static_cast<double>(b - 1) + wanted);
    const format::Vgc rule{.alpha = static_cast<float>(alpha)};
    EXPECT_EQ(rule.sends(static_cast<float>(mean), static_cast<float>(squares)), left < mean * mean) << trial;
    sent += left < mean * mean ? 1 : 0;
  }
  EXPECT_GT(sent, 400);
  EXPECT_LT(sent, 3600);
}

TEST(Vgc, WorkedExample) {
  // M = 0.9: E = -1. alpha = 0.5 sends everything in the first step.
  CodecRun run{"vgc:alpha=0.5", 8};
  const std::vector<float> x{0.9F, -0.7F, 0.4F, 0.375F, 0.3F, -0.05F, 0.003F, 0.002F};
  const std::vector<float> expected{0.5F, -0.5F, 0.5F, 0.5F, 0.25F, -0.0625F, 0.00390625F, 0.0F};
  const auto payload = run.encode(x);
  EXPECT_EQ(run.decode(payload), expected);
  EXPECT_EQ(payload.size(), 8U + 4U + 4U + 7U * 4U);
  EXPECT_EQ(static_cast<int>(payload[12]), 126);
}

TEST(Vgc, NearestPowerOfTwo) {
  for (std::uint64_t i = 0; i < 200'000; ++i) {
    const auto draws = format::draw4({.seed = 3}, i);
    const float value = format::float_of((draws.bits[0] & 0x007fffffu) | (60u + draws.bits[1] % 100u) << 23);
    const double low = std::exp2(std::floor(std::log2(static_cast<double>(value))));
    const double nearest = static_cast<double>(value) < 1.5 * low ? low : 2.0 * low;
    const std::uint32_t steps = format::Vgc::steps_down(value, 200);
    ASSERT_EQ(std::exp2(73.0 - static_cast<double>(steps)), nearest) << value;
  }
}

TEST(Vgc, DecodesWithinAThirdAndClampsWithinAHalf) {
  CodecRun run{"vgc:alpha=0.5", 50'000};
  const auto x = gradient_like(50'000, 8);
  const auto y = run.decode(run.encode(x));
  float most = 0.0F;
  for (const float value : x) most = std::max(most, std::abs(value));
  const double largest = std::exp2(std::floor(std::log2(static_cast<double>(most))));
  std::size_t sent = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (y[i] == 0.0F) {
      EXPECT_LT(std::abs(static_cast<double>(x[i])), largest * 0x1.8p-8 * 1.0001);
      continue;
    }
    ++sent;
    const double ratio = static_cast<double>(y[i]) / static_cast<double>(x[i]);
    if (std::abs(static_cast<double>(x[i])) > largest) {
      EXPECT_GT(ratio, 0.5);
      EXPECT_LE(ratio, 1.0);
    } else {
      EXPECT_GE(ratio, 2.0 / 3.0 - 1e-6);
      EXPECT_LE(ratio, 4.0 / 3.0 + 1e-6);
    }
  }
  EXPECT_GT(sent, 48'000U);
}

TEST(Vgc, ScaleMovesOnlyTheExponent) {
  EncoderRun small{"vgc:alpha=1.5", Layout::flat(5000)};
  EncoderRun large{"vgc:alpha=1.5", Layout::flat(5000)};
  for (std::uint32_t step = 0; step < 6; ++step) {
    auto x = gradient_like(5000, step);
    auto moment = noisy_moment(x, 50 + step);
    const auto a = small.encode(x, {.second_moment = {moment.data(), moment.size()}});
    for (auto& value : x) value *= 0x1p12F;
    for (auto& value : moment) value *= 0x1p24F;
    auto b = large.encode(x, {.second_moment = {moment.data(), moment.size()}});
    ASSERT_EQ(a.size(), b.size());
    ASSERT_GT(a.size(), 16U);
    EXPECT_EQ(static_cast<int>(a[12]) + 12, static_cast<int>(b[12]));
    b[12] = a[12];
    EXPECT_EQ(a, b);
  }
}

TEST(Vgc, ConstantGradientsOfManySamplesAreSentAtOnce) {
  // b equal parts: r^2 / v = b.
  for (const float b : {1.0F, 2.0F, 4.0F, 64.0F}) {
    const std::vector<float> x(100, 0.5F);
    const std::vector<float> moment(100, 0.25F / b);
    EncoderRun run{"vgc:alpha=2", Layout::flat(100)};
    const auto y = run.decode(run.encode(x, {.second_moment = {moment.data(), moment.size()}}));
    for (const float value : y) EXPECT_EQ(value, b > 2.0F ? 0.5F : 0.0F) << b;
  }
}

TEST(Vgc, OneGradientPerStepTestsConsistencyOverTime) {
  // alternating signs are never sent, constant ones at the second step
  for (const char* spec : {"vgc:alpha=1", "vgc:alpha=1.5", "vgc:alpha=2"}) {
    EncoderRun run{spec, Layout::flat(2)};
    for (int step = 0; step < 3000; ++step) {
      const std::vector<float> x{step % 2 == 0 ? 0.1F : -0.1F, 0.1F};
      const auto y = run.decode(run.encode(x));
      ASSERT_EQ(y[0], 0.0F) << spec << " step " << step;
      ASSERT_EQ(y[1] != 0.0F, step % 2 == 1) << spec << " step " << step;
    }
    EXPECT_NE(run.encoder().note(), "");
  }
}

TEST(Vgc, HeldElementsBecomeEverMoreLikely) {
  // v decays while r stays: with no further gradient the element is sent once zeta^t v alpha < r^2.
  EncoderRun run{"vgc:alpha=2,zeta=0.9", Layout::flat(1)};
  int step = 0;
  for (std::vector<float> x{1.0F}; run.decode(run.encode(x))[0] == 0.0F && step < 100; ++step) x[0] = 0.0F;
  EXPECT_EQ(step, 7);  // 2 * 0.9^7 = 0.957 is the first below 1
}

TEST(Vgc, DroppedElementsAreResetOrKept) {
  const std::vector<float> x{1.0F, 0.001F};  // 10 powers of two apart
  const std::vector<float> none{0.0F, 0.0F};
  for (const bool keep : {false, true}) {
    EncoderRun run{keep ? "vgc:alpha=0.5,dropped=keep" : "vgc:alpha=0.5", Layout::flat(2)};
    EXPECT_EQ(run.decode(run.encode(x)), (std::vector<float>{1.0F, 0.0F}));
    EXPECT_EQ(run.encoder().residual()[1], keep ? 0.001F : 0.0F);
    EXPECT_EQ(run.decode(run.encode(none))[1], keep ? 0x1p-10F : 0.0F);
  }
}

TEST(Vgc, EveryTensorHasItsOwnExponent) {
  Layout two = Layout::flat(2);
  two.tensors.push_back({.shape = {2}, .first = 2, .elements = 2});
  two.elements = 4;
  EncoderRun run{"vgc:alpha=0.5", two};
  EXPECT_EQ(run.decode(run.encode(std::vector<float>{1.0F, 0.5F, 0x1p-20F, 0x1p-21F})),
            (std::vector<float>{1.0F, 0.5F, 0x1p-20F, 0x1p-21F}));
  const std::vector<float> moment{100.0F, 0.0F, 0.0F, 0.0F};
  const std::vector<float> x{1.0F, 0.004F, 1.0F, 1.0F};
  EncoderRun all{"vgc:largest=all", two};
  EncoderRun emitted{"vgc:largest=emitted", two};
  EXPECT_EQ(all.decode(all.encode(x, {.second_moment = {moment.data(), 4}}))[1], 0.0F);  // 8 powers of two below
  EXPECT_EQ(emitted.decode(emitted.encode(x, {.second_moment = {moment.data(), 4}}))[1], 0x1p-8F);
}

TEST(Vgc, HybridConservesMass) {
  const std::size_t n = 4000;
  EncoderRun run{"vgc:alpha=1,tau=0.004", Layout::flat(n)};
  std::vector<double> given(n, 0.0);
  std::vector<double> got(n, 0.0);
  std::size_t sent = 0;
  for (std::uint32_t step = 0; step < 60; ++step) {
    const auto x = gradient_like(n, step % 5);
    const auto y = run.decode(run.encode(x));
    for (std::size_t i = 0; i < n; ++i) {
      given[i] += static_cast<double>(x[i]);
      got[i] += static_cast<double>(y[i]);
      sent += y[i] != 0.0F ? 1U : 0U;
      if (y[i] != 0.0F) ASSERT_EQ(std::abs(y[i]), 0.004F);
    }
  }
  EXPECT_GT(sent, n);
  for (std::size_t i = 0; i < n; ++i)
    ASSERT_NEAR(given[i], got[i] + static_cast<double>(run.encoder().residual()[i]), 1e-5) << i;
}

TEST(Vgc, HybridVarianceFallsWithTheSquare) {
  const format::Vgc rule{.alpha = 1.0F, .tau = 0.1F};
  EXPECT_NEAR(rule.v_after_hybrid(0.5F, 1.0F), 1.0F - (0.25F - 0.16F), 1e-6F);
  EXPECT_NEAR(rule.v_after_hybrid(-0.5F, 1.0F), 1.0F - (0.25F - 0.16F), 1e-6F);
  EXPECT_EQ(rule.v_after_hybrid(0.5F, 0.01F), 0.0F);
  EXPECT_FALSE(rule.sends_hybrid(0.05F, 0.0F));     // below tau
  EXPECT_FALSE(rule.sends_hybrid(0.25F, 0.0625F));  // strict
  EXPECT_TRUE(rule.sends_hybrid(0.25F, 0.062F));
}

TEST(Vgc, RecoversFromWhatIsNotFinite) {
  for (const char* spec : {"vgc", "vgc:tau=0.01"}) {
    EncoderRun run{spec, Layout::flat(3)};
    EXPECT_TRUE(std::isnan(run.decode(run.encode(std::vector<float>{NAN, 0.0F, 0.0F}))[0]));
    EXPECT_EQ(run.encoder().residual()[0], 0.0F);
    EXPECT_TRUE(std::isnan(run.decode(run.encode(std::vector<float>{0.0F, -INFINITY, 0.0F}))[1]));
    const std::vector<float> x{0.5F, 0.5F, 0.5F};
    static_cast<void>(run.encode(x));
    for (const float value : run.decode(run.encode(x))) EXPECT_TRUE(std::isfinite(value) && value > 0.0F) << spec;
  }
}

TEST(Vgc, ResetForgets) {
  EncoderRun run{"vgc", Layout::flat(64)};
  const std::vector<float> x(64, 1.0F);
  const auto first = run.encode(x);
  run.encoder().reset({});
  EXPECT_EQ(run.encode(x), first);
  EXPECT_NE(run.encode(x), first);
}

}  // namespace
}  // namespace gradtool::test
