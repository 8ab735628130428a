#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/codecs/codec_run.hpp"
#include "tests/codecs/inputs.hpp"

namespace gradtool::test {
namespace {

TEST(Fp8, ScalesTheLargestOfABlockToTheEndOfTheRange) {
  auto x = gradient_like(256, 3);
  for (std::size_t i = 128; i < 256; ++i) x[i] *= 1024.0F;  // blocks do not disturb each other
  CodecRun run{"fp8", x.size()};
  const auto y = run.decode(run.encode(x));
  EXPECT_LT(nmse({x.begin(), x.begin() + 128}, {y.begin(), y.begin() + 128}), 0.001);
  EXPECT_LT(nmse({x.begin() + 128, x.end()}, {y.begin() + 128, y.end()}), 0.001);
}

TEST(Fp8, PutsARowsFactorBeforeItsCodes) {
  std::vector<float> x(8 + 3, 0.0F);
  x[0] = -0.875F;  // 448 / 0.875 = 512
  x[1] = 0.5F;     // 256: exponent 8 + 7, no mantissa
  x[9] = 14.0F;    // 448 / 14 = 32
  x[10] = 1.0F;    // 32: exponent 5 + 7
  CodecRun run{"fp8:scale=row,row=8", x.size()};
  const auto payload = run.encode(x);
  ASSERT_EQ(payload.size(), (4U + 8U) + (4U + 4U));
  const auto factor = [&](std::size_t offset) {
    float value = 0.0F;
    std::memcpy(&value, payload.data() + offset, sizeof value);
    return value;
  };
  EXPECT_EQ(factor(0), 512.0F);
  EXPECT_EQ(factor(12), 32.0F);
  const auto code = [&](std::size_t at) { return std::to_integer<int>(payload[at]); };
  EXPECT_EQ(code(4), 0x80 | 0x7e);
  EXPECT_EQ(code(5), 15 << 3);
  EXPECT_EQ(code(17), 0x7e);
  EXPECT_EQ(code(18), 12 << 3);
  EXPECT_EQ(code(19), 0);
  EXPECT_EQ(run.decode(payload), x);
}

/// A range of whole rows is the payload of its elements, so its owner can add it up and encode the sum alone.
TEST(Fp8, CutsBetweenRows) {
  const auto x = gradient_like(3000, 5);
  const std::size_t row = 512;
  CodecRun whole{"fp8:scale=row", x.size()};
  const auto payload = whole.encode(x);
  CodecRun tail{"fp8:scale=row", x.size() - 2 * row};
  const auto expected = tail.encode({x.data() + 2 * row, x.size() - 2 * row});
  EXPECT_EQ(std::vector<std::byte>(payload.begin() + 2 * (4 + row), payload.end()), expected);
}

TEST(Fp8, TakesAFactorOfOneWhereNoOtherIsFinite) {
  for (const float tiny : {0.0F, 1e-40F, 1e-36F}) {
    CodecRun run{"fp8:scale=row", 4};
    const std::vector<float> x(4, tiny);
    const auto payload = run.encode(x);
    float factor = 0.0F;
    std::memcpy(&factor, payload.data(), sizeof factor);
    EXPECT_EQ(factor, 1.0F);
    EXPECT_EQ(run.decode(payload), std::vector<float>(4, 0.0F));
  }
}

TEST(Fp8, HasOneScaleForTheUnit) {
  auto x = gradient_like(5000, 3);
  x[17] = -7.0F;
  CodecRun run{"fp8:scale=unit", x.size()};
  const auto payload = run.encode(x);
  EXPECT_EQ(payload.size(), 4U + 5000U);
  float scale = 0.0F;
  std::memcpy(&scale, payload.data(), sizeof scale);
  EXPECT_EQ(scale, 7.0F / 448.0F);
  EXPECT_EQ(run.decode(payload)[17], -7.0F);
}

}  // namespace
}  // namespace gradtool::test
