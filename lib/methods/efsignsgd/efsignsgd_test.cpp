#include <gtest/gtest.h>

#include "tests/codecs/codec_run.hpp"
#include "tests/codecs/inputs.hpp"

namespace gradtool::test {
namespace {

TEST(EfSignSgd, WorkedExample) {
  const std::vector<float> x{1.0F, -2.0F, 0.0F, -0.0F, 3.0F, -4.0F};
  CodecRun run{"efsignsgd", x.size()};
  const auto payload = run.encode(x);
  ASSERT_EQ(payload.size(), 8U);
  std::uint32_t signs = 0;
  std::memcpy(&signs, payload.data() + 4, 4);
  EXPECT_EQ(signs, 0b100010U);
  const float mean = 10.0F / 6.0F;
  EXPECT_EQ(run.decode(payload), (std::vector<float>{mean, -mean, mean, mean, mean, -mean}));
}

/// sum (|x| - m)^2 = sum x^2 - n m^2 for the mean m: the smallest error that signs allow.
TEST(EfSignSgd, ErrorIsWhatTheMeanLeaves) {
  const auto x = gradient_like(30'000, 3);
  CodecRun run{"efsignsgd", x.size()};
  double sum = 0.0;
  double energy = 0.0;
  for (const float value : x) {
    sum += std::abs(static_cast<double>(value));
    energy += static_cast<double>(value) * static_cast<double>(value);
  }
  const double expected = 1.0 - sum * sum / (static_cast<double>(x.size()) * energy);
  EXPECT_NEAR(nmse(x, run.decode(run.encode(x))), expected, 1e-6);
}

TEST(EfSignSgd, EveryTensorHasItsOwnMeanAndWords) {
  Layout layout;
  layout.tensors = {{.name = "a", .shape = {10, 1001}, .first = 0, .elements = 10'010},
                    {.name = "b", .shape = {3}, .first = 10'010, .elements = 3},
                    {.name = "c", .shape = {40}, .first = 10'013, .elements = 40}};
  layout.elements = 10'053;
  auto x = gradient_like(layout.elements, 4);
  for (std::size_t i = 10'010; i < 10'013; ++i) x[i] = -4.0F;
  for (std::size_t i = 10'013; i < x.size(); ++i) x[i] = i % 2 == 0 ? 0.5F : -0.25F;
  CodecRun run{"efsignsgd", layout};
  const auto payload = run.encode(x);
  EXPECT_EQ(payload.size(), 4U * (3 + 313 + 1 + 2));
  const auto y = run.decode(payload);
  const float first = std::abs(y[0]);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float mean = i < 10'010 ? first : i < 10'013 ? 4.0F : 0.375F;
    ASSERT_EQ(y[i], x[i] < 0.0F ? -mean : mean) << i;
  }
}

TEST(EfSignSgd, DoesNotDependOnAFactor) {
  auto x = gradient_like(9000, 6);
  CodecRun run{"efsignsgd", x.size()};
  const auto y = run.decode(run.encode(x));
  for (auto& value : x) value *= 0x1p14F;
  const auto scaled = run.decode(run.encode(x));
  for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(scaled[i], y[i] * 0x1p14F);
}

}  // namespace
}  // namespace gradtool::test
