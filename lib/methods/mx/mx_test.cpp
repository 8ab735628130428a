#include <gtest/gtest.h>

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "tests/codecs/codec_run.hpp"
#include "tests/codecs/inputs.hpp"

namespace gradtool::test {
namespace {

TEST(Mx, ScaleIsThePowerOfTwoOfTheStandard) {
  // floor(log2 largest) - emax: for E4M3 (emax 8) and a largest element of 1.75 * 2^3, the scale is 2^-5.
  std::vector<float> x(32, 0.0F);
  x[3] = -14.0F;
  CodecRun run{"mx:format=e4m3", 32};
  EXPECT_EQ(std::to_integer<int>(run.encode(x)[0]), 127 - 5);
  EXPECT_EQ(run.decode(run.encode(x)), x);  // 448 units: the largest value, exactly
  x[3] = -15.9F;                            // 508.8 units saturate
  EXPECT_EQ(run.decode(run.encode(x))[3], -14.0F);
}

TEST(Mx, EveryScaleIsExactFromTheSmallestToTheLargestGradient) {
  for (int exponent = -110; exponent <= 110; exponent += 5) {
    std::vector<float> x(64);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::ldexp(static_cast<float>(i % 8), exponent);
    CodecRun run{"mx:format=e4m3", x.size()};  // 0..7 fit in 3 mantissa bits
    EXPECT_EQ(run.decode(run.encode(x)), x) << exponent;
  }
}

const std::vector<float> kE3M0Values{0.0F,  0.25F,  0.5F,  1.0F,  2.0F,  4.0F,  8.0F,  16.0F,
                                     -0.0F, -0.25F, -0.5F, -1.0F, -2.0F, -4.0F, -8.0F, -16.0F};

TEST(Mx, WritesAllSixteenCodesOfE3M0) {
  for (const char* spec : {"mx:format=e3m0", "mx:format=e3m0,scale=unit", "mx:format=e3m0,rounding=stochastic"}) {
    for (const int exponent : {-80, 0, 100}) {
      std::vector<float> x = kE3M0Values;
      for (auto& value : x) value = std::ldexp(value, exponent);
      CodecRun run{spec, x.size()};
      const auto payload = run.encode(x);
      ASSERT_EQ(payload.size(), 4U + 8U) << spec;
      float unit = 0.0F;
      std::memcpy(&unit, payload.data(), sizeof unit);
      if (run.spec().params.is("scale", "unit"))
        EXPECT_EQ(unit, std::ldexp(1.0F, exponent));
      else
        EXPECT_EQ(std::to_integer<int>(payload[0]), 127 + exponent) << spec;
      for (std::size_t i = 0; i < 8; ++i)  // codes 0 to 15, the first of a byte in its low half
        EXPECT_EQ(std::to_integer<std::size_t>(payload[4 + i]), 2 * i + 16 * (2 * i + 1)) << spec;
      EXPECT_EQ(run.decode(payload), x) << spec;
    }
  }
}

TEST(Mx, KeepsTheLargestFloatsFinite) {
  for (const char* type : {"e4m3", "e5m2", "e3m2", "e2m3", "e2m1", "e3m0", "int8"}) {
    for (const char* scale : {"block", "unit"}) {
      const std::vector<float> x{std::numeric_limits<float>::max(), -3e38F, 0x1.8p127F, 0x1p126F};
      CodecRun run{fmt::format("mx:format={},scale={}", type, scale), x.size()};
      const auto y = run.decode(run.encode(x));
      for (std::size_t i = 0; i < x.size(); ++i)
        EXPECT_NEAR(y[i] / x[i], 1.0F, 0.5F) << run.spec().params_text() << " " << i;
      EXPECT_EQ(y[3], x[3]) << run.spec().params_text();
    }
  }
}

TEST(Mx, RoundsE3M0ToTheNearestPowerOfTwo) {
  std::vector<float> x(32, 0.0F);
  x[0] = 16.0F;  // the scale is 1
  x[1] = 1.49F;
  x[2] = 1.5F;  // halfway between codes 3 and 4
  x[3] = 3.0F;  // halfway between codes 4 and 5
  x[4] = 0.125F;
  x[5] = 0.126F;
  x[6] = -11.9F;
  CodecRun run{"mx:format=e3m0", x.size()};
  const auto y = run.decode(run.encode(x));
  EXPECT_EQ(std::vector<float>(y.begin(), y.begin() + 7),
            (std::vector<float>{16.0F, 1.0F, 2.0F, 2.0F, 0.0F, 0.25F, -8.0F}));
}

TEST(Mx, TakesForE3M0ThePowerOfTwoNearestToTheLargest) {
  for (const char* spec : {"mx:format=e3m0", "mx:format=e3m0,scale=unit"}) {
    for (const auto& [largest, decoded] : {std::pair{1.0F, 1.0F}, {1.49F, 1.0F}, {1.51F, 2.0F}, {1.99F, 2.0F}}) {
      CodecRun run{spec, 1};
      EXPECT_EQ(run.decode(run.encode(std::vector<float>{-largest}))[0], -decoded) << spec << " " << largest;
    }
  }
}

// The mean of many stochastic roundings is the element; 3000 of them are within 5 standard errors.
TEST(Mx, RoundsE3M0WithoutBias) {
  const std::vector<float> x{16.0F, 5.0F, -0.07F, 11.0F};
  CodecRun run{"mx:format=e3m0,rounding=stochastic,scale=unit", x.size()};
  std::vector<float> sum(x.size(), 0.0F);
  const std::uint32_t steps = 3000;
  for (std::uint32_t step = 0; step < steps; ++step)
    run.decode_add(run.encode(x, {.key = {.seed = 1, .step = step}}), 1.0F / static_cast<float>(steps), sum);
  EXPECT_NEAR(sum[1], 5.0, 5.0 * std::sqrt(1.0 * 3.0 / steps));      // 4 or 8
  EXPECT_NEAR(sum[2], -0.07, 5.0 * std::sqrt(0.07 * 0.18 / steps));  // 0 or -1/4
  EXPECT_NEAR(sum[3], 11.0, 5.0 * std::sqrt(3.0 * 5.0 / steps));     // 8 or 16
}

TEST(Mx, HasOneScaleForTheUnit) {
  auto x = gradient_like(5000, 3);
  x[4999] = 14.0F;  // 448 units of 2^-5
  CodecRun run{"mx:format=e4m3,scale=unit", x.size()};
  const auto payload = run.encode(x);
  EXPECT_EQ(payload.size(), 4U + 5000U);
  float unit = 0.0F;
  std::memcpy(&unit, payload.data(), sizeof unit);
  EXPECT_EQ(unit, 0x1p-5F);
  const auto y = run.decode(payload);
  EXPECT_EQ(y[4999], 14.0F);
  for (std::size_t i = 0; i < 4999; ++i) ASSERT_NEAR(y[i], x[i], 0x1p-15 + std::abs(x[i]) / 16) << i;
}

}  // namespace
}  // namespace gradtool::test
