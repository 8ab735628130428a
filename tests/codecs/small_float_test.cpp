// Small floating-point formats against their definition, by exhaustion, and the block codecs built on them.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/law/small_float.hpp"
#include "tests/codecs/codec_run.hpp"
#include "tests/codecs/inputs.hpp"

namespace gradtool::test {
namespace {

struct Named {
  const char* name;
  law::SmallFloat format;
  int exponent_bits;
  double largest;
};
const Named kFormats[]{{"e4m3", law::kE4M3, 4, 448},
                       {"e5m2", law::kE5M2, 5, 57344},
                       {"e3m2", law::kE3M2, 3, 28},
                       {"e2m3", law::kE2M3, 2, 7.5},
                       {"e2m1", law::kE2M1, 2, 6}};

/// A code's value from the definition of the format.
double defined(const Named& f, std::uint32_t code) {
  const auto mantissa = static_cast<int>(f.format.mantissa);
  const auto exponent = static_cast<int>(code >> mantissa);
  const double fraction = static_cast<double>(code & ((1U << mantissa) - 1U)) / static_cast<double>(1U << mantissa);
  return exponent == 0 ? std::ldexp(fraction, 1 - f.format.bias) : std::ldexp(1.0 + fraction, exponent - f.format.bias);
}

TEST(SmallFloat, CodesHaveTheirValuesAndReadBack) {
  for (const auto& f : kFormats) {
    EXPECT_EQ(f.format.bits, 1U + static_cast<std::uint32_t>(f.exponent_bits) + f.format.mantissa) << f.name;
    EXPECT_EQ(defined(f, f.format.max_code), f.largest) << f.name;
    EXPECT_EQ(f.format.largest_exponent, std::ilogb(f.largest)) << f.name;
    const std::uint32_t sign = 1U << (f.format.bits - 1);
    for (std::uint32_t code = 0; code <= f.format.max_code; ++code) {
      const auto value = static_cast<double>(f.format.value(code));
      ASSERT_EQ(value, defined(f, code)) << f.name << " " << code;
      ASSERT_EQ(f.format.nearest(static_cast<float>(value)), code) << f.name;
      ASSERT_EQ(f.format.value(code | sign), -static_cast<float>(value)) << f.name;
      ASSERT_EQ(f.format.nearest(-static_cast<float>(value)), code | sign) << f.name;
    }
  }
}

TEST(SmallFloat, RoundsToNearestEvenAndSaturates) {
  for (const auto& f : kFormats) {
    for (std::uint32_t code = 0; code < f.format.max_code; ++code) {
      const double low = defined(f, code);
      const double high = defined(f, code + 1);
      const auto middle = static_cast<float>((low + high) / 2);  // exact: one more bit
      EXPECT_EQ(f.format.nearest(middle), code + code % 2) << f.name << " " << code;
      EXPECT_EQ(f.format.nearest(std::nextafter(middle, 0.0F)), code) << f.name << " " << code;
      EXPECT_EQ(f.format.nearest(std::nextafter(middle, 1e30F)), code + 1) << f.name << " " << code;
      const auto third = static_cast<float>(low + 0.25 * (high - low));
      EXPECT_EQ(f.format.stochastic(third, 0), code);
      EXPECT_EQ(f.format.stochastic(third, 0xffffffffU), code + 1) << f.name << " " << code;
      EXPECT_EQ(f.format.stochastic(third, 0xBF000000U), code);  // up when u >= 3/4
      EXPECT_EQ(f.format.stochastic(third, 0xC1000000U), code + 1) << f.name << " " << code;
    }
    for (const float big : {static_cast<float>(f.largest) * 1.01F, 1e30F, std::numeric_limits<float>::max()}) {
      EXPECT_EQ(f.format.nearest(big), f.format.max_code) << f.name;
      EXPECT_EQ(f.format.stochastic(big, 0xffffffffU), f.format.max_code) << f.name;
    }
  }
}

TEST(SmallFixed, IsTwosComplementWithSixFractionalBits) {
  const law::SmallFixed format;
  for (int q = -127; q <= 127; ++q) {
    const auto x = static_cast<float>(q) / 64.0F;
    EXPECT_EQ(format.value(format.nearest(x)), x);
    EXPECT_EQ(format.value(format.stochastic(x, 0x12345678U)), x);
    if (q == 127) continue;
    const float tie = x + 0.5F / 64.0F;
    const int even = q % 2 == 0 ? q : q + 1;
    EXPECT_EQ(format.value(format.nearest(tie)), static_cast<float>(even) / 64.0F) << q;
  }
  EXPECT_EQ(format.value(format.nearest(1.999F)), 127.0F / 64.0F);
  EXPECT_EQ(format.value(format.nearest(-2.0F)), -127.0F / 64.0F);
}

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

TEST(Fp8, ScalesTheLargestOfABlockToTheEndOfTheRange) {
  auto x = gradient_like(256, 3);
  for (std::size_t i = 128; i < 256; ++i) x[i] *= 1024.0F;  // blocks do not disturb each other
  CodecRun run{"fp8", x.size()};
  const auto y = run.decode(run.encode(x));
  EXPECT_LT(nmse({x.begin(), x.begin() + 128}, {y.begin(), y.begin() + 128}), 0.001);
  EXPECT_LT(nmse({x.begin() + 128, x.end()}, {y.begin() + 128, y.end()}), 0.001);
}

}  // namespace
}  // namespace gradtool::test
