#include <gtest/gtest.h>

#include "lib/core/error.hpp"
#include "tests/codecs/codec_run.hpp"
#include "tests/codecs/inputs.hpp"

namespace gradtool::test {
namespace {

float scale_of_tensor(const std::vector<std::byte>& payload, std::size_t tensor = 0) {
  float scale = 0.0F;
  std::memcpy(&scale, payload.data() + 4 * tensor, 4);
  return scale;
}

double deviation_of(std::span<const float> x) {
  double mean = 0.0;
  for (const float value : x) mean += static_cast<double>(value) / static_cast<double>(x.size());
  double variance = 0.0;
  for (const float value : x)
    variance += std::pow(static_cast<double>(value) - mean, 2) / static_cast<double>(x.size());
  return std::sqrt(variance);
}

TEST(TernGrad, WorkedExample) {
  // sigma = 1 exactly; clip 2 leaves s = 2, so that 3 and -3 are sent for certain and zeros never.
  std::vector<float> x(36, 0.0F);
  x[3] = 3.0F;
  x[4] = -3.0F;
  x[5] = 3.0F;
  x[6] = -3.0F;
  for (const char* spec : {"terngrad:clip=2", "terngrad:clip=2,pack=base3"}) {
    CodecRun run{spec, x.size()};
    const auto payload = run.encode(x);
    EXPECT_EQ(payload.size(), std::string_view{spec}.ends_with("base3") ? 4U + 8U : 4U + 12U);
    EXPECT_EQ(scale_of_tensor(payload), 2.0F);
    const auto y = run.decode(payload);
    for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(y[i], x[i] * (2.0F / 3.0F)) << i;
  }
}

TEST(TernGrad, EveryTensorHasItsOwnScale) {
  Layout layout;
  layout.tensors = {{.name = "a", .shape = {50, 201}, .first = 0, .elements = 10'050},
                    {.name = "b", .shape = {1}, .first = 10'050, .elements = 1},
                    {.name = "c", .shape = {333}, .first = 10'051, .elements = 333}};
  layout.elements = 10'384;
  auto x = gradient_like(layout.elements, 4);
  for (std::size_t i = 10'051; i < x.size(); ++i) x[i] *= 0x1p-10F;
  for (const char* spec : {"terngrad", "terngrad:pack=base3"}) {
    CodecRun run{spec, layout};
    const auto payload = run.encode(x);
    const std::span<const float> all{x};
    EXPECT_NEAR(scale_of_tensor(payload, 0), 2.5 * deviation_of(all.first(10'050)), 1e-8);
    EXPECT_EQ(scale_of_tensor(payload, 1), std::abs(x[10'050]));  // one element: sent as it is
    EXPECT_NEAR(scale_of_tensor(payload, 2), 2.5 * deviation_of(all.subspan(10'051)), 1e-11);
    const auto y = run.decode(payload);
    EXPECT_EQ(y[10'050], x[10'050]);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const float s = scale_of_tensor(payload, i < 10'050 ? 0 : i == 10'050 ? 1 : 2);
      ASSERT_TRUE(y[i] == 0.0F || y[i] == std::copysign(s, x[i])) << i;
      if (std::abs(x[i]) >= s) ASSERT_NE(y[i], 0.0F) << i;
    }
  }
}

TEST(TernGrad, BothPackingsSayTheSame) {
  const auto x = gradient_like(20'011, 4);
  CodecRun two{"terngrad", x.size()};
  CodecRun three{"terngrad:pack=base3", x.size()};
  EXPECT_EQ(two.decode(two.encode(x)), three.decode(three.encode(x)));
}

/// Without clipping E y = x and E (x - y)^2 = s|x| - x^2.
TEST(TernGrad, UnclippedIsUnbiasedWithTheVarianceOfTheLaw) {
  const std::size_t n = 4096;
  const auto x = gradient_like(n, 5);
  CodecRun run{"terngrad:clip=off", n};
  std::vector<double> sum(n, 0.0);
  double squares = 0.0;
  constexpr int kSeeds = 200;
  double s = 0.0;
  for (int seed = 0; seed < kSeeds; ++seed) {
    const auto payload = run.encode(x, {.key = {.seed = static_cast<std::uint64_t>(seed)}});
    s = static_cast<double>(scale_of_tensor(payload));
    const auto y = run.decode(payload);
    for (std::size_t i = 0; i < n; ++i) {
      sum[i] += static_cast<double>(y[i]);
      squares += std::pow(static_cast<double>(y[i]) - static_cast<double>(x[i]), 2) / kSeeds;
    }
  }
  double expected = 0.0;
  for (std::size_t i = 0; i < n; ++i) {
    const double size = std::abs(static_cast<double>(x[i]));
    const double variance = s * size - size * size;
    expected += variance;
    ASSERT_NEAR(sum[i] / kSeeds, static_cast<double>(x[i]), 5.5 * std::sqrt(variance / kSeeds) + 0.03 * s) << i;
  }
  EXPECT_NEAR(squares, expected, 0.01 * expected);
}

TEST(TernGrad, DoesNotDependOnAFactor) {
  auto x = gradient_like(9000, 6);
  CodecRun run{"terngrad", x.size()};
  const auto y = run.decode(run.encode(x));
  for (auto& value : x) value *= 0x1p14F;
  const auto scaled = run.decode(run.encode(x));
  for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(scaled[i], y[i] * 0x1p14F);
}

TEST(TernGrad, ConstantsAreNotClippedAway) {
  for (const float value : {0.1F, -3.0F, 1e-40F}) {
    const std::vector<float> x(10'000, value);
    CodecRun run{"terngrad", x.size()};
    EXPECT_EQ(run.decode(run.encode(x)), x);
  }
}

TEST(TernGrad, ImpossibleCodesAreRefused) {
  const auto x = gradient_like(100, 6);
  for (const char* spec : {"terngrad", "terngrad:pack=base3"}) {
    CodecRun run{spec, x.size()};
    auto payload = run.encode(x);
    payload[6] = std::byte{0xff};
    EXPECT_THROW((void)run.decode(payload), Error) << spec;
  }
}

}  // namespace
}  // namespace gradtool::test
