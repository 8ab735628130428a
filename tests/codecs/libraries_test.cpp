// Codecs that are other people's libraries: what we promise of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/law/half.hpp"
#include "tests/codecs/codec_run.hpp"
#include "tests/codecs/inputs.hpp"

namespace gradtool::test {
namespace {

bool registered(std::string_view name) {
  const auto all = codecs();
  return std::any_of(all.begin(), all.end(), [&](const auto* codec) { return codec->name == name; });
}

TEST(Zstd, GivesBackEveryBit) {
  if (!registered("zstd")) GTEST_SKIP() << "built without libzstd";
  for (const std::size_t n : {1U, 65536U, 200'001U}) {
    std::vector<float> x(n);
    for (std::size_t i = 0; i < n; ++i) x[i] = law::float_of(law::draw4({.seed = n}, i).bits[0]);  // NaN and all
    CodecRun run{"zstd", n};
    const auto payload = run.encode(x);
    EXPECT_LT(payload.size(), 4 * n + n / 200 + 64);  // what cannot be compressed hardly grows
    std::vector<float> out(n, -0.0F);                 // -0 + x is x, whatever x is
    run.decode_add(payload, 1.0F, out);
    for (std::size_t i = 0; i < n; ++i) {
      if (std::isnan(x[i]))
        ASSERT_TRUE(std::isnan(out[i]));
      else
        ASSERT_EQ(law::bits_of(out[i]), law::bits_of(x[i])) << i;
    }
  }
}

TEST(Zstd, ShufflingLetsItSeeTheExponents) {
  if (!registered("zstd")) GTEST_SKIP() << "built without libzstd";
  // Random mantissas, one exponent and one sign: 23 of 32 bits cannot be saved, the other bytes all but vanish.
  const std::size_t n = 300'000;
  std::vector<float> x(n);
  for (std::size_t i = 0; i < n; ++i)
    x[i] = law::float_of(0x3f800000U | (law::draw4({.seed = 5}, i).bits[0] & 0x007fffffU));
  CodecRun run{"zstd", n};
  const double bits = 8.0 * static_cast<double>(run.encode(x).size()) / static_cast<double>(n);
  EXPECT_GT(bits, 23.0);
  EXPECT_LT(bits, 23.4);
}

TEST(Zfp, HasTheRateItIsGiven) {
  if (!registered("zfp")) GTEST_SKIP() << "built without libzfp";
  const std::size_t n = 81'920;  // ten chunks
  for (const auto& [rate, block] : {std::pair{"2.25", 9U}, {"8", 32U}, {"17.3", 69U}, {"32", 128U}}) {
    CodecRun run{std::string{"zfp:rate="} + rate, n};
    EXPECT_EQ(run.encode(gradient_like(n)).size(), 16 + 10 * (2048 * block / 8)) << rate;
  }
}

TEST(Zfp, ErrsLessWithEveryBit) {
  if (!registered("zfp")) GTEST_SKIP() << "built without libzfp";
  // Each bit per value halves the error, a quarter of the square, once the exponent is paid for.
  const std::size_t n = 50'000;
  const auto x = gradient_like(n);
  double before = 0.0;
  for (const int rate : {6, 8, 10, 12, 14, 16}) {
    CodecRun run{"zfp:rate=" + std::to_string(rate), n};
    const double error = nmse(x, run.decode(run.encode(x)));
    if (before > 0.0) EXPECT_NEAR(std::log2(before / error), 4.0, 0.6) << rate;
    before = error;
  }
  EXPECT_LT(before, 1e-7);
}

TEST(Zfp, ToleranceIsAShareOfTheLargestWhateverTheScale) {
  if (!registered("zfp")) GTEST_SKIP() << "built without libzfp";
  const std::size_t n = 20'001;
  for (const float scale : {0x1p-80F, 1.0F, 0x1p60F}) {
    auto x = gradient_like(n);
    for (auto& value : x) value *= scale;
    float largest = 0.0F;
    for (const float value : x) largest = std::max(largest, std::abs(value));
    CodecRun run{"zfp:mode=accuracy,tolerance=0.01", n};
    const auto payload = run.encode(x);
    const auto y = run.decode(payload);
    float worst = 0.0F;
    for (std::size_t i = 0; i < n; ++i) worst = std::max(worst, std::abs(x[i] - y[i]));
    EXPECT_LE(worst, 0.01F * largest);
    EXPECT_GT(worst, 0.0005F * largest);  // and it makes use of it
    EXPECT_LT(payload.size(), 4 * n / 2);
  }
}

}  // namespace
}  // namespace gradtool::test
