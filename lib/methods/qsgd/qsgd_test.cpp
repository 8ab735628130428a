#include <gtest/gtest.h>

#include "kernels/bit_stream.hpp"
#include "kernels/pack_codes.hpp"
#include "lib/core/error.hpp"
#include "lib/methods/qsgd/format.hpp"
#include "tests/codecs/codec_run.hpp"
#include "tests/codecs/inputs.hpp"

namespace gradtool::test {
namespace {

template <std::uint32_t Bits>
void pack_and_unpack() {
  for (const std::size_t count : {1U, 7U, 31U, 32U, 33U, 256U, 2047U}) {
    std::vector<std::uint8_t> codes(count);
    for (std::size_t i = 0; i < count; ++i) codes[i] = (i * 2654435761U >> 9) & ((1U << Bits) - 1U);
    const std::size_t size = format::packed_words(count, Bits);
    std::vector<std::uint32_t> words(size + 1, 0xA5A5A5A5U);
    host::write_codes<Bits>(codes.data(), count, words.data());
    EXPECT_EQ(words[size], 0xA5A5A5A5U);
    for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(format::unpacked(words.data(), size, Bits, i), codes[i]);
    std::vector<std::uint8_t> back(count + 32);
    host::read_codes<Bits>(words.data(), count, back.data());
    back.resize(count);
    EXPECT_EQ(back, codes);
  }
}

TEST(PackCodes, PacksAsTheFormatSays) {
  pack_and_unpack<1>();
  pack_and_unpack<2>();
  pack_and_unpack<3>();
  pack_and_unpack<4>();
  pack_and_unpack<5>();
  pack_and_unpack<6>();
  pack_and_unpack<7>();
}

TEST(QsgdElias, SaysWhatFixedCodesSay) {
  for (const std::string spec : {"qsgd", "qsgd:bits=2,bucket=64", "qsgd:bits=8,norm=l2", "qsgd:bits=3,bucket=32768"}) {
    const auto x = gradient_like(50'011, 4);
    CodecRun fixed{spec, x.size()};
    CodecRun elias{spec + (spec == "qsgd" ? ":" : ",") + "code=elias", x.size(), 3};
    EXPECT_EQ(fixed.decode(fixed.encode(x)), elias.decode(elias.encode(x))) << spec;
  }
}

TEST(QsgdElias, WorkedExample) {
  // One bucket with norm 3 and three levels (bits=3): 3 and -3 are level 3 whatever is drawn, zeros level 0.
  std::vector<float> x(32, 0.0F);
  x[0] = 3.0F;
  x[5] = -3.0F;
  CodecRun run{"qsgd:bits=3,bucket=32,code=elias", x.size()};
  const auto payload = run.encode(x);
  ASSERT_EQ(payload.size(), 8U + 4U + 4U + 4U);
  std::uint32_t size = 0;
  std::memcpy(&size, payload.data() + 12, 4);
  // gap 1 (1 bit), sign, level 3 (4 bits: 0 1 0 1, the low bit of N + 1 = 2, then of 3); gap 5 (5 bits), sign, level 3
  EXPECT_EQ(size, 1U + 1U + 4U + 5U + 1U + 4U);
  host::BitReader bits{payload.data() + 16, 4};
  EXPECT_EQ(host::take_elias_delta(bits), 1U);
  EXPECT_EQ(bits.take(1), 0U);
  EXPECT_EQ(host::take_elias_delta(bits), 3U);
  EXPECT_EQ(host::take_elias_delta(bits), 5U);
  EXPECT_EQ(bits.take(1), 1U);
  EXPECT_EQ(host::take_elias_delta(bits), 3U);
  EXPECT_EQ(run.decode(payload), x);
}

/// Section 3.2 of the paper: with one level and the Euclidean norm, at most sqrt(d) of d elements are expected not to
/// be zero, namely |x|_1 / |x|_2.
TEST(QsgdElias, OneLevelLeavesTheRootOfABucket) {
  const std::size_t bucket = 1024;
  const std::size_t n = 64 * bucket;
  const auto x = gradient_like(n, 4);
  double expected = 0.0;
  for (std::size_t first = 0; first < n; first += bucket) {
    double sum = 0.0;
    double squares = 0.0;
    for (std::size_t i = first; i < first + bucket; ++i) {
      sum += std::abs(static_cast<double>(x[i]));
      squares += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    }
    expected += sum / std::sqrt(squares);
  }
  CodecRun run{"qsgd:bits=2,bucket=1024,norm=l2,code=elias", n};
  const auto payload = run.encode(x);
  const auto y = run.decode(payload);
  const auto sent = static_cast<double>(n - static_cast<std::size_t>(std::count(y.begin(), y.end(), 0.0F)));
  EXPECT_LE(expected, 64 * 32.0);
  EXPECT_NEAR(sent, expected, 5.0 * std::sqrt(expected));
  EXPECT_LT(payload.size(), n / 8) << "less than a bit an element";
}

TEST(Qsgd, LevelsSitOnTheirValuesAndStaySorted) {
  for (std::uint32_t bits = 2; bits <= 8; ++bits) {
    const auto q = format::Qsgd::with_bits(bits);
    const float norm = 0.75F;
    const float step = q.decode_factor(norm);
    for (std::uint32_t level = 0; level <= q.levels; ++level) {
      const float value = step * static_cast<float>(level);
      EXPECT_EQ(q.decode(step, level), value);
      EXPECT_EQ(q.decode(step, level | 1U << (bits - 1)), -value);
    }
    EXPECT_EQ(q.encode(q.encode_factor(norm), norm, 0.9999999F) & q.levels, q.levels);  // never above the top level
  }
  EXPECT_TRUE(std::isnan(format::Qsgd::stored_norm(INFINITY)));
  EXPECT_TRUE(std::isnan(format::Qsgd::stored_norm(NAN)));
  EXPECT_EQ(format::Qsgd::stored_norm(1e-38F), 0.0F);
}

/// E (x - y)^2 is the sum of f (1 - f) levels^2, f being an element's place between two levels.
TEST(Qsgd, ErrorIsThatOfStochasticRounding) {
  const std::size_t n = 1 << 16;
  const std::size_t bucket = 512;
  const auto x = gradient_like(n, 8);
  double expected = 0.0;
  double energy = 0.0;
  for (std::size_t first = 0; first < n; first += bucket) {
    double largest = 0.0;
    for (std::size_t i = first; i < first + bucket; ++i)
      largest = std::max(largest, std::abs(static_cast<double>(x[i])));
    const double level = largest / 7.0;
    for (std::size_t i = first; i < first + bucket; ++i) {
      const double place = std::abs(static_cast<double>(x[i])) / level;
      const double f = place - std::floor(place);
      expected += level * level * f * (1.0 - f);
      energy += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    }
  }
  CodecRun run{"qsgd", n};
  EXPECT_NEAR(nmse(x, run.decode(run.encode(x))), expected / energy, 0.02 * expected / energy);
}

TEST(QsgdElias, StreamsThatLieAreRefused) {
  const auto x = gradient_like(3000, 6);
  CodecRun run{"qsgd:bucket=512,code=elias", x.size()};
  auto payload = run.encode(x);
  auto shorter = payload;
  shorter[8 + 4 * 6] = static_cast<std::byte>(static_cast<unsigned>(shorter[8 + 4 * 6]) ^ 1U);  // one bit more or less
  EXPECT_THROW((void)run.decode(shorter), Error);
  auto zeros = payload;
  std::fill(zeros.begin() + 8 + 4 * 6 + 4, zeros.end(), std::byte{0});  // twelve zeros begin no code
  EXPECT_THROW((void)run.decode(zeros), Error);
}

}  // namespace
}  // namespace gradtool::test
