#include "lib/analysis/transforms.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <numeric>

#include "feed.hpp"
#include "lib/analysis/real_transform.hpp"

namespace gradtool::test {
namespace {

double energy(const std::vector<double>& values) {
  return std::inner_product(values.begin(), values.end(), values.begin(), 0.0);
}

/// The first row that has these texts in these columns.
std::size_t find(const Table& table, const std::vector<std::pair<std::string, std::string>>& wanted) {
  for (std::size_t r = 0; r < table.rows().size(); ++r) {
    if (std::all_of(wanted.begin(), wanted.end(), [&](auto& w) { return to_text(table.at(r, w.first)) == w.second; }))
      return r;
  }
  throw std::runtime_error("no such row in " + table.name());
}

double kept(const std::vector<Table>& tables, const std::string& order, const std::string& basis, const char* share) {
  const auto row = find(tables[1], {{"tensor", "t0"}, {"order", order}, {"basis", basis}, {"kept", share}});
  return number(tables[1], row, "energy_share");
}

TEST(Transforms, HadamardAndHaarKeepEnergyForAnyLength) {
  for (const std::size_t n : {1UL, 2UL, 3UL, 7UL, 64UL, 100UL, 1023UL}) {
    const auto x = normal(n, 3);
    for (auto* transform : {hadamard, haar}) {
      auto y = x;
      transform(y);
      EXPECT_NEAR(energy(y), energy(x), 1e-12 * energy(x)) << n;
    }
    auto twice = x;
    hadamard(twice);
    hadamard(twice);  // its own inverse
    for (std::size_t i = 0; i < n; ++i) EXPECT_NEAR(twice[i], x[i], 1e-12) << n;
  }
}

TEST(Transforms, HadamardAndHaarOfKnownValues) {
  std::vector<double> x{1, 2, 3, 4, 5, 6, 7};  // 4 + 2 + 1
  hadamard(x);
  const double root = std::numbers::sqrt2;
  const std::vector<double> expected{5, -1, -2, 0, 11 / root, -1 / root, 7};
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(x[i], expected[i], 1e-12) << i;
  std::vector<double> y{1, 2, 3, 4, 5};
  haar(y);
  const std::vector<double> coarse_to_fine{5, -2, -1 / root, -1 / root, 5};
  for (std::size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(y[i], coarse_to_fine[i], 1e-12) << i;
}

TEST(Transforms, OrderOfConvolutions) {
  TensorInfo conv;
  conv.kind = "conv", conv.layout = "OIHW", conv.shape = {2, 3, 1, 2}, conv.elements = 12;
  // element (o, i, tap) is at (o * 3 + i) * 2 + tap
  EXPECT_EQ(hwio_order(conv), (std::vector<std::size_t>{0, 6, 2, 8, 4, 10, 1, 7, 3, 9, 5, 11}));
  conv.shape = {4, 3, 1, 1};
  EXPECT_TRUE(hwio_order(conv).empty()) << "one tap: only the channels would change places";
  TensorInfo linear;
  linear.kind = "linear", linear.shape = {3, 4}, linear.elements = 12;
  EXPECT_TRUE(hwio_order(linear).empty());
}

TEST(Transforms, CosineTransformOfKnownValues) {
  if (!RealTransform::available()) GTEST_SKIP() << "built without FFTW";
  const std::vector<float> constant(8, 3.0F);
  std::vector<double> squares(8);
  CosineTransform{8}.squares(constant, squares);
  EXPECT_NEAR(squares[0], 72.0, 1e-12);
  for (std::size_t k = 1; k < 8; ++k) EXPECT_NEAR(squares[k], 0.0, 1e-24);
  std::vector<float> wave(8);
  for (std::size_t j = 0; j < 8; ++j) wave[j] = static_cast<float>(std::cos(std::numbers::pi * (2.0 * j + 1) * 3 / 16));
  CosineTransform{8}.squares(wave, squares);
  EXPECT_NEAR(squares[3], 4.0, 1e-6);
  EXPECT_NEAR(std::accumulate(squares.begin(), squares.end(), 0.0), 4.0, 1e-6);
}

TEST(Transforms, KeepStrongestLosesWhatItDrops) {
  if (!RealTransform::available()) GTEST_SKIP() << "built without FFTW";
  for (const std::size_t n : {1UL, 2UL, 9UL, 64UL}) {
    std::vector<float> x(n);
    for (std::size_t j = 0; j < n; ++j) x[j] = static_cast<float>(1 + 4 * std::sin(2 * std::numbers::pi * 3 * j / n));
    const RealTransform transform{n};
    std::vector<double> out(n);
    transform.keep_strongest(x, transform.bins(), out);
    for (std::size_t j = 0; j < n; ++j) EXPECT_NEAR(out[j], x[j], 1e-12) << n;
    transform.keep_strongest(x, 0, out);
    for (const double value : out) EXPECT_EQ(value, 0.0);
    if (n != 64) continue;
    transform.keep_strongest(x, 1, out);  // the wave: of bins of a real signal it has 64, the mean 8
    for (std::size_t j = 0; j < n; ++j) EXPECT_NEAR(out[j], x[j] - 1, 1e-6);
  }
}

TEST(Transforms, KnownCaptures) {
  if (!RealTransform::available()) GTEST_SKIP() << "built without FFTW";
  // White noise: every orthonormal basis keeps what the values do, the Fourier basis a little less, because its
  // numbers come in pairs.
  const std::size_t n = 1 << 16;
  Capture white{1, 1};
  const auto noise = normal(n, 5);
  white.add(vector_of(n), [&](auto, auto, std::size_t i) { return noise[i]; });
  auto tables = run(*make_transforms(white.scope), white);
  for (const char* basis : {"identity", "dct", "hadamard", "haar"})
    EXPECT_NEAR(kept(tables, "native", basis, "0.15"), 0.5575, 0.006) << basis;
  EXPECT_NEAR(kept(tables, "native", "dft", "0.15"), 0.15 * (1 - std::log(0.15)), 0.006);
  EXPECT_GT(kept(tables, "sorted", "dct", "0.01"), 0.99) << "sorted values are smooth";
  EXPECT_GT(number(tables[0], 0, "spectral_entropy"), 0.93);

  // An autoregressive gradient: rho^lag, and the bases of low frequencies keep more than the values.
  const double rho = 0.95;
  std::vector<double> smooth(n);
  for (std::size_t i = 0; i < n; ++i)
    smooth[i] = (i > 0 ? rho * smooth[i - 1] : 0) + std::sqrt(1 - rho * rho) * noise[i];
  Capture correlated{1, 1};
  correlated.add(vector_of(n), [&](auto, auto, std::size_t i) { return smooth[i]; });
  tables = run(*make_transforms(correlated.scope), correlated);
  for (const char* basis : {"dft", "dct", "hadamard", "haar"})
    EXPECT_GT(kept(tables, "native", basis, "0.15"), kept(tables, "native", "identity", "0.15") + 0.2) << basis;
  for (const int lag : {1, 4, 16}) {
    const auto row = find(tables[3], {{"tensor", "t0"}, {"order", "native"}, {"lag", std::to_string(lag)}});
    EXPECT_NEAR(number(tables[3], row, "autocorrelation"), std::pow(rho, lag), 0.04) << lag;
  }
  EXPECT_LT(number(tables[0], 0, "spectral_entropy"), 0.8);

  // The loss of dropping is one minus the share that keeping keeps.
  const auto fft = find(tables[4], {{"tensor", "t0"}, {"method", "fft"}, {"theta", "0.85"}});
  const auto topk = find(tables[4], {{"tensor", "t0"}, {"method", "topk"}, {"theta", "0.85"}});
  EXPECT_NEAR(number(tables[4], fft, "nmse"), 1 - kept(tables, "native", "dft", "0.15"), 1e-9);
  EXPECT_NEAR(number(tables[4], topk, "nmse"), 1 - kept(tables, "native", "identity", "0.15"), 1e-9);
}

TEST(Transforms, SpectralEntropyIsThatOfTheFullSpectrum) {
  if (!RealTransform::available()) GTEST_SKIP() << "built without FFTW";
  const auto entropy = [](std::size_t n, auto value) {
    Capture capture{1, 1};
    capture.add(vector_of(n), [&](auto, auto, std::size_t i) { return static_cast<double>(value(i)); });
    return number(run(*make_transforms(capture.scope), capture)[0], 0, "spectral_entropy");
  };
  for (const std::size_t n : {8UL, 9UL, 64UL, 65UL}) {
    EXPECT_NEAR(entropy(n, [](std::size_t i) { return i == 3 ? 1 : 0; }), 1, 1e-6) << n << ": a spike has equal powers";
    const double step = 2 * std::numbers::pi / static_cast<double>(n);
    EXPECT_NEAR(entropy(n, [&](std::size_t i) { return std::cos(step * static_cast<double>(2 * i)); }),
                std::log(2) / std::log(static_cast<double>(n - 1)), 1e-6)
        << n << ": one frequency and its mirror image";
    if (n % 2 == 0) EXPECT_NEAR(entropy(n, [](std::size_t i) { return i % 2 == 0 ? 1 : -1; }), 0, 1e-6) << n;
  }
}

TEST(Transforms, PiecesOfLongTensorsArePooled) {
  if (!RealTransform::available()) GTEST_SKIP() << "built without FFTW";
  // Two pieces of 2^17 + 2 elements: each has its own spike, which a selection of 1 % keeps.
  const std::size_t n = (std::size_t{1} << 18) + 4;
  Capture capture{1, 1};
  capture.add(vector_of(n), [&](auto, auto, std::size_t i) { return i == 5 || i == n - 5 ? 1000.0 : 1e-3; });
  const auto tables = run(*make_transforms(capture.scope), capture);
  EXPECT_GT(kept(tables, "native", "identity", "0.01"), 0.999);
  EXPECT_GT(kept(tables, "native", "haar", "0.01"), 0.999);
  EXPECT_LT(kept(tables, "native", "hadamard", "0.25"), 0.5) << "a spike is in all Walsh functions alike";
}

}  // namespace
}  // namespace gradtool::test
