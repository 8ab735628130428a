#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "lib/codecs/block_codec.hpp"
#include "lib/core/error.hpp"
#include "tests/codecs/codec_run.hpp"
#include "tests/codecs/inputs.hpp"

namespace gradtool::test {
namespace {

float unit_of(const std::vector<std::byte>& payload) {
  float unit = 0.0F;
  std::memcpy(&unit, payload.data(), sizeof unit);
  return unit;
}

std::vector<float> normal_values(std::size_t n) {
  std::vector<float> x(n);
  for (std::size_t i = 0; i < n; ++i) {  // Box and Muller
    const double u = uniform_at(3, 2 * i);
    const double v = uniform_at(3, 2 * i + 1);
    x[i] = static_cast<float>(std::sqrt(-2.0 * std::log(u + 1e-9)) * std::cos(6.283185307179586 * v));
  }
  return x;
}

/// Computed by hand: the largest is 6 * 448, so the unit is 1 and the scales of the blocks are 448 and 1.
TEST(Nvfp4, WritesTheBytesOfTheFormat) {
  std::vector<float> x(32, 0.0F);
  const std::vector<float> first{2688, 448, 672, -896, 1344, 1792, 224, -0.0F};     // 6 1 1.5 -2 3 4 0.5 -0
  const std::vector<float> second{6, 5, 0.25F, 0.75F, 2.5F, -3.5F, 1.25F, -1.75F};  // ties go to even codes
  std::copy(first.begin(), first.end(), x.begin());
  std::copy(second.begin(), second.end(), x.begin() + 16);
  CodecRun run{"nvfp4", x.size()};
  const auto payload = run.encode(x);
  ASSERT_EQ(payload.size(), 4U + 4U + 16U);
  EXPECT_EQ(unit_of(payload), 1.0F);
  const std::vector<int> expected{0x7e, 0x38, 0, 0, 0x27, 0xc3, 0x65, 0x81, 0, 0, 0, 0, 0x67, 0x20, 0xe4, 0xc2};
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_EQ(std::to_integer<int>(payload[4 + i]), expected[i]) << "byte " << 4 + i;
  const auto y = run.decode(payload);
  EXPECT_EQ(std::vector<float>(y.begin(), y.begin() + 8), first);
  EXPECT_EQ(std::vector<float>(y.begin() + 16, y.begin() + 24), (std::vector<float>{6, 4, 0, 1, 2, -4, 1, -2}));
}

TEST(Nvfp4, TakesFourAndAHalfBits) {
  const auto bytes = [](std::size_t n) { return CodecRun("nvfp4", n).footprint().payload_bytes; };
  EXPECT_EQ(bytes(1 << 20), 4U + (1U << 20) / 2 + (1U << 20) / 16);
  EXPECT_EQ(bytes(0), 0U);
  EXPECT_EQ(bytes(1), 4U + 4U + 4U);
}

/// A block far below the unit's largest keeps its own scale, down to 2^-9 of the scales' unit; below half of that it
/// is zero.
TEST(Nvfp4, KeepsSmallBlocksAsFarAsTheirScaleReaches) {
  std::vector<float> x(48, 0.0F);
  x[0] = 2688.0F;
  x[16] = -6.0F * 0x1p-9F;
  x[32] = 6.0F * 0x1p-11F;
  CodecRun run{"nvfp4", x.size()};
  const auto y = run.decode(run.encode(x));
  EXPECT_EQ(y[0], x[0]);
  EXPECT_EQ(y[16], x[16]);
  EXPECT_EQ(y[32], 0.0F);
}

/// For a block scaled to its largest the error of normal numbers is about a hundredth of their energy: 0.0089 of
/// 64 million elements by a NumPy program with exact scales. A wrong table or a scale for the unit alone has
/// at least twice as much.
TEST(Nvfp4, ErrsOnNormalValuesAsTheFormatPredicts) {
  const auto x = normal_values(100'000);
  for (const char* spec : {"nvfp4", "nvfp4:hadamard=on"}) {
    CodecRun run{spec, x.size()};
    const double error = nmse(x, run.decode(run.encode(x)));
    EXPECT_GT(error, 0.0080) << spec;
    EXPECT_LT(error, 0.0100) << spec;
  }
}

TEST(Nvfp4, RoundsWithoutBias) {
  std::vector<float> x(32, 0.0F);
  x[0] = 6.0F;
  x[1] = 5.0F;
  x[2] = -0.1F;
  x[3] = 2.75F;
  for (const char* spec : {"nvfp4:rounding=stochastic", "nvfp4:rounding=stochastic,hadamard=on"}) {
    CodecRun run{spec, x.size()};
    std::vector<float> sum(x.size(), 0.0F);
    const std::uint32_t steps = 4000;
    for (std::uint32_t step = 0; step < steps; ++step)
      run.decode_add(run.encode(x, {.key = {.seed = 1, .step = step}}), 1.0F / static_cast<float>(steps), sum);
    // Steps are 2 at most, so a standard error is at most 1 / sqrt(4000).
    for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(sum[i], x[i], 0.08) << spec << " " << i;
  }
}

/// Results of many steps, each with draws of its own.
struct ManySteps {
  double error = 0.0;          ///< mean over steps of the NMSE
  double error_of_mean = 0.0;  ///< NMSE of the mean over steps
  double length = 0.0;         ///< of the mean, along the gradient and in its units
};
ManySteps many_steps(const std::string& spec, const std::vector<float>& x, std::uint32_t steps) {
  CodecRun run{spec, x.size()};
  std::vector<double> sum(x.size(), 0.0);
  ManySteps out;
  for (std::uint32_t step = 0; step < steps; ++step) {
    const auto y = run.decode(run.encode(x, {.key = {.seed = 5, .step = step}}));
    for (std::size_t i = 0; i < x.size(); ++i) sum[i] += y[i];
    out.error += nmse(x, y) / steps;
  }
  double energy = 0.0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double mean = sum[i] / steps;
    out.length += mean * x[i];
    out.error_of_mean += (mean - x[i]) * (mean - x[i]);
    energy += static_cast<double>(x[i]) * x[i];
  }
  out.length /= energy;
  out.error_of_mean /= energy;
  return out;
}

/// A program in NumPy with exact arithmetic has an error of 0.0098 where stochastic rounding has 0.0188, and a length
/// of 1 within its standard error. Without a bias the error of the mean over T steps is that of a step over T. The mean
/// of stochastic rounding is 0.3 % too short, because the largest elements of blocks saturate.
TEST(Nvfp4, EdenIsUnbiasedWithHalfTheErrorOfStochasticRounding) {
  const auto x = normal_values(64 * 128);
  const std::uint32_t steps = 400;
  const ManySteps eden = many_steps("nvfp4:rounding=eden", x, steps);
  const ManySteps stochastic = many_steps("nvfp4:rounding=stochastic", x, steps);
  EXPECT_NEAR(eden.error, 0.0098, 0.0004);
  EXPECT_GT(stochastic.error / eden.error, 1.8);
  EXPECT_NEAR(eden.length, 1.0, 5e-4);
  EXPECT_LT(stochastic.length, 0.998);
  EXPECT_NEAR(eden.error_of_mean * steps / eden.error, 1.0, 0.1);
}

/// Elements behind the last 128 are not rotated. Nothing saturates there, and blocks that are far smaller than the unit
/// are not lost.
TEST(Nvfp4, EdenIsUnbiasedBehindTheLastGroup) {
  auto x = normal_values(100);
  for (std::size_t i = 48; i < 64; ++i) x[i] *= 1e-7F;
  const std::uint32_t steps = 4000;
  const ManySteps eden = many_steps("nvfp4:rounding=eden", x, steps);
  EXPECT_NEAR(eden.length, 1.0, 2e-3);
  EXPECT_NEAR(eden.error_of_mean * steps / eden.error, 1.0, 0.25);
  CodecRun run{"nvfp4:rounding=eden", x.size()};
  std::vector<float> mean(x.size(), 0.0F);
  for (std::uint32_t step = 0; step < steps; ++step)
    run.decode_add(run.encode(x, {.key = {.step = step}}), 1.0F / static_cast<float>(steps), mean);
  EXPECT_GT(*std::max_element(mean.begin() + 48, mean.begin() + 64), 0.0F);
}

TEST(Nvfp4, EdenTurnsAnewInEveryStepAndOnEveryRank) {
  const auto x = gradient_like(256, 2);
  CodecRun run{"nvfp4:rounding=eden", x.size()};
  const auto seed_of = [&](const format::DrawKey& key) {
    std::uint32_t seed = 0;
    std::memcpy(&seed, run.encode(x, {.key = key}).data() + 4, sizeof seed);
    return seed;
  };
  const std::uint32_t first = seed_of({.seed = 1});
  EXPECT_EQ(first, seed_of({.seed = 1}));
  EXPECT_NE(first, seed_of({.seed = 1, .step = 1}));
  EXPECT_NE(first, seed_of({.seed = 1, .rank = 1}));
  EXPECT_NE(first, seed_of({.seed = 1, .tensor = 1}));
  EXPECT_EQ(run.footprint().payload_bytes, CodecRun("nvfp4", x.size()).footprint().payload_bytes + 4);
}

/// A search over hadamard with rounding=eden finds the same twice, and no error.
TEST(Nvfp4, EdenTakesNoOtherRotation) {
  const auto x = gradient_like(1000, 2);
  CodecRun run{"nvfp4:rounding=eden", x.size()};
  CodecRun both{"nvfp4:rounding=eden,hadamard=on", x.size()};
  EXPECT_EQ(both.encode(x), run.encode(x));
  EXPECT_EQ(both.decode(both.encode(x)), run.decode(run.encode(x)));
}

template <class Rotation>
void expect_hadamard(const Rotation& rotation) {
  constexpr std::size_t kSize = Rotation::kSize;
  const float all = 1.0F / Rotation::kNorm;
  std::array<float, kSize> signs;
  for (std::size_t column = 0; column < kSize; ++column) {
    float x[kSize]{};
    x[column] = all;
    detail::rotate(detail::RotationFactors<format::Way::forward, Rotation>{rotation}, x, kSize);
    signs[column] = x[0];  // the first row of a Hadamard matrix is ones
    ASSERT_NEAR(std::abs(x[0]), 1.0F, 1e-6);
    for (std::size_t row = 0; row < kSize; ++row)
      ASSERT_EQ(x[row], signs[column] * (__builtin_popcountll(row & column) % 2 == 0 ? 1.0F : -1.0F));
    detail::rotate(detail::RotationFactors<format::Way::inverse, Rotation>{rotation}, x, kSize);
    for (std::size_t i = 0; i < kSize; ++i) ASSERT_NEAR(x[i], i == column ? all : 0.0F, 1e-5);
  }
  EXPECT_GT(*std::max_element(signs.begin(), signs.end()), 0.0F) << "the signs are random";
  EXPECT_LT(*std::min_element(signs.begin(), signs.end()), 0.0F) << "the signs are random";
}

TEST(Nvfp4, RotatesByAHadamardMatrixAndSigns) {
  expect_hadamard(format::Rotation<16, false>::of(7));
  expect_hadamard(format::Rotation<32, true>::of(7));
  expect_hadamard(format::Rotation<128, false>::of(7));
}

/// An outlier is spread over its block: rotated, its neighbours of 1/25 are not lost.
TEST(Nvfp4, KeepsMoreOfAnOutliersNeighboursWhereItRotates) {
  auto x = gradient_like(16 * 500, 5);
  for (std::size_t i = 0; i < x.size(); i += 16) {
    for (std::size_t k = 0; k < 16; ++k) x[i + k] = k == 3 ? 1.0F : x[i + k] > 0.0F ? 0.04F : -0.04F;
  }
  const auto lost = [&](const char* spec) {
    CodecRun run{spec, x.size()};
    const auto y = run.decode(run.encode(x));
    double error = 0.0;
    for (std::size_t i = 0; i < x.size(); ++i) error += i % 16 == 3 ? 0.0 : (x[i] - y[i]) * (x[i] - y[i]);
    return error / (0.0016 * 15 * 500);
  };
  EXPECT_NEAR(lost("nvfp4"), 1.0, 1e-6);
  EXPECT_LT(lost("nvfp4:hadamard=on"), 0.6);
}

TEST(Nvfp4, RefusesScalesThatNoEncoderWrites) {
  const auto x = gradient_like(100);
  CodecRun run{"nvfp4", x.size()};
  for (const int bad : {0x7f, 0x80, 0xb8}) {
    auto payload = run.encode(x);
    payload[6] = std::byte{static_cast<unsigned char>(bad)};
    try {
      (void)run.decode(payload);
      FAIL() << bad;
    } catch (const Error& error) {
      EXPECT_EQ(error.fault(), Fault::data);
    }
  }
}

}  // namespace
}  // namespace gradtool::test
