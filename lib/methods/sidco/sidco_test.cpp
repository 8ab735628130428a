// SIDCo: thresholds of fitted distributions against true quantiles, and how many elements they let pass.
#include <gtest/gtest.h>

#include <cmath>

#include "lib/methods/sidco/format.hpp"
#include "tests/codecs/codec_run.hpp"
#include "tests/codecs/inputs.hpp"

namespace gradtool::test {
namespace {

using format::gamma_tail;
using format::sidco_threshold;

/// A uniform draw in (0, 1) with 48 bits.
double fine_uniform(std::uint32_t seed, std::uint64_t i) {
  return static_cast<double>(uniform_at(seed, 2 * i)) + 0x1p-24 * static_cast<double>(uniform_at(seed, 2 * i + 1)) +
         0x1p-49;
}

/// Magnitudes of a distribution by its quantile function, with alternating signs.
template <class Quantile>
std::vector<float> draws(std::size_t n, std::uint32_t seed, const Quantile& quantile) {
  std::vector<float> x(n);
  for (std::size_t i = 0; i < n; ++i)
    x[i] = static_cast<float>(quantile(fine_uniform(seed, i))) * (i % 3 == 0 ? -1.0F : 1.0F);
  return x;
}

std::size_t sent(const std::string& spec, const std::vector<float>& x) {
  CodecRun run{spec, x.size(), 2};
  const auto payload = run.encode(x);
  return run.codec().values_in({payload.data(), payload.size()}, x.size());
}

SidcoMoments moments(const std::vector<float>& x, double origin) {
  SidcoMoments m;
  for (const float value : x) {
    const double above = std::abs(static_cast<double>(value)) - origin;
    if (above <= 0.0) continue;
    m.count += 1.0;
    m.sum += above;
    m.squares += above * above;
    m.log_sum += std::log(above);
  }
  return m;
}

TEST(Sidco, ExponentialThresholdIsTheQuantile) {
  EXPECT_NEAR(sidco_threshold(SidcoFit::exponential, {1000.0, 2000.0, 0.0, 0.0}, 0.01, 0.0), 2.0 * std::log(100.0),
              1e-12);
  EXPECT_NEAR(sidco_threshold(SidcoFit::exponential, {10.0, 20.0, 0.0, 0.0}, 0.25, 5.0), 5.0 + 2.0 * std::log(4.0),
              1e-12);
  const auto laplace = draws(200'000, 1, [](double u) { return -0.003 * std::log(u); });
  for (const double share : {0.25, 0.01, 0.001}) {
    EXPECT_NEAR(sidco_threshold(SidcoFit::exponential, moments(laplace, 0.0), share, 0.0), -0.003 * std::log(share),
                0.01 * -0.003 * std::log(share));
  }
}

TEST(Sidco, ParetoThresholdIsTheQuantile) {
  // shape a, scale b: quantile b/a (u^-a - 1). a < 0.25, so that the variance of a sample settles.
  for (const double shape : {0.15, -0.3}) {
    const auto quantile = [&](double u) { return 0.01 / shape * (std::pow(u, -shape) - 1.0); };
    const auto x = draws(400'000, 2, quantile);
    for (const double share : {0.25, 0.01}) {
      EXPECT_NEAR(sidco_threshold(SidcoFit::pareto, moments(x, 0.0), share, 0.0), quantile(share),
                  0.03 * quantile(share))
          << shape << " " << share;
    }
  }
  // Exponential magnitudes have shape 0.
  EXPECT_NEAR(sidco_threshold(SidcoFit::pareto, {1.0, 1.0, 2.0, 0.0}, 0.1, 0.0), std::log(10.0), 1e-9);
}

TEST(Sidco, GammaTailIsTheIncompleteGammaFunction) {
  for (const double x : {1e-3, 0.1, 0.9, 2.0, 5.0, 30.0}) {
    EXPECT_NEAR(gamma_tail(1.0, x), std::exp(-x), 1e-13);
    EXPECT_NEAR(gamma_tail(0.5, x), std::erfc(std::sqrt(x)), 1e-13);
    EXPECT_NEAR(gamma_tail(3.0, x), std::exp(-x) * (1.0 + x + 0.5 * x * x), 1e-13);
  }
}

TEST(Sidco, GammaThresholdIsTheQuantile) {
  // Shape 1/2 is half the square of a normal draw; the quantile of Q(1/2, x) = erfc(sqrt x).
  const auto z = normal(300'000, 3);
  std::vector<float> x(z.size());
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(0.5 * z[i] * z[i]);
  for (const double share : {0.25, 0.05}) {
    const double threshold = sidco_threshold(SidcoFit::gamma, moments(x, 0.0), share, 0.0);
    EXPECT_NEAR(std::erfc(std::sqrt(threshold)), share, 0.05 * share);
  }
}

TEST(Sidco, CountIsNearKOnLaplace) {
  const std::size_t n = 400'000;
  const auto x = draws(n, 4, [](double u) { return -0.003 * std::log(u); });
  for (const char* ratio : {"0.1", "0.01", "0.001"}) {
    const double k = std::stod(ratio) * static_cast<double>(n);
    for (const char* fit : {"exponential", "gamma", "pareto"}) {
      const auto count = static_cast<double>(sent(std::string{"sidco:ratio="} + ratio + ",fit=" + fit, x));
      EXPECT_NEAR(count, k, 0.1 * k + 4.0 * std::sqrt(k)) << ratio << " " << fit;
    }
    const auto single = static_cast<double>(sent(std::string{"sidco:stages=1,ratio="} + ratio, x));
    EXPECT_NEAR(single, k, 0.05 * k + 4.0 * std::sqrt(k)) << ratio;
  }
}

TEST(Sidco, StagesMendAFitThatIsWrong) {
  // Heavier than exponential, like gradients: one fit lets far too many pass, several come near.
  const std::size_t n = 400'000;
  const auto x = draws(n, 5, [](double u) { return 0.001 * std::pow(-std::log(u), 2.0); });
  const double k = 0.001 * static_cast<double>(n);
  EXPECT_GT(static_cast<double>(sent("sidco:ratio=0.001,stages=1", x)), 4.0 * k);
  for (const char* spec : {"sidco:ratio=0.001", "sidco:ratio=0.001,fit=pareto", "sidco:ratio=0.001,fit=gamma"}) {
    EXPECT_NEAR(static_cast<double>(sent(spec, x)), k, 0.6 * k) << spec;
  }
}

TEST(Sidco, ScaleDoesNotMatter) {
  auto x = draws(50'000, 6, [](double u) { return -0.003 * std::log(u); });
  const std::size_t count = sent("sidco", x);
  for (auto& value : x) value *= 0x1p-20F;
  EXPECT_EQ(sent("sidco", x), count);
}

TEST(Sidco, DegenerateInputs) {
  EXPECT_EQ(sent("sidco", std::vector<float>(5000, 0.0F)), 0U);
  for (const char* fit : {"sidco", "sidco:fit=gamma", "sidco:fit=pareto"}) {
    EXPECT_EQ(sent(fit, std::vector<float>(5000, -0.25F)), 5000U) << fit;
    std::vector<float> outlier(5000, 0.0F);
    outlier[99] = 3.0F;
    EXPECT_EQ(sent(fit, outlier), 1U) << fit;
    auto mixed = gradient_like(5000, 1);
    mixed[1] = NAN;
    mixed[2] = INFINITY;
    const std::size_t count = sent(fit, mixed);
    EXPECT_GE(count, 3U);
    EXPECT_LE(count, 1000U);
  }
}

TEST(Sidco, ZerosAreLeftOutOfTheFit) {
  const std::size_t n = 400'000;
  auto x = draws(n, 7, [](double u) { return -0.003 * std::log(u); });
  for (std::size_t i = 0; i < n; ++i) x[i] = i % 4 == 0 ? x[i] : 0.0F;
  EXPECT_NEAR(static_cast<double>(sent("sidco:ratio=0.01", x)), 4000.0, 400.0);
}

}  // namespace
}  // namespace gradtool::test
