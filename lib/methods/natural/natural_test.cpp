#include "lib/methods/natural/format.hpp"

#include <gtest/gtest.h>

#include "tests/codecs/codec_run.hpp"
#include "tests/codecs/inputs.hpp"

namespace gradtool::test {
namespace {

using format::Natural;

constexpr std::uint32_t kHighest = 0xffffffffU;  // the draw that rounds up whatever can be

TEST(Natural, WorkedExample) {
  const auto value = [](float x, std::uint32_t draw) {
    return Natural::value(Natural::exponent(x, draw), format::bits_of(x) >> 31);
  };
  for (const float power : {1.0F, -0.25F, 0x1p-126F, 0x1p127F}) {  // powers of two stay, whatever is drawn
    EXPECT_EQ(value(power, 0), power);
    EXPECT_EQ(value(power, kHighest), power);
  }
  EXPECT_EQ(value(2.5F, 0xbfffffffU), 2.0F);  // 2.5 = 2 (1 + 1/4): up for the upper quarter of draws
  EXPECT_EQ(value(2.5F, 0xc0000000U), 4.0F);
  EXPECT_EQ(value(-2.5F, 0xc0000000U), -4.0F);
  EXPECT_EQ(value(0.0F, kHighest), 0.0F);
  EXPECT_EQ(value(0x1p-127F, 0x7fffffffU), 0.0F);  // subnormal, half way to 2^-126
  EXPECT_EQ(value(0x1p-127F, 0x80000000U), 0x1p-126F);
  EXPECT_EQ(value(0x1.8p127F, kHighest), 0x1p127F);
  EXPECT_TRUE(std::isinf(value(INFINITY, 0)));
  EXPECT_FALSE(std::isfinite(value(NAN, kHighest)));
}

TEST(Natural, ResultsArePowersOfTwoOfTheSameSign) {
  const auto x = gradient_like(5000, 3);
  CodecRun run{"natural", x.size()};
  const auto y = run.decode(run.encode(x));
  for (std::size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(format::bits_of(y[i]) & 0x007fffffU, 0U);
    EXPECT_EQ(std::signbit(y[i]), std::signbit(x[i]));
  }
}

TEST(Natural, CodesMoveWithAPowerOfTwoOnly) {
  auto x = gradient_like(5000, 3);
  CodecRun run{"natural", x.size()};
  const auto y = run.decode(run.encode(x));
  for (auto& value : x) value *= 0x1p-9F;
  const auto scaled = run.decode(run.encode(x));
  for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(scaled[i], y[i] * 0x1p-9F);
}

/// E (x - y)^2 = 2^2a f (1 - f), at most x^2 / 8.
TEST(Natural, ErrorIsThatOfStochasticRounding) {
  const std::size_t n = 1 << 16;
  const auto x = gradient_like(n, 9);
  CodecRun run{"natural", n};
  double expected = 0.0;
  double energy = 0.0;
  for (const float value : x) {
    if (value == 0.0F) continue;
    const double power = std::exp2(std::ilogb(value));
    const double f = std::abs(static_cast<double>(value)) / power - 1.0;
    expected += power * power * f * (1.0 - f);
    energy += static_cast<double>(value) * static_cast<double>(value);
  }
  EXPECT_LT(expected / energy, 0.125);
  EXPECT_NEAR(nmse(x, run.decode(run.encode(x))), expected / energy, 0.03 * expected / energy);
}

TEST(Natural, SubnormalValuesKeepTheirMean) {
  const std::size_t n = 1 << 14;
  const std::vector<float> x(n, 0x1p-128F);  // a quarter of 2^-126
  CodecRun run{"natural", n};
  double sum = 0.0;
  for (const float value : run.decode(run.encode(x))) sum += static_cast<double>(value) * 0x1p126;
  EXPECT_NEAR(sum / static_cast<double>(n), 0.25, 5.0 * std::sqrt(0.25 * 0.75 / static_cast<double>(n)));
}

}  // namespace
}  // namespace gradtool::test
