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
