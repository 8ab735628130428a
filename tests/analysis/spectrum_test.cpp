#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>

#include "feed.hpp"
#include "lib/analysis/real_transform.hpp"
#include "lib/analysis/spectrum.hpp"

namespace gradtool::test {
namespace {

class Spectrum : public testing::Test {
 protected:
  void SetUp() override {
    if (!spectrum_available()) GTEST_SKIP() << "built without FFTW";
  }
};

std::vector<Table> spectrum_of(const Capture& capture) {
  const auto analysis = make_spectrum(capture.scope);
  return run(*analysis, capture);
}

TEST_F(Spectrum, TransformIsUnitaryForEvenOddAndTinySizes) {
  for (const std::size_t n : {1, 2, 3, 4, 7, 16, 1000, 1009, 4097}) {
    const auto draw = normal(n, 5);
    std::vector<float> values(draw.begin(), draw.end());
    const RealTransform transform{n};
    std::vector<double> power(transform.bins());
    transform.power(values, power);
    double energy = 0, spectral = 0;
    for (const float x : values) energy += double{x} * x;
    for (std::size_t k = 0; k < power.size(); ++k) spectral += bin_weight(k, n) * power[k];
    EXPECT_NEAR(spectral / energy, 1.0, 1e-13) << n;
  }
}

TEST_F(Spectrum, CosineHasAllItsEnergyInOneBinAndItsBand) {
  constexpr std::size_t kN = 1000, kBin = 200;  // 0.4 of the Nyquist frequency: band 6 of 16
  Capture capture{1, 1};
  capture.add(vector_of(kN), [](auto, auto, std::size_t i) {
    return 3 * std::cos(2 * std::numbers::pi * kBin * static_cast<double>(i) / kN);
  });
  const auto tables = spectrum_of(capture);
  EXPECT_NEAR(number(tables[0], 0, "fft_share_01"), 1.0, 1e-12);
  EXPECT_NEAR(number(tables[0], 0, "lag1_autocorrelation"), std::cos(2 * std::numbers::pi * 0.2), 3e-3);
  EXPECT_LT(number(tables[0], 0, "flatness"), 1e-6);
  for (std::size_t band = 0; band < kBands; ++band) {
    EXPECT_NEAR(number(tables[1], band, "energy_share"), band == 6 ? 1.0 : 0.0, 1e-12) << band;
  }
}

TEST_F(Spectrum, NyquistBinCountsOnce) {
  Capture capture{1, 1};
  // +-1 alternating plus 1: half of the energy at frequency 0, half at Nyquist, both single bins.
  capture.add(vector_of(100), [](auto, auto, std::size_t i) { return i % 2 == 0 ? 2.0 : 0.0; });
  const auto tables = spectrum_of(capture);
  EXPECT_NEAR(number(tables[1], 0, "energy_share"), 0.5, 1e-12);
  EXPECT_NEAR(number(tables[1], 15, "energy_share"), 0.5, 1e-12);
  EXPECT_NEAR(number(tables[0], 0, "fft_share_01"), 0.5, 1e-12);  // round(0.51) = 1 of 51 bins
  EXPECT_NEAR(number(tables[0], 0, "fft_share_05"), 1.0, 1e-12);
}

TEST_F(Spectrum, TiesAtTheThresholdGoToTheLowerFrequency) {
  Capture capture{1, 1};
  capture.add(vector_of(8), [](auto, auto, std::size_t i) { return i == 0 ? 1.0 : 0.0; });  // all 5 bins equal
  const auto tables = spectrum_of(capture);
  // round(0.25 * 5) = 1 bin: frequency 0, which counts once of 8.
  EXPECT_NEAR(number(tables[0], 0, "fft_share_25"), 0.125, 1e-12);
}

TEST_F(Spectrum, WhiteNoiseMatchesTheory) {
  constexpr std::size_t kN = 8192, kGradients = 40;
  const auto noise = normal(kN * kGradients, 1);
  Capture capture{kGradients / 2, 2};
  capture.add(vector_of(kN), [&](std::size_t s, std::size_t w, std::size_t i) { return noise[(s * 2 + w) * kN + i]; });
  const auto tables = spectrum_of(capture);
  // 0.15 (1 - ln 0.15) of exponential powers; 2 (z phi(z) + 0.075) of squared normals, z the 92.5 % quantile.
  EXPECT_NEAR(number(tables[0], 0, "fft_share_15"), 0.4346, 0.003);
  EXPECT_NEAR(number(tables[0], 0, "raw_share_15"), 0.5575, 0.003);
  EXPECT_NEAR(number(tables[0], 0, "fft_advantage_15_db"), 10 * std::log10((1 - 0.5575) / (1 - 0.4346)), 0.05);
  EXPECT_NEAR(number(tables[0], 0, "flatness"), std::exp(-std::numbers::egamma), 0.005);
  EXPECT_NEAR(number(tables[0], 0, "lag1_autocorrelation"), 0.0, 0.01);
  for (std::size_t band = 0; band < kBands; ++band) {
    EXPECT_NEAR(number(tables[1], band, "energy_share"), 1.0 / kBands, 0.004) << band;
  }
}

TEST_F(Spectrum, CorrelatedNeighboursMakeFrequenciesWin) {
  constexpr std::size_t kN = 8192;
  const auto noise = normal(kN, 2);
  std::vector<double> ar(kN);
  for (std::size_t i = 0; i < kN; ++i) ar[i] = (i > 0 ? 0.9 * ar[i - 1] : 0.0) + std::sqrt(1 - 0.81) * noise[i];
  Capture capture{1, 1};
  capture.add(vector_of(kN), [&](auto, auto, std::size_t i) { return ar[i]; });
  const auto tables = spectrum_of(capture);
  // Relative errors 0.338 and 0.674, from the simulation in the FFT method's description.
  EXPECT_NEAR(std::sqrt(1 - number(tables[0], 0, "fft_share_15")), 0.338, 0.02);
  EXPECT_NEAR(std::sqrt(1 - number(tables[0], 0, "raw_share_15")), 0.674, 0.02);
  EXPECT_NEAR(number(tables[0], 0, "lag1_autocorrelation"), 0.9, 0.02);
  EXPECT_GT(number(tables[0], 0, "fft_advantage_15_db"), 5.0);
}

TEST(SpectrumFlatness, RoundingOfTheTransformIsNoPower) {
  constexpr std::size_t kSize = 5000;
  constexpr double kEnergy = kSize * 0.1 * 0.1, kInterior = (kSize - 1) / 2;
  SpectrumSums sums;
  const double noise = 1e-32 * kEnergy;  // in all of a constant's bins but the first, as cuFFT leaves it on an H200
  add_flatness(sums, kSize, noise, -std::numeric_limits<double>::infinity(), kEnergy);
  EXPECT_EQ(sums.flatness_weight, 0.0);
  const double last_bit = std::pow(0x1p-24, 2) / kSize * kEnergy;  // one element differs by its last bit: flat
  add_flatness(sums, kSize, last_bit, kInterior * std::log(last_bit / kInterior), kEnergy);
  EXPECT_NEAR(sums.flatness / sums.flatness_weight, 1.0, 1e-9);
}

TEST_F(Spectrum, DegenerateTensorsHaveEmptyCellsNotNan) {
  Capture capture{2, 2};
  capture.add(vector_of(1, "one"), [](auto, auto, auto) { return 0.5; });
  capture.add(vector_of(40, "zero"), [](auto, auto, auto) { return 0.0; });
  capture.add(vector_of(50, "constant"), [](auto, auto, auto) { return 0.1; });
  capture.add(vector_of(9, "bad"), [](std::size_t s, auto, std::size_t i) { return s == 1 && i < 2 ? NAN : 1.0; });
  const auto tables = spectrum_of(capture);
  EXPECT_EQ(number(tables[0], 0, "fft_share_25"), 0.0);  // round(0.25) = 0 of one bin
  EXPECT_TRUE(is_empty(tables[0], 0, "lag1_autocorrelation"));
  EXPECT_TRUE(is_empty(tables[0], 0, "flatness"));
  EXPECT_TRUE(is_empty(tables[0], 1, "raw_share_25"));
  EXPECT_TRUE(is_empty(tables[0], 1, "fft_share_25"));
  EXPECT_TRUE(is_empty(tables[0], 1, "fft_advantage_15_db"));
  EXPECT_TRUE(is_empty(tables[0], 2, "lag1_autocorrelation"));
  EXPECT_TRUE(is_empty(tables[0], 2, "flatness"));
  EXPECT_NEAR(number(tables[0], 2, "fft_share_05"), 1.0, 1e-12);
  EXPECT_EQ(to_text(tables[0].at(3, "status")), "skipped");
  EXPECT_EQ(to_text(tables[0].at(3, "message")), "4 of 36 values are not finite");
  EXPECT_TRUE(is_empty(tables[0], 3, "raw_share_25"));
  EXPECT_EQ(to_text(tables[0].at(4, "tensor")), "all");
  EXPECT_EQ(number(tables[0], 4, "elements"), 91);
  EXPECT_EQ(to_text(tables[0].at(4, "message")), "1 of 4 tensors skipped");
  for (const auto& table : tables) {
    for (const auto& row : table.rows()) {
      for (const auto& cell : row) EXPECT_NE(to_text(cell), "nan");
    }
  }
}

}  // namespace
}  // namespace gradtool::test
