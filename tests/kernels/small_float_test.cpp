// Small floating-point types against their definition, by exhaustion.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/small_float.hpp"

namespace gradtool::test {
namespace {

struct Named {
  const char* name;
  format::SmallFloat format;
  int exponent_bits;
  double largest;
};
const Named kFormats[]{{"e4m3", format::kE4M3, 4, 448}, {"e5m2", format::kE5M2, 5, 57344},
                       {"e3m2", format::kE3M2, 3, 28},  {"e2m3", format::kE2M3, 2, 7.5},
                       {"e2m1", format::kE2M1, 2, 6},   {"e3m0", format::kE3M0, 3, 16}};

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
  const format::SmallFixed format;
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

}  // namespace
}  // namespace gradtool::test
