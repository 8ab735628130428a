// Worked examples, the closed form for eps, and the simulation table of the FFT paper's replication.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>

#include "kernels/law/range_float.hpp"
#include "lib/codecs/fft_options.hpp"
#include "lib/core/error.hpp"
#include "tests/codecs/codec_run.hpp"
#include "tests/codecs/inputs.hpp"

namespace gradtool::test {
namespace {

using law::RangeFloat;

TEST(RangeFloat, WorkedExampleOfFigure8) {
  // N=8, m=3, range +-2, eps 0.125 given (not tuned): 0.256 becomes code 9 and decodes to 0.25.
  RangeFloat f{.bits = 8, .shift = 20, .pbase = law::bits_of(0.125F) >> 20, .positives = 0, .negatives = 0};
  f.positives = (law::bits_of(2.0F) >> 20) - f.pbase + 1;
  f.negatives = 255 - f.positives;
  EXPECT_EQ(f.pbase, 0x3E0U);
  EXPECT_EQ(law::bits_of(0.256F) >> 20, 0x3E8U);
  EXPECT_EQ(f.encode(0.256F), 9U);
  EXPECT_EQ(f.decode(9), 0.25F);
  EXPECT_EQ(f.encode(2.0F), 33U);
}

TEST(RangeFloat, ClosedFormMatchesTheTableForRangeOne) {
  struct Row {
    std::uint32_t bits, mantissa, pbase;
    double eps;
  };
  for (const Row& row :
       {Row{8, 2, 382, 3.49e-10}, Row{8, 3, 890, 1.91e-5}, Row{8, 4, 1906, 4.39e-3}, Row{8, 5, 3938, 6.64e-2},
        Row{10, 4, 1522, 2.62e-10}, Row{10, 5, 3554, 1.62e-5}, Row{10, 6, 7618, 4.03e-3}, Row{10, 7, 15746, 6.35e-2}}) {
    const auto made = RangeFloat::make(row.bits, row.mantissa, 1.0F, 1.0F, false);
    ASSERT_TRUE(made.valid);
    EXPECT_EQ(made.format.pbase, row.pbase);
    EXPECT_NEAR(static_cast<double>(made.format.eps()) / row.eps, 1.0, 0.005);
  }
  const auto ten = RangeFloat::make(10, 6, 1.0F, 1.0F, false).format;
  EXPECT_EQ(ten.positives, 511U);
  EXPECT_EQ(ten.negatives, 512U);
  EXPECT_EQ(ten.decode(511), 1.0F);
  EXPECT_EQ(ten.decode(1023), -1.015625F);
  EXPECT_FALSE(RangeFloat::make(10, 1, 1.0F, 1.0F, false).valid);  // more codes than patterns below 1
  EXPECT_FALSE(RangeFloat::make(10, 2, 1.0F, 1.0F, false).valid);
}

TEST(RangeFloat, ClosedFormCoversTheRangeForEveryFormat) {
  for (std::uint32_t bits = 4; bits <= 16; ++bits) {
    for (std::uint32_t mantissa = 0; mantissa < bits; ++mantissa) {
      for (const float range : {0.5F, 1.0F, 5.0F, 1e-4F, 0.05F}) {
        for (const float low : {range, range / 3.0F}) {
          const auto [f, valid] = RangeFloat::make(bits, mantissa, range, low, false);
          if (!valid) continue;
          EXPECT_EQ(f.positives + f.negatives + 1, 1U << bits);
          EXPECT_EQ(law::bits_of(f.decode(f.positives)) >> f.shift, law::bits_of(range) >> f.shift);  // max has a code
          EXPECT_LE(static_cast<double>(f.decode(f.positives)), static_cast<double>(range));
          // The all-ones code reaches min, and one step more of eps would not.
          const float lowest = f.decode((1U << bits) - 1);
          EXPECT_GE(law::bits_of(-lowest) >> f.shift, law::bits_of(low) >> f.shift);
          EXPECT_LE(law::bits_of(-lowest) >> f.shift, (law::bits_of(low) >> f.shift) + 1);
        }
      }
    }
  }
}

TEST(RangeFloat, EncodingADecodedCodeIsTheCode) {
  for (const auto& [bits, mantissa] :
       std::map<std::uint32_t, std::uint32_t>{{4, 0}, {8, 3}, {10, 6}, {13, 9}, {16, 12}}) {
    for (const bool nearest : {false, true}) {
      const auto f = RangeFloat::make(bits, mantissa, 1.0F, 1.0F, nearest).format;
      float previous = 0.0F;
      for (std::uint32_t code = 0; code < 1U << bits; ++code) {
        const float value = f.decode(code);
        ASSERT_EQ(f.encode(value), code) << bits << " bits";
        if (code > 1 && code != f.positives + 1)
          ASSERT_GT(std::abs(value), std::abs(previous));  // monotone in both halves
        previous = value;
      }
    }
  }
}

TEST(RangeFloat, ClampsUnderflowsAndKeepsSigns) {
  const auto f = RangeFloat::make(10, 6, 1.0F, 1.0F, false).format;
  EXPECT_EQ(f.decode(f.encode(7.0F)), 1.0F);
  EXPECT_EQ(f.decode(f.encode(-7.0F)), -1.015625F);
  EXPECT_EQ(f.encode(f.eps()), 1U);
  EXPECT_EQ(f.encode(-f.eps()), f.positives + 1);
  EXPECT_EQ(f.encode(std::nextafter(f.eps(), 0.0F)), 0U);
  EXPECT_EQ(f.encode(0.0F), 0U);
  EXPECT_EQ(f.encode(-0.0F), 0U);
  EXPECT_EQ(f.encode(1e-40F), 0U);
}

TEST(RangeFloat, TruncationAndRoundingStayWithinOneStep) {
  const auto down = RangeFloat::make(10, 6, 1.0F, 1.0F, false).format;
  const auto near = RangeFloat::make(10, 6, 1.0F, 1.0F, true).format;
  double bias_down = 0.0;
  double bias_near = 0.0;
  int count = 0;
  for (float x = 0.005F; x < 0.98F; x *= 1.0001F, ++count) {
    const double a = static_cast<double>(down.decode(down.encode(x)));
    const double b = static_cast<double>(near.decode(near.encode(x)));
    EXPECT_LE(a, static_cast<double>(x));
    EXPECT_LT((static_cast<double>(x) - a) / static_cast<double>(x), 0x1p-6);
    EXPECT_LE(std::abs(static_cast<double>(x) - b) / static_cast<double>(x), 0x1p-7);
    bias_down += a / static_cast<double>(x) - 1.0;
    bias_near += b / static_cast<double>(x) - 1.0;
  }
  EXPECT_NEAR(bias_down / count, -0.35 * 0x1p-6, 0.02 * 0x1p-6);
  EXPECT_NEAR(bias_near / count, 0.0, 0.02 * 0x1p-6);
}

TEST(FftCodec, HonestRatiosOfThePaper) {
  // A power-of-two chunk: B-bit bitmap, header 32 bytes. Spec 1.5.2, last column.
  const std::size_t n = 1 << 20;
  const auto ratio = [&](const std::string& spec) {
    return 4.0 * static_cast<double>(n) / static_cast<double>(CodecRun{spec, n}.footprint().payload_bytes);
  };
  EXPECT_NEAR(ratio("fft:theta=0.85,bits=10,chunk=whole"), 16.0, 0.02);
  EXPECT_NEAR(ratio("fft:theta=0.9,bits=8,chunk=whole"), 24.6, 0.05);
  EXPECT_NEAR(ratio("fft:theta=0.95,bits=10,chunk=whole"), 32.0, 0.05);
  EXPECT_NEAR(ratio("fft:theta=0.85,bits=32,chunk=whole"), 6.04, 0.01);
}

TEST(FftCodec, ThetaZeroWithPlainFloatsIsLosslessToRounding) {
  for (const std::size_t n : {4U, 5U, 7U, 100U, 1000U, 1001U}) {
    CodecRun run{"fft:theta=0,bits=32", n};
    const auto x = gradient_like(n);
    EXPECT_LT(nmse(x, run.decode(run.encode(x))), 1e-12) << n;
  }
}

TEST(FftCodec, KeepsExactlyKEvenWithMassiveTies) {
  const std::size_t n = 4096;
  std::vector<float> impulse(n, 0.0F);
  impulse[0] = 1.0F;  // a flat spectrum: every bin ties
  CodecRun run{"fft:theta=0.5", n};
  const auto payload = run.encode(impulse);
  law::FftHeader header;
  std::memcpy(&header, payload.data(), sizeof header);
  EXPECT_EQ(header.kept, 1025U);  // round(0.5 * 2049), half away from zero
  std::uint32_t first = 0;
  std::memcpy(&first, payload.data() + sizeof header, sizeof first);
  EXPECT_EQ(first, 0xffffffffU);  // ties go to the lower index
  EXPECT_EQ(run.decode(payload).size(), n);
}

TEST(FftCodec, ScheduleFollowsIterationAndLearningRate) {
  const FftOptions drop{parse_codec("fft:theta=0.9,schedule=drop,drop_at=100,theta_end=0.25").params};
  EXPECT_EQ(drop.theta({.key = {}, .iteration = 99}), 0.9);
  EXPECT_EQ(drop.theta({.key = {}, .iteration = 100}), 0.25);
  const FftOptions root{parse_codec("fft:theta=0.9,schedule=sqrt_lr").params};
  EXPECT_DOUBLE_EQ(root.theta({.key = {}, .learning_rate_ratio = 0.25}), 0.45);
  EXPECT_DOUBLE_EQ(root.theta({.key = {}, .learning_rate_ratio = 4.0}), 0.9);  // never above the first
}

TEST(FftCodec, RefusesFormatsThatDoNotExist) {
  for (const std::string spec :
       {"fft:bits=10,mantissa=1", "fft:bits=20", "fft:bits=10,mantissa=2", "fft:theta=1.5", "fft:bits=3"}) {
    try {
      const CodecRun run{spec, 100};
      FAIL() << spec << " was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.fault(), Fault::usage) << spec;
    }
  }
}

/// Relative L2 error of keeping 15 % without a quantiser, over `seeds` signals of 8192.
double relative_error(const std::string& spec, const std::vector<double>& signal) {
  std::vector<float> x(signal.begin(), signal.end());
  CodecRun run{spec, x.size()};
  return std::sqrt(nmse(x, run.decode(run.encode(x))));
}

class SimulationTable : public testing::Test {
 protected:
  static constexpr std::size_t kLength = 8192;

  void expect(const std::function<std::vector<double>(std::uint32_t)>& make, double fft, double topk,
              double tolerance = 0.012) {
    double by_fft = 0.0;
    double by_topk = 0.0;
    constexpr int kSignals = 40;
    for (std::uint32_t seed = 1; seed <= kSignals; ++seed) {
      const auto signal = make(seed);
      by_fft += relative_error("fft:theta=0.85,bits=32,chunk=whole", signal) / kSignals;
      by_topk += relative_error("topk:ratio=0.15", signal) / kSignals;
    }
    EXPECT_NEAR(by_fft, fft, tolerance);
    EXPECT_NEAR(by_topk, topk, tolerance);
  }

  static std::vector<double> autoregressive(double rho, std::uint32_t seed) {
    auto x = normal(kLength, seed);
    for (std::size_t i = 1; i < x.size(); ++i) x[i] = rho * x[i - 1] + std::sqrt(1.0 - rho * rho) * x[i];
    return x;
  }
};

TEST_F(SimulationTable, WhiteGaussian) {
  // Closed forms: sqrt(1 - 0.4346) for the exponential power of a flat spectrum, sqrt(1 - 0.5575) for normal values.
  expect([](std::uint32_t seed) { return normal(kLength, seed); }, 0.7519, 0.6652, 0.004);
}
TEST_F(SimulationTable, WhiteLaplace) {
  expect(
      [](std::uint32_t seed) {
        std::vector<double> x(kLength);
        for (std::size_t i = 0; i < x.size(); ++i) {
          const double u = static_cast<double>(uniform_at(seed, i)) + 0x1p-25 - 0.5;
          x[i] = (u < 0 ? 1.0 : -1.0) * std::log(1.0 - 2.0 * std::abs(u));
        }
        return x;
      },
      0.7519, 0.5436, 0.004);  // t = -ln 0.15: sqrt(1 - 0.15 (t^2 + 2 t + 2) / 2)
}
// One signal of length 8192 scatters by about 0.01 around these.
TEST_F(SimulationTable, AutoregressiveHalf) {
  expect([](std::uint32_t seed) { return autoregressive(0.5, seed); }, 0.655, 0.669);
}
TEST_F(SimulationTable, AutoregressiveNineTenths) {
  expect([](std::uint32_t seed) { return autoregressive(0.9, seed); }, 0.338, 0.674);
}

TEST_F(SimulationTable, BlockMeansWithUnevenNoise) {
  // Blocks of 64 with a common mean and their own noise level: neighbours are correlated, so frequencies win.
  double by_fft = 0.0;
  double by_topk = 0.0;
  for (std::uint32_t seed = 1; seed <= 10; ++seed) {
    const auto noise = normal(kLength, seed);
    const auto block = normal(2 * kLength / 64, seed + 100);
    std::vector<double> x(kLength);
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = block[i / 64] + 0.8 * std::exp(0.5 * block[kLength / 64 + i / 64]) * noise[i];
    }
    by_fft += relative_error("fft:theta=0.85,bits=32,chunk=whole", x) / 10;
    by_topk += relative_error("topk:ratio=0.15", x) / 10;
  }
  EXPECT_LT(by_fft, by_topk - 0.03);
}

}  // namespace
}  // namespace gradtool::test
