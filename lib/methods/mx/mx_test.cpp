#include <gtest/gtest.h>

#include <cmath>

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

}  // namespace
}  // namespace gradtool::test
