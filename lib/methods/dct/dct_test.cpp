// Dynamic communication thresholding: when the threshold changes, and that nothing is lost.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/codecs/encoder_run.hpp"

namespace gradtool::test {
namespace {

/// The k-th largest magnitude.
float kth(std::vector<float> u, std::size_t k) {
  for (auto& value : u) value = std::abs(value);
  std::nth_element(u.begin(), u.begin() + static_cast<std::ptrdiff_t>(k - 1), u.end(), std::greater<>{});
  return u[k - 1];
}

TEST(Dct, FollowsThePaperOverSteps) {
  for (const auto& [spec, ratio, refresh] : {std::tuple{"dct:ratio=0.01,refresh=4", 0.01, 4U},
                                             {"dct:ratio=0.2,refresh=1", 0.2, 1U},
                                             {"dct:ratio=0.05,refresh=100", 0.05, 100U}}) {
    const std::size_t n = 40'003;
    const auto k = static_cast<std::size_t>(std::llround(ratio * static_cast<double>(n)));
    EncoderRun run{spec, Layout::flat(n), 2};
    std::vector<float> u(n, 0.0F);
    float threshold = 0.0F;
    for (std::uint32_t step = 0; step < 10; ++step) {
      const auto x = gradient_like(n, step);
      for (std::size_t i = 0; i < n; ++i) u[i] += x[i];
      if (step % refresh == 0) threshold = kth(u, k);
      const auto y = run.decode(run.encode(x));
      std::size_t sent = 0;
      for (std::size_t i = 0; i < n; ++i) {
        const bool expected = std::abs(u[i]) >= threshold;
        ASSERT_EQ(y[i], expected ? u[i] : 0.0F) << spec << " " << step << " " << i;
        if (expected) u[i] = 0.0F;
        sent += expected ? 1U : 0U;
        ASSERT_EQ(run.encoder().residual()[i], u[i]);
      }
      if (step % refresh == 0) EXPECT_EQ(sent, k);
    }
    EXPECT_EQ(run.encoder().note().empty(), refresh < 100);
  }
}

TEST(Dct, TheCountFollowsTheScaleBetweenRefreshes) {
  const std::size_t n = 10'000;
  const auto sent = [&](float scale) {
    EncoderRun run{"dct:ratio=0.1", Layout::flat(n)};
    auto x = gradient_like(n, 1);
    static_cast<void>(run.encode(x));
    x = gradient_like(n, 2);
    for (auto& value : x) value *= scale;
    const auto payload = run.encode(x);
    return run.codec().values_in({payload.data(), payload.size()}, n);
  };
  EXPECT_LT(sent(0.1F), 600U);
  EXPECT_GT(sent(10.0F), 5000U);
}

TEST(Dct, ANewScaleAfterZerosIsNotStuck) {
  // All zero: the threshold is the smallest number there is; everything that is not zero passes until the refresh.
  EncoderRun run{"dct:ratio=0.1,refresh=2", Layout::flat(100)};
  const auto x = gradient_like(100, 1);
  const std::vector<float> zeros(100, 0.0F);
  EXPECT_EQ(run.decode(run.encode(zeros)), zeros);
  EXPECT_EQ(run.decode(run.encode(x)), x);
  const auto y = run.decode(run.encode(x));
  EXPECT_EQ(std::count(y.begin(), y.end(), 0.0F), 90);
}

TEST(Dct, RecoversFromWhatIsNotFinite) {
  EncoderRun run{"dct:ratio=0.01", Layout::flat(100)};
  auto x = gradient_like(100, 1);
  x[5] = INFINITY;
  x[6] = NAN;
  const auto y = run.decode(run.encode(x));
  EXPECT_TRUE(std::isinf(y[5]) || std::isnan(y[6]));
  for (int step = 0; step < 3; ++step) static_cast<void>(run.encode(gradient_like(100, 2)));
  for (const float value : run.encoder().residual().span()) EXPECT_TRUE(std::isfinite(value));
}

}  // namespace
}  // namespace gradtool::test
