#include <gtest/gtest.h>

#include "tests/codecs/codec_run.hpp"
#include "tests/codecs/inputs.hpp"

namespace gradtool::test {
namespace {

float scale_of(const std::vector<std::byte>& payload, std::size_t block) {
  float scale = 0.0F;
  std::memcpy(&scale, payload.data() + 4 * block, 4);
  return scale;
}

TEST(Int8, WorkedExample) {
  // Two blocks: units of 2 and of 1/4; 5 and 0.375 are ties, which go to the even code.
  std::vector<float> x(64, 0.0F);
  x[0] = 254.0F;
  x[1] = -5.0F;
  x[2] = 3.1F;
  x[32] = -31.75F;
  x[33] = 0.375F;
  CodecRun run{"int8:block=32", x.size()};
  const auto payload = run.encode(x);
  ASSERT_EQ(payload.size(), 8U + 64U);
  EXPECT_EQ(scale_of(payload, 0), 2.0F);
  EXPECT_EQ(scale_of(payload, 1), 0.25F);
  const auto code = [&](std::size_t i) { return static_cast<int>(static_cast<std::int8_t>(payload[8 + i])); };
  EXPECT_EQ(code(0), 127);
  EXPECT_EQ(code(1), -2);
  EXPECT_EQ(code(2), 2);
  EXPECT_EQ(code(32), -127);
  EXPECT_EQ(code(33), 2);
  const auto y = run.decode(payload);
  EXPECT_EQ(y[0], 254.0F);
  EXPECT_EQ(y[1], -4.0F);
  EXPECT_EQ(y[33], 0.5F);
}

/// Two groups: the scales are 16 / -8 and -3 / -8, whose largest elements become -8 whatever their signs; 3 in the
/// second is beyond the highest code, 7.
TEST(Int8, WorkedExampleOfQuickReduce) {
  std::vector<float> x(64, 0.0F);
  x[0] = 16.0F;
  x[1] = -5.0F;  // 2.5 units: a tie, which goes to the even code
  x[2] = -15.9F;
  x[32] = -3.0F;
  x[33] = 3.0F;
  x[34] = 0.75F;
  CodecRun run{"int8:bits=4,scale=f16,block=32", x.size()};
  const auto payload = run.encode(x);
  ASSERT_EQ(payload.size(), 4U + 32U);
  const std::vector<int> scales{0x00, 0xc0, 0x00, 0x36};  // binary16 of -2 and 0.375
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(std::to_integer<int>(payload[i]), scales[i]) << i;
  EXPECT_EQ(std::to_integer<int>(payload[4]), 0x28);   // codes -8 and 2
  EXPECT_EQ(std::to_integer<int>(payload[5]), 0x07);   // 7, for 7.95
  EXPECT_EQ(std::to_integer<int>(payload[20]), 0x78);  // -8 and 7
  const auto y = run.decode(payload);
  EXPECT_EQ(y[0], 16.0F);
  EXPECT_EQ(y[1], -4.0F);
  EXPECT_EQ(y[2], -14.0F);
  EXPECT_EQ(y[32], -3.0F);
  EXPECT_EQ(y[33], 2.625F);
  EXPECT_EQ(y[34], 0.75F);
}

TEST(Int8, ScalesInBinary16SaturateAndUnderflow) {
  std::vector<float> x(96, 0.0F);
  x[0] = 1e9F;
  x[32] = 1e-8F;
  x[64] = NAN;
  CodecRun run{"int8:scale=f16,block=32", x.size()};
  const auto y = run.decode(run.encode(x));
  EXPECT_EQ(y[0], 65504.0F * 128.0F);
  EXPECT_EQ(y[32], 0.0F);
  for (std::size_t i = 0; i < 96; ++i) EXPECT_EQ(std::isnan(y[i]), i >= 64) << i;
}

TEST(Int8, CodesDoNotDependOnAFactor) {
  const auto x = gradient_like(5000, 4);
  auto scaled = x;
  for (auto& value : scaled) value *= 0x1p-20F;
  for (const char* spec : {"int8", "int8:rounding=stochastic"}) {
    CodecRun run{spec, x.size()};
    const auto one = run.decode(run.encode(x));
    const auto other = run.decode(run.encode(scaled));
    for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(other[i], one[i] * 0x1p-20F) << spec << " " << i;
  }
}

/// An element's place between two codes is uniform: the squared error is unit^2/12, and unit^2/6 when it is drawn.
TEST(Int8, ErrorIsThatOfAUniformPlaceBetweenCodes) {
  const std::size_t n = 1 << 16;
  const auto x = gradient_like(n, 6);
  for (const bool stochastic : {false, true}) {
    CodecRun run{stochastic ? "int8:rounding=stochastic" : "int8", n};
    const auto payload = run.encode(x);
    const auto y = run.decode(payload);
    double squares = 0.0;
    double expected = 0.0;
    for (std::size_t i = 0; i < n; ++i) {
      const double unit = static_cast<double>(scale_of(payload, i / 2048));
      squares += std::pow(static_cast<double>(x[i]) - static_cast<double>(y[i]), 2);
      expected += unit * unit / (stochastic ? 6.0 : 12.0);
    }
    EXPECT_NEAR(squares, expected, 0.03 * expected) << stochastic;
  }
}

TEST(Int8, StochasticRoundingIsUnbiased) {
  const std::size_t n = 2048;
  const auto x = gradient_like(n, 2);
  CodecRun run{"int8:rounding=stochastic", n};
  std::vector<double> sum(n, 0.0);
  constexpr int kSeeds = 400;
  float unit = 0.0F;
  for (int seed = 0; seed < kSeeds; ++seed) {
    const auto payload = run.encode(x, {.key = {.seed = static_cast<std::uint64_t>(seed)}});
    unit = scale_of(payload, 0);
    const auto y = run.decode(payload);
    for (std::size_t i = 0; i < n; ++i) sum[i] += static_cast<double>(y[i]);
  }
  // A draw has at most half a unit of deviation: its mean over the seeds, 1/40 of a unit. Five of these.
  for (std::size_t i = 0; i < n; ++i)
    ASSERT_NEAR(sum[i] / kSeeds, static_cast<double>(x[i]), 5.0 * static_cast<double>(unit) / 40.0) << i;
}

TEST(Int8, ABlockWithoutANumberDoesNotTouchItsNeighbours) {
  auto x = gradient_like(96, 2);
  x[40] = NAN;
  CodecRun run{"int8:block=32", x.size()};
  const auto y = run.decode(run.encode(x));
  for (std::size_t i = 0; i < 96; ++i) EXPECT_EQ(std::isnan(y[i]), i / 32 == 1) << i;
}

}  // namespace
}  // namespace gradtool::test
