// Deep gradient compression: momentum correction, factor masking, the sampled threshold, clipping, warm-up.
#include <gtest/gtest.h>

#include <cmath>

#include "lib/methods/dgc/format.hpp"
#include "tests/codecs/encoder_run.hpp"

namespace gradtool::test {
namespace {

std::size_t count_of(const std::vector<float>& y) {
  return y.size() - static_cast<std::size_t>(std::count(y.begin(), y.end(), 0.0F));
}

TEST(Dgc, WithoutMomentumNothingIsLost) {
  const std::size_t n = 20'000;
  EncoderRun run{"dgc:momentum=0,ratio=0.02", Layout::flat(n)};
  std::vector<double> given(n, 0.0);
  std::vector<double> got(n, 0.0);
  for (std::uint32_t step = 0; step < 40; ++step) {
    const auto x = gradient_like(n, step);
    const auto y = run.decode(run.encode(x, {}, {.key = {.step = step}}));
    for (std::size_t i = 0; i < n; ++i) {
      given[i] += static_cast<double>(x[i]);
      got[i] += static_cast<double>(y[i]);
    }
  }
  for (std::size_t i = 0; i < n; ++i)
    ASSERT_NEAR(given[i], got[i] + static_cast<double>(run.encoder().residual()[i]), 1e-6) << i;
}

TEST(Dgc, AccumulatesVelocity) {
  // Element 0 takes every place; element 1 accumulates v = sum of u, u = sum of m^j g.
  EncoderRun run{"dgc:momentum=0.5,ratio=0.5", Layout::flat(2)};
  const std::vector<float> x{1000.0F, 1.0F};
  for (int step = 0; step < 3; ++step) EXPECT_EQ(run.decode(run.encode(x))[1], 0.0F);
  EXPECT_EQ(run.encoder().residual()[1], 1.0F + 1.5F + 1.75F);
  EXPECT_EQ(run.encoder().residual()[0], 0.0F);
  EncoderRun nesterov{"dgc:momentum=0.5,ratio=0.5,nesterov=on", Layout::flat(2)};
  for (int step = 0; step < 2; ++step) EXPECT_EQ(nesterov.decode(nesterov.encode(x))[0], 1500.0F);
  // u: 0.5, 0.75; v grows by u + g
  EXPECT_EQ(nesterov.encoder().residual()[1], 1.5F + 1.75F);
}

TEST(Dgc, MaskingStopsTheMomentumOfWhatWasSent) {
  const std::vector<float> push{1.0F, 0.0F};
  const std::vector<float> rest{0.0F, 0.0F};
  EncoderRun masked{"dgc:ratio=0.5", Layout::flat(2)};
  EncoderRun open{"dgc:ratio=0.5,masking=off", Layout::flat(2)};
  EXPECT_EQ(masked.decode(masked.encode(push))[0], 1.0F);
  EXPECT_EQ(open.decode(open.encode(push))[0], 1.0F);
  EXPECT_EQ(masked.decode(masked.encode(rest))[0], 0.0F);
  EXPECT_EQ(open.decode(open.encode(rest))[0], 0.9F);
}

TEST(Dgc, SendsAtMostKAndRarelyLessThanFourFifths) {
  for (const auto& [spec, ratio] : {std::pair{"dgc:ratio=0.01", 0.01},
                                    {"dgc:ratio=0.001", 0.001},
                                    {"dgc:ratio=0.01,over=scale", 0.01},
                                    {"dgc:ratio=0.3", 0.3}}) {
    const std::size_t n = 120'000;
    const auto k = static_cast<std::size_t>(std::lround(ratio * static_cast<double>(n)));
    std::size_t least = n;
    std::size_t most = 0;
    for (std::uint32_t seed = 0; seed < 20; ++seed) {
      CodecRun run{spec, n};
      const auto x = gradient_like(n, seed);
      const auto y = run.decode(run.encode(x, {.key = {.seed = seed}}));
      const std::size_t count = count_of(y);
      EXPECT_LE(count, k) << spec;
      EXPECT_GE(count, k * 4 / 5) << spec;
      least = std::min(least, count);
      most = std::max(most, count);
      float smallest = HUGE_VALF;
      float largest = 0.0F;
      for (std::size_t i = 0; i < n; ++i) {
        if (y[i] != 0.0F) {
          EXPECT_EQ(y[i], x[i]);
          smallest = std::min(smallest, std::abs(x[i]));
        } else {
          largest = std::max(largest, std::abs(x[i]));
        }
      }
      EXPECT_GE(smallest, largest) << "a larger element was passed over";
    }
    EXPECT_EQ(most, k) << spec;
    if (ratio < 0.1) EXPECT_LT(least, k) << spec << ": the threshold of a sample cannot always be enough";
  }
}

TEST(Dgc, ExactlyFourFifthsAndThirteenTenthsOfKAreEnough) {
  for (std::size_t k = 10; k <= 100'000; k += 10) {
    const format::ThresholdCorrection correction{k};
    ASSERT_FALSE(correction.too_few(8 * k / 10)) << k;
    ASSERT_TRUE(correction.too_few(8 * k / 10 - 1)) << k;
    ASSERT_FALSE(correction.too_many(13 * k / 10)) << k;
    ASSERT_TRUE(correction.too_many(13 * k / 10 + 1)) << k;
  }
}

TEST(Dgc, TheSampleStartsAtRandom) {
  const std::size_t n = 50'000;
  CodecRun run{"dgc:ratio=0.02", n};
  const auto x = gradient_like(n, 1);
  std::vector<std::size_t> counts;
  for (std::uint64_t seed = 0; seed < 60; ++seed)
    counts.push_back(count_of(run.decode(run.encode(x, {.key = {.seed = seed}}))));
  std::sort(counts.begin(), counts.end());
  EXPECT_GT(std::unique(counts.begin(), counts.end()) - counts.begin(), 3);
}

TEST(Dgc, ManyTooManyAreCutExactly) {
  // Peaks at every 100th place: a stride of 100 sees all of them or none, so the first guess is far off.
  const std::size_t n = 100'000;
  auto x = gradient_like(n, 2);
  for (std::size_t i = 0; i < n; i += 100) x[i] += 0.5F;
  for (const char* spec : {"dgc:ratio=0.005", "dgc:ratio=0.005,over=scale"}) {
    for (std::uint64_t seed = 0; seed < 150; ++seed) {
      CodecRun run{spec, n};
      const std::size_t count = count_of(run.decode(run.encode(x, {.key = {.seed = seed}})));
      EXPECT_LE(count, 500U);
      EXPECT_GE(count, 400U) << seed;
    }
  }
}

TEST(Dgc, EqualMagnitudesGoInOrder) {
  CodecRun run{"dgc:ratio=0.25", 400};
  const auto y = run.decode(run.encode(std::vector<float>(400, -2.0F)));
  for (std::size_t i = 0; i < 400; ++i) ASSERT_EQ(y[i], i < 100 ? -2.0F : 0.0F) << i;
}

TEST(Dgc, WarmupHasFourStages) {
  const std::size_t n = 100'000;
  CodecRun run{"dgc:warmup=40", n};
  const auto x = gradient_like(n, 3);
  const std::vector<double> densities{0.2512, 0.0631, 0.01585, 0.00398, 0.001};
  for (std::int64_t iteration = 0; iteration < 60; iteration += 5) {
    const auto count = static_cast<double>(count_of(run.decode(run.encode(x, {.key = {}, .iteration = iteration}))));
    const double wanted = densities[static_cast<std::size_t>(std::min<std::int64_t>(iteration / 10, 4))] * n;
    EXPECT_LE(count, wanted * 1.001 + 1.0) << iteration;
    EXPECT_GE(count, 0.79 * wanted) << iteration;
  }
}

TEST(Dgc, ClipsToTheShareOfARank) {
  const std::size_t n = 5000;
  const auto x = gradient_like(n, 4);
  const auto norm = [](const std::vector<float>& y) {
    double sum = 0.0;
    for (const float value : y) sum += static_cast<double>(value) * static_cast<double>(value);
    return std::sqrt(sum);
  };
  EncoderRun run{"dgc:ratio=1,clip=0.1", Layout::flat(n), 1, 4};
  EXPECT_NEAR(norm(run.decode(run.encode(x))), 0.05, 1e-7);
  EncoderRun wide{"dgc:ratio=1,clip=100", Layout::flat(n), 1, 4};
  EXPECT_EQ(wide.decode(wide.encode(x)), x);
}

TEST(Dgc, VectorsOfALargerUnitGoWhole) {
  Layout layout = Layout::matrix(50, 40);
  layout.tensors.push_back({.shape = {50}, .kind = "bias", .first = 2000, .elements = 50});
  layout.tensors.push_back({.shape = {10, 10}, .kind = "linear", .first = 2050, .elements = 100});
  layout.elements = 2150;
  EncoderRun run{"dgc:ratio=0.01,momentum=0.5", layout};
  const auto x = gradient_like(2150, 5);
  for (int step = 0; step < 2; ++step) {
    const auto payload = run.encode(x);
    EXPECT_LE(payload.size(), 8U + 200U + 16U + 21U * 8U);
    const auto y = run.decode(payload);
    std::size_t sent = 0;
    for (std::size_t i = 0; i < 2150; ++i) {
      if (i >= 2000 && i < 2050)
        EXPECT_EQ(y[i], step == 0 ? x[i] : 1.5F * x[i]);  // a velocity
      else
        sent += y[i] != 0.0F ? 1U : 0U;
    }
    EXPECT_LE(sent, 21U);
    EXPECT_GE(sent, 17U);
    EXPECT_EQ(run.codec().values_in({payload.data(), payload.size()}, 2150), sent + 50);
  }
  EncoderRun sparse{"dgc:ratio=0.01,vectors=sparse", layout};
  EXPECT_LE(count_of(sparse.decode(sparse.encode(x))), 22U);
}

}  // namespace
}  // namespace gradtool::test
