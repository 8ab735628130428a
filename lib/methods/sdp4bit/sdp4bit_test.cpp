#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "tests/codecs/codec_run.hpp"
#include "tests/codecs/inputs.hpp"

namespace gradtool::test {
namespace {

float float_at(const std::vector<std::byte>& payload, std::size_t at) {
  float value = 0.0F;
  std::memcpy(&value, payload.data() + at, sizeof value);
  return value;
}

/// Computed by hand: the largest is 7, so the unit is 1, and ties go to even codes.
TEST(Sdp4bit, WritesTheBytesOfTheFormat) {
  std::vector<float> x(40, 0.0F);
  x[0] = 7.0F;
  x[1] = -7.0F;
  x[2] = 2.5F;
  x[3] = -3.5F;
  x[4] = 0.5F;
  x[39] = -1.0F;
  CodecRun run{"sdp4bit:hadamard=off,block=32", x.size()};
  const auto payload = run.encode(x);
  ASSERT_EQ(payload.size(), 2U * 4U + 20U);
  EXPECT_EQ(float_at(payload, 0), 1.0F);
  EXPECT_EQ(float_at(payload, 4), 1.0F / 7.0F);
  const std::vector<int> expected{0x97, 0xc2, 0x00};
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_EQ(std::to_integer<int>(payload[8 + i]), expected[i]) << "byte " << 8 + i;
  EXPECT_EQ(std::to_integer<int>(payload[27]), 0x90) << "the last code is -7";
  const auto y = run.decode(payload);
  EXPECT_EQ((std::vector<float>{y[0], y[1], y[2], y[3], y[4]}), (std::vector<float>{7.0F, -7.0F, 2.0F, -4.0F, 0.0F}));
}

/// A single element becomes a column of the Hadamard matrix: all codes are 7 or -7, so nothing is lost, and the signs
/// say which matrix it is.
TEST(Sdp4bit, RotatesByTheHadamardMatrixInNaturalOrder) {
  for (std::size_t column = 0; column < 32; ++column) {
    std::vector<float> x(32, 0.0F);
    x[column] = 8.0F;
    CodecRun run{"sdp4bit", x.size()};
    const auto payload = run.encode(x);
    EXPECT_NEAR(float_at(payload, 0), 8.0 / std::sqrt(32.0) / 7.0, 1e-7);
    for (std::size_t row = 0; row < 32; ++row) {
      const int code = std::to_integer<int>(payload[4 + row / 2]) >> (4 * (row % 2)) & 0xf;
      ASSERT_EQ(code, __builtin_popcountll(row & column) % 2 == 0 ? 7 : 9) << row << " " << column;
    }
    const auto y = run.decode(payload);
    for (std::size_t i = 0; i < 32; ++i) ASSERT_NEAR(y[i], x[i], 1e-5F);
  }
}

/// 32 equal elements are one large rotated one: nothing else in their block survives 4 bits if it is small. The last
/// elements, fewer than 32, are sent as they are.
TEST(Sdp4bit, LeavesAShortLastGroupAsItIs) {
  std::vector<float> x(32 + 5, 0.0F);
  std::fill_n(x.begin(), 32, 1.0F);
  for (std::size_t i = 32; i < x.size(); ++i)
    x[i] = static_cast<float>(std::sqrt(32.0) / 7.0) * (static_cast<float>(i) - 34.0F);
  CodecRun run{"sdp4bit", x.size()};
  const auto payload = run.encode(x);
  EXPECT_EQ(std::to_integer<int>(payload[4]), 0x07);
  EXPECT_EQ(std::to_integer<int>(payload[4 + 16]), 0xfe) << "-2 and -1 units";
  const auto y = run.decode(payload);
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(y[i], x[i], 1e-6F) << i;
}

/// A normal element in a block of 128 errs by unit^2/12 on average, and units follow from the block's largest: 0.0138
/// of the energy by a NumPy program with 2 million elements; 8 bits have (7/127)^2 of it. Rotation changes nothing
/// here, and rounding stochastically doubles it.
TEST(Sdp4bit, ErrsOnNormalValuesAsTheFormatPredicts) {
  const auto drawn = normal(200'000, 3);
  const std::vector<float> x(drawn.begin(), drawn.end());
  const auto error = [&](const char* spec) {
    CodecRun run{spec, x.size()};
    return nmse(x, run.decode(run.encode(x)));
  };
  const double four = error("sdp4bit");
  EXPECT_GT(four, 0.0133);
  EXPECT_LT(four, 0.0143);
  EXPECT_NEAR(error("sdp4bit:hadamard=off") / four, 1.0, 0.03);
  EXPECT_NEAR(error("sdp4bit:bits=8") / four, 49.0 / 16129.0, 0.0002);
  EXPECT_NEAR(error("sdp4bit:rounding=stochastic") / four, 2.0, 0.1);
}

TEST(Sdp4bit, KeepsTheLargestFloatFinite) {
  const std::vector<float> x(40, std::numeric_limits<float>::max());
  for (const char* spec : {"sdp4bit:bits=8,hadamard=off", "sdp4bit:hadamard=off", "int8"}) {
    CodecRun run{spec, x.size()};
    for (const float value : run.decode(run.encode(x))) EXPECT_NEAR(value / x[0], 1.0F, 1e-6F) << spec;
  }
}

TEST(Sdp4bit, RoundsWithoutBias) {
  auto x = gradient_like(64, 9);
  x[5] = 0.1F;
  double largest_bias = 0.0;
  CodecRun run{"sdp4bit:rounding=stochastic", x.size()};
  std::vector<float> sum(x.size(), 0.0F);
  const std::uint32_t steps = 4000;
  for (std::uint32_t step = 0; step < steps; ++step)
    run.decode_add(run.encode(x, {.key = {.seed = 1, .step = step}}), 1.0F / static_cast<float>(steps), sum);
  for (std::size_t i = 0; i < x.size(); ++i)
    largest_bias = std::max(largest_bias, std::abs(static_cast<double>(sum[i]) - static_cast<double>(x[i])));
  // A unit is about 0.1 / sqrt(32) / 7 = 0.0025, its error at most half of it, and a rotation keeps it: 2e-5 is a
  // standard error.
  EXPECT_LT(largest_bias, 1e-4);
}

/// Without signs elements that are alike become one large one, which makes the block's unit large: 0.0498
/// by a NumPy program, and about 0.0153 with signs.
TEST(Sdp4bit, SpreadsACommonPartByItsSigns) {
  std::vector<float> x(32 * 500);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = 2.0F * uniform_at(7, i);
  const auto error = [&](const char* spec) {
    CodecRun run{spec, x.size()};
    return nmse(x, run.decode(run.encode(x)));
  };
  EXPECT_NEAR(error("sdp4bit"), 0.0498, 0.003);
  EXPECT_LT(error("sdp4bit:seed=42"), 0.03);
}

/// An outlier in every 32 elements hides its neighbours from 4 bits, unless it is spread.
TEST(Sdp4bit, KeepsMoreOfAnOutliersNeighboursWhereItRotates) {
  auto x = gradient_like(32 * 500, 5);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = i % 32 == 3 ? 1.0F : x[i] > 0.0F ? 0.04F : -0.04F;
  const auto lost = [&](const char* spec) {
    CodecRun run{spec, x.size()};
    const auto y = run.decode(run.encode(x));
    double error = 0.0;
    for (std::size_t i = 0; i < x.size(); ++i) error += i % 32 == 3 ? 0.0 : (x[i] - y[i]) * (x[i] - y[i]);
    return error / (0.0016 * 31 * 500);
  };
  EXPECT_NEAR(lost("sdp4bit:hadamard=off"), 1.0, 1e-6);
  EXPECT_NEAR(lost("sdp4bit"), 0.076, 0.015);  // 0.076 by a NumPy program
}

}  // namespace
}  // namespace gradtool::test
