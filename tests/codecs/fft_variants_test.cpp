// What the fft codec does beyond the paper's defaults: split transforms, tails, ranges by calibration, selection by
// chunk, binary16.
#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <numbers>

#include "kernels/host/half_round.hpp"
#include "kernels/host/real_transform.hpp"
#include "lib/codecs/fft_calibration.hpp"
#include "tests/codecs/codec_run.hpp"
#include "tests/codecs/inputs.hpp"

namespace gradtool::test {
namespace {

law::FftHeader header_of(std::span<const std::byte> payload) {
  law::FftHeader header;
  std::memcpy(&header, payload.data(), sizeof header);
  return header;
}

TEST(RealTransform, IsTheTransformAtEveryKindOfLength) {
  for (const std::size_t n : {1U, 5U, 64U, 1000U, 32768U, 65536U, 131072U}) {  // from 32768 on it is split
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
  // 268 650 elements, five chunks with padding: 13.2 instead of the paper's 16 before the last piece was shortened.
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
    const auto shape = law::FftShape::of(n, 256);
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

  law::FftHeader step(const std::vector<float>& x, double* error = nullptr) {
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
  run.step(std::vector<float>(n, 0.0F));  // zeros teach nothing
  run.step(times(x, 0.5F));
  EXPECT_NE(run.encoder().note().find("calibration"), std::string::npos);
  double error = 0.0;
  EXPECT_EQ(run.step(times(x, 1.5F), &error).scale, second);  // from here on the range of the largest
  EXPECT_EQ(run.step(times(x, 0.1F)).scale, second);
  EXPECT_LT(error, 0.85);
  EXPECT_EQ(run.encoder().note().find("recalibrated"), std::string::npos);
  EXPECT_EQ(run.step(times(x, 16.0F), &error).scale, 16.0F * first);  // far out: its own scale, and a new calibration
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
