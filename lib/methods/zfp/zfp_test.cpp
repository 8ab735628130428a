// zfp: sizes by rate, errors by rate and by tolerance.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/codecs/codec_run.hpp"
#include "tests/codecs/inputs.hpp"

namespace gradtool::test {
namespace {

TEST(Zfp, HasTheRateItIsGiven) {
  const std::size_t n = 81'920;  // ten chunks
  for (const auto& [rate, block] : {std::pair{"2.25", 9U}, {"8", 32U}, {"17.3", 69U}, {"32", 128U}}) {
    CodecRun run{std::string{"zfp:rate="} + rate, n};
    EXPECT_EQ(run.encode(gradient_like(n)).size(), 16 + 10 * (2048 * block / 8)) << rate;
  }
}

TEST(Zfp, ErrsLessWithEveryBit) {
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
