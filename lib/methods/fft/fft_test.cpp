// The fft codec on the CPU: its number format and the ratios of the paper, the paper's advantage over topk on
// correlated signals, and what the codec does beyond the paper's defaults: tails, selection by chunk, calibration,
// binary16.
#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <functional>
#include <map>
#include <numbers>

#include "kernels/transform.hpp"
#include "lib/core/error.hpp"
#include "lib/methods/fft/options.hpp"
#include "lib/methods/fft/spectrum.hpp"
#include "tests/codecs/codec_run.hpp"
#include "tests/codecs/inputs.hpp"

namespace gradtool::test {
namespace {

using format::RangeFloat;

format::FftHeader header_of(std::span<const std::byte> payload) {
  format::FftHeader header;
  std::memcpy(&header, payload.data(), sizeof header);
  return header;
}

TEST(RangeFloat, WorkedExampleOfFigure8) {
  // N=8, m=3, range +-2, eps 0.125 given (not tuned): 0.256 becomes code 9 and decodes to 0.25.
  RangeFloat f{.bits = 8, .shift = 20, .pbase = format::bits_of(0.125F) >> 20, .positives = 0, .negatives = 0};
  f.positives = (format::bits_of(2.0F) >> 20) - f.pbase + 1;
  f.negatives = 255 - f.positives;
  EXPECT_EQ(f.pbase, 0x3E0U);
  EXPECT_EQ(format::bits_of(0.256F) >> 20, 0x3E8U);
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
    ASSERT_TRUE(made.has_value());
    EXPECT_EQ(made->pbase, row.pbase);
    EXPECT_NEAR(static_cast<double>(made->eps()) / row.eps, 1.0, 0.005);
  }
  const auto ten = RangeFloat::make(10, 6, 1.0F, 1.0F, false).value();
  EXPECT_EQ(ten.positives, 511U);
  EXPECT_EQ(ten.negatives, 512U);
  EXPECT_EQ(ten.decode(511), 1.0F);
  EXPECT_EQ(ten.decode(1023), -1.015625F);
  EXPECT_FALSE(RangeFloat::make(10, 1, 1.0F, 1.0F, false).has_value());  // more codes than patterns below 1
  EXPECT_FALSE(RangeFloat::make(10, 2, 1.0F, 1.0F, false).has_value());
}

TEST(RangeFloat, ClosedFormCoversTheRangeForEveryFormat) {
  for (std::uint32_t bits = 4; bits <= 16; ++bits) {
    for (std::uint32_t mantissa = 0; mantissa < bits; ++mantissa) {
      for (const float range : {0.5F, 1.0F, 5.0F, 1e-4F, 0.05F}) {
        for (const float low : {range, range / 3.0F}) {
          const auto made = RangeFloat::make(bits, mantissa, range, low, false);
          if (!made) continue;
          const RangeFloat& f = *made;
          EXPECT_EQ(f.positives + f.negatives + 1, 1U << bits);
          EXPECT_EQ(format::bits_of(f.decode(f.positives)) >> f.shift,
                    format::bits_of(range) >> f.shift);  // max has a code
          EXPECT_LE(static_cast<double>(f.decode(f.positives)), static_cast<double>(range));
          // The all-ones code reaches min, and one step more of eps would not.
          const float lowest = f.decode((1U << bits) - 1);
          EXPECT_GE(format::bits_of(-lowest) >> f.shift, format::bits_of(low) >> f.shift);
          EXPECT_LE(format::bits_of(-lowest) >> f.shift, (format::bits_of(low) >> f.shift) + 1);
        }
      }
    }
  }
}

TEST(RangeFloat, EncodingADecodedCodeIsTheCode) {
  for (const auto& [bits, mantissa] :
       std::map<std::uint32_t, std::uint32_t>{{4, 0}, {8, 3}, {10, 6}, {13, 9}, {16, 12}}) {
    for (const bool nearest : {false, true}) {
      const auto f = RangeFloat::make(bits, mantissa, 1.0F, 1.0F, nearest).value();
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
  const auto f = RangeFloat::make(10, 6, 1.0F, 1.0F, false).value();
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
  const auto down = RangeFloat::make(10, 6, 1.0F, 1.0F, false).value();
  const auto near = RangeFloat::make(10, 6, 1.0F, 1.0F, true).value();
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

TEST(FftScaling, TruncationLeavesTheLargestComponentItsCode) {
  // Without the reciprocal rounded up about one of seven largest components would lose a code: 3 % of its value at 8
  // bits.
  const auto ten = RangeFloat::make(10, 6, 1.0F, 1.0F, false).value();
  const auto sixteen = RangeFloat::make(16, 12, 1.0F, 1.0F, false).value();
  const std::uint32_t smallest = format::bits_of(format::FftScaling::kSmallestPeak);
  for (std::uint32_t pattern = smallest; pattern < 0x7f800000U; pattern += 9973) {
    const float peak = format::float_of(pattern);
    const auto scaling = format::FftScaling::of(pattern, 1.0F, true);
    ASSERT_EQ(scaling.scale, peak);
    ASSERT_EQ(ten.decode(ten.encode(peak * scaling.factor)), 1.0F) << peak;
    ASSERT_EQ(sixteen.decode(sixteen.encode(peak * scaling.factor)), 1.0F) << peak;
    ASSERT_EQ(sixteen.decode(sixteen.encode(-peak * scaling.factor)), -1.0F) << peak;
  }
}

TEST(FftCodec, HonestRatiosOfThePaper) {
  // With the header of 32 bytes and the bitmap counted.
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
  impulse[0] = 1.0F;  // its spectrum is flat: all bins have the same power
  CodecRun run{"fft:theta=0.5", n};
  const auto payload = run.encode(impulse);
  format::FftHeader header;
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
  EXPECT_DOUBLE_EQ(root.theta({.key = {}, .learning_rate_ratio = 4.0}), 0.9);  // never above theta
  EXPECT_THROW(static_cast<void>(FftOptions{parse_codec("fft:theta=0.9,schedule=drop").params}), Error);
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

/// Relative L2 error of a codec on one signal.
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

TEST(RealTransform, IsTheTransformAtEveryKindOfLength) {
  for (const std::size_t n :
       {1U, 5U, 64U, 1000U, 32768U, 65536U, 131072U}) {  // RealTransform splits powers of two from 32768 on
    const host::RealTransform transform{n};
    Arena<Space::host> arena{8 * n + 1024};
    const auto real = arena.take<float>(n);
    const auto spectrum = arena.take<float>(2 * transform.bins());
    const auto x = gradient_like(n, 3);
    std::copy(x.begin(), x.end(), real.data());
    transform.forward(real.data(), spectrum.data());
    double energy = 0.0;
    for (const float v : x) energy += static_cast<double>(v) * static_cast<double>(v);
    const double tolerance = 1e-6 * std::sqrt(energy);  // rounding is a few 1e-7 of a typical bin, sqrt(energy)
    for (std::size_t i = 0; i <= 40; ++i) {
      const std::size_t k = i * (n / 2) / 40;
      std::complex<double> sum;
      for (std::size_t j = 0; j < n; ++j) {
        const double turn = static_cast<double>(k * j % n) / static_cast<double>(n);
        sum += static_cast<double>(x[j]) * std::polar(1.0, -2.0 * std::numbers::pi * turn);
      }
      ASSERT_NEAR(spectrum[2 * k], sum.real(), tolerance) << n << " bin " << k;
      ASSERT_NEAR(spectrum[2 * k + 1], sum.imag(), tolerance) << n << " bin " << k;
    }
    transform.inverse(spectrum.data(), real.data());
    std::vector<float> back(n);
    for (std::size_t i = 0; i < n; ++i) back[i] = real[i] / static_cast<float>(n);
    EXPECT_LT(nmse(x, back), 1e-12) << n;
  }
}

TEST(FftTail, LosesNothingToPadding) {
  // 268,650 elements are four chunks and a tail. Padding the tail to a chunk would give a ratio of 13.2.
  const std::size_t n = 268'650;
  const double ratio = 4.0 * static_cast<double>(n) / static_cast<double>(CodecRun{"fft", n}.footprint().payload_bytes);
  EXPECT_NEAR(ratio, 16.0, 0.03);
}

TEST(FftTail, IsTransformedLikeTheRest) {
  for (const std::size_t n : {65U, 66U, 67U, 127U, 129U, 200U, 1000U}) {
    CodecRun lossless{"fft:theta=0,bits=32,chunk=64", n};
    const auto x = gradient_like(n);
    EXPECT_LT(nmse(x, lossless.decode(lossless.encode(x))), 1e-12) << n;
  }
  // A tone in the tail alone, as strong a unitary coefficient as one in a chunk: both are kept, and nothing else.
  std::vector<float> x(64 + 16);
  for (std::size_t i = 0; i < 64; ++i) x[i] = std::cos(2.0F * std::numbers::pi_v<float> * static_cast<float>(i) / 8.0F);
  for (std::size_t i = 0; i < 16; ++i)
    x[64 + i] = 2.0F * std::cos(2.0F * std::numbers::pi_v<float> * static_cast<float>(i) / 4.0F);
  CodecRun two{"fft:theta=0.953,bits=32,chunk=64", x.size()};
  const auto payload = two.encode(x);
  ASSERT_EQ(header_of(payload).kept, 2U);
  EXPECT_LT(nmse(x, two.decode(payload)), 1e-12);
}

TEST(FftSelect, ChunkGivesEveryPieceItsShare) {
  const std::size_t n = 4 * 256 + 100;
  auto x = gradient_like(n);
  for (std::size_t i = 0; i < 256; ++i) x[i] *= 1000.0F;  // the first chunk would take everything
  const auto kept_by_piece = [&](const std::string& spec) {
    CodecRun run{spec, n};
    const auto payload = run.encode(x);
    const auto shape = format::FftShape::of(n, 256);
    std::vector<std::size_t> kept(shape.pieces());
    for (std::size_t p = 0; p < shape.pieces(); ++p) {
      for (std::size_t b = shape.first_bin(p); b < shape.first_bin(p) + shape.piece_bins(p); ++b)
        kept[p] += std::to_integer<std::size_t>(payload[32 + b / 8] >> (b % 8) & std::byte{1});
    }
    return kept;
  };
  EXPECT_EQ(kept_by_piece("fft:theta=0.9,chunk=256,select=chunk"), (std::vector<std::size_t>{13, 13, 13, 13, 5}));
  EXPECT_EQ(kept_by_piece("fft:theta=0.9,chunk=256"), (std::vector<std::size_t>{57, 0, 0, 0, 0}));
}

TEST(HalfRound, KeepsElevenBitsOfWhatIsLarge) {
  std::vector<float> x{1.0F, 1.0F + 0x1p-10F, 1.0F + 0x1p-11F, 1.0F + 0x1p-11F + 0x1p-20F, -0.75F,
                       0.0F, 0x1p-21F,        0x1p-40F};
  auto y = x;
  host::round_to_half(y.data(), y.size(), 8);  // scaled by 2^7: normal down to 2^-21, then subnormal in steps of 2^-31
  EXPECT_EQ(y, (std::vector<float>{1.0F, 1.0F + 0x1p-10F, 1.0F, 1.0F + 0x1p-10F, -0.75F, 0.0F, 0x1p-21F, 0.0F}));
  std::vector<float> tiny(4, 0x1p-100F);  // the same for any power of two
  host::round_to_half(tiny.data(), tiny.size(), 15);
  EXPECT_EQ(tiny, std::vector<float>(4, 0x1p-100F));
}

TEST(FftHalf, CostsWhatBinary16Costs) {
  const std::size_t n = 100'000;
  const auto x = gradient_like(n);
  CodecRun single{"fft:theta=0,bits=32", n};
  CodecRun half{"fft:theta=0,bits=32,precision=fp16", n};
  EXPECT_LT(nmse(x, single.decode(single.encode(x))), 1e-12);
  // Rounding to eleven bits: relative variance about 2^-24 / 3 times the mean of 1/m^2 over mantissas, twice.
  const double error = nmse(x, half.decode(half.encode(x)));
  EXPECT_GT(error, 2e-8);
  EXPECT_LT(error, 2.0 * 0x1p-22);
  auto huge = x;  // nothing overflows, however large the input or its sum
  for (auto& v : huge) v = 1e30F;
  EXPECT_LT(nmse(huge, half.decode(half.encode(huge))), 1e-6);
}

/// Steps of one encoder, with what each payload says.
class Calibrated {
 public:
  Calibrated(const std::string& spec, std::size_t n)
      : run_{spec, n}, encoder_{run_.codec().make_encoder(n, 1, run_.queue())} {}

  format::FftHeader step(const std::vector<float>& x, double* error = nullptr) {
    encoder_->encode(run_.queue(), {x.data(), x.size()}, {}, {}, run_.payload(), run_.scratch());
    const std::vector<std::byte> payload{run_.payload().data(), run_.payload().data() + run_.payload().size()};
    if (error != nullptr) *error = nmse(x, run_.decode(payload));
    return header_of(payload);
  }
  [[nodiscard]] Encoder<Space::host>& encoder() { return *encoder_; }

 private:
  CodecRun run_;
  std::unique_ptr<Encoder<Space::host>> encoder_;
};

std::vector<float> times(std::vector<float> x, float factor) {
  for (auto& v : x) v *= factor;
  return x;
}

TEST(FftCalibrated, TakesTheRangeOfTheFirstStepsAndStartsOverWhenItIsLeft) {
  const std::size_t n = 20'000;
  Calibrated run{"fft:range=calibrated,calibrate=3,mantissa=6", n};
  const auto x = gradient_like(n);
  EXPECT_NE(run.encoder().note().find("3 more steps"), std::string::npos);
  const float first = run.step(x).scale;
  const float second = run.step(times(x, 2.0F)).scale;
  EXPECT_EQ(second, 2.0F * first);
  run.step(std::vector<float>(n, 0.0F));  // zeros do not count as a step
  run.step(times(x, 0.5F));
  EXPECT_NE(run.encoder().note().find("calibration"), std::string::npos);
  double error = 0.0;
  EXPECT_EQ(run.step(times(x, 1.5F), &error).scale, second);  // from here on the range of the largest
  EXPECT_EQ(run.step(times(x, 0.1F)).scale, second);
  EXPECT_LT(error, 0.85);
  EXPECT_EQ(run.encoder().note().find("recalibrated"), std::string::npos);
  EXPECT_EQ(run.step(times(x, 16.0F), &error).scale,
            16.0F * first);  // far outside: its own scale, and a new calibration
  EXPECT_LT(error, 0.85);
  run.step(x);
  run.step(x);
  EXPECT_EQ(run.step(x).scale, 16.0F * first);
  EXPECT_NE(run.encoder().note().find("recalibrated 1 time"), std::string::npos);
  run.encoder().reset({});
  EXPECT_EQ(run.step(x).scale, first);
}

TEST(FftCalibrated, ToleratesAFewSaturatedCodes) {
  // One tone above the range among 15 000 kept components is below the share of 1e-4; it is clipped to the range.
  const std::size_t n = 100'000;
  Calibrated run{"fft:range=calibrated,calibrate=1,chunk=whole", n};
  auto x = gradient_like(n);
  const float range = run.step(x).scale;
  for (std::size_t i = 0; i < n; ++i) x[i] += i % 2 == 0 ? 0.01F : -0.01F;  // all in the last bin, which is real
  EXPECT_EQ(run.step(x).scale, range);
  EXPECT_EQ(run.encoder().note().find("recalibrated"), std::string::npos);
}

TEST(FftCalibrated, ChoosesTheMantissaThatErrsLeast) {
  const std::size_t n = 50'000;
  auto x = gradient_like(n);
  Calibrated chosen{"fft:range=calibrated,calibrate=1", n};
  chosen.step(x);
  double best = 0.0;
  const auto mantissa = chosen.step(x, &best).mantissa;
  for (std::uint32_t m = 3; m <= 8; ++m) {
    Calibrated fixed{"fft:range=calibrated,calibrate=1,mantissa=" + std::to_string(m), n};
    double error = 0.0;
    fixed.step(x);
    EXPECT_EQ(fixed.step(x, &error).mantissa, m);
    EXPECT_LE(best, error * (1.0 + 1e-6)) << m << " instead of " << mantissa;
  }
}

}  // namespace
}  // namespace gradtool::test
