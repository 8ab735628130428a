// exponent: every bit comes back, and the exponents take hardly more than their entropy.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <numeric>
#include <random>

#include "lib/core/error.hpp"
#include "lib/methods/exponent/format.hpp"
#include "tests/codecs/codec_run.hpp"
#include "tests/codecs/inputs.hpp"

namespace gradtool::test {
namespace {

using format::Exponents;

/// Encodes and decodes on two threads; the bits must be those of `expected`. Returns the payload's size.
std::size_t round_trip(const std::string& spec, const std::vector<float>& x, const std::vector<float>& expected) {
  CodecRun run{spec, x.size(), 2};
  const auto payload = run.encode(x);
  std::vector<float> y(x.size(), 1.0F);
  run.codec().decode(run.queue(), {payload.data(), payload.size()}, {y.data(), y.size()}, {});
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < x.size(); ++i) wrong += format::bits_of(y[i]) != format::bits_of(expected[i]) ? 1 : 0;
  EXPECT_EQ(wrong, 0U) << spec << ", " << x.size() << " elements";
  return payload.size();
}
std::size_t round_trip(const std::string& spec, const std::vector<float>& x) {
  return round_trip(spec, x, x);
}

/// Patterns with all bits random, or with exponents that are as unequal as those of gradients but take all values.
std::vector<float> patterns(std::size_t n, bool unequal) {
  std::mt19937_64 random{n};
  std::vector<float> x(n);
  for (float& value : x) {
    const std::uint64_t draw = random();
    auto bits = static_cast<std::uint32_t>(draw);
    const auto steps = static_cast<std::uint32_t>(std::countr_zero(draw >> 32 | 1ULL << 31));
    if (unequal && draw >> 63 == 0) bits = (bits & 0x807fffffU) | (125U - steps) << 23;
    value = format::float_of(bits);
  }
  return x;
}

/// Bytes that the exponents would take at their entropy.
double entropy_bytes(const std::vector<float>& x) {
  std::array<double, 256> counts{};
  for (const float value : x) counts[format::bits_of(value) >> 23 & 0xffU] += 1.0;
  double bits = 0.0;
  for (const double count : counts)
    if (count > 0.0) bits -= count * std::log2(count / static_cast<double>(x.size()));
  return bits / 8.0;
}

std::vector<float> as_bf16(std::vector<float> x) {
  for (float& value : x) value = format::f32_from_bf16(format::bf16_from_f32(value));
  return x;
}

TEST(Exponent, EveryBfloat16PatternComesBack) {
  std::vector<float> x(1 << 16);
  for (std::uint32_t i = 0; i < x.size(); ++i) x[i] = format::float_of(i << 16);
  EXPECT_EQ(round_trip("exponent", x), 8 + 4 + 2 * x.size());  // equal exponents cannot be compressed
  round_trip("exponent:dtype=fp32", x);
  // A multiplication by 13^-1 mod 2^16 spreads them, and ones between make them compressible.
  std::vector<float> sparse(1 << 19, 1.0F);
  for (std::uint32_t i = 0; i < 1 << 16; ++i) sparse[8 * i + i % 8] = format::float_of(i * 20165U << 16);
  EXPECT_LT(round_trip("exponent", sparse), 1.4 * static_cast<double>(sparse.size()));
  round_trip("exponent:dtype=fp32", sparse);
}

TEST(Exponent, TenMillionRandomPatternsComeBack) {
  const std::size_t n = 5'000'000;
  EXPECT_EQ(round_trip("exponent", patterns(n, false)), 8 + 4 * Exponents{n}.chunks() + 4 * n);  // sent as they are
  EXPECT_LT(round_trip("exponent", patterns(n, true)), 4 * n * 97 / 100);
}

TEST(Exponent, ShortVectorsComeBack) {
  for (std::size_t n = 0; n < 200; ++n) round_trip("exponent", patterns(n, true));
  for (const std::size_t n : {1000U, 1023U, 65535U, 65537U, 131'072U + 31U}) round_trip("exponent", patterns(n, true));
}

TEST(Exponent, AddingToNegativeZeroKeepsTheSignOfZero) {
  std::vector<float> x(3000, -0.0F);
  x[7] = 0.0F;
  x[8] = -1e-45F;
  x[9] = -INFINITY;
  x[10] = format::float_of(0xffc12345U);
  CodecRun run{"exponent", x.size()};
  std::vector<float> out(x.size(), -0.0F);
  run.decode_add(run.encode(x), 1.0F, out);
  for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(format::bits_of(out[i]), format::bits_of(x[i])) << i;
}

TEST(Exponent, RoundsToBfloat16WhereAsked) {
  const auto x = gradient_like(70'000, 3);
  EXPECT_EQ(round_trip("exponent:dtype=bf16", x, as_bf16(x)), round_trip("exponent", as_bf16(x)));
}

TEST(Exponent, EveryChunkHasItsOwnWidth) {
  auto x = gradient_like(2 * Exponents::kChunk, 3);
  const auto narrow = as_bf16(x);
  std::copy(narrow.begin(), narrow.begin() + static_cast<std::ptrdiff_t>(Exponents::kChunk), x.begin());
  CodecRun run{"exponent", x.size()};
  const auto payload = run.encode(x);
  std::uint32_t entries[2];
  std::memcpy(entries, payload.data() + Exponents::sizes_offset(), sizeof entries);
  EXPECT_EQ(entries[0] & format::kExponentKindMask, format::kCoded16);
  EXPECT_EQ(entries[1] & format::kExponentKindMask, format::kCoded32);
  round_trip("exponent", x);
  EXPECT_GT(round_trip("exponent:dtype=fp32", narrow), round_trip("exponent", narrow) + 4 * Exponents::kChunk - 100);
}

/// Half of the elements have one exponent and half another: exactly a bit each. Every state starts at 2^16 and gives a
/// word away after each 16 symbols.
TEST(Exponent, WorkedExample) {
  std::vector<float> x(Exponents::kChunk);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = i / 32 % 2 == 0 ? 1.0F : 2.0F;
  CodecRun run{"exponent", x.size()};
  const auto payload = run.encode(x);
  ASSERT_EQ(payload.size(), 8 + 4 + 32 + 128 + 2 * 2 + 65536 + 65536 / 8);
  std::uint32_t bitmap[8];
  std::uint16_t frequencies[2];
  std::memcpy(bitmap, payload.data() + 12, sizeof bitmap);
  std::memcpy(frequencies, payload.data() + 12 + 32 + 128, sizeof frequencies);
  EXPECT_EQ(bitmap[3], 1U << 31);  // exponents 127 and 128
  EXPECT_EQ(bitmap[4], 1U);
  EXPECT_EQ(frequencies[0], 2048);
  EXPECT_EQ(frequencies[1], 2048);
  // One exponent takes no bits at all.
  std::fill(x.begin(), x.end(), -1.5F);
  EXPECT_EQ(round_trip("exponent", x), 8U + 4 + 32 + 128 + 4 + 65536);
}

TEST(Exponent, PushAndPopAreInverse) {
  std::mt19937 random{7};
  for (std::uint32_t f = 1; f <= format::Rans::kTotal; ++f) {
    const std::uint32_t start = random() % (format::Rans::kTotal - f + 1);
    const auto symbol = format::Rans::symbol(start, f);
    const std::uint64_t end = std::uint64_t{f} << 20;
    for (const std::uint64_t state :
         {std::uint64_t{16} * f, end - 1, end - f, end - f - 1, 16 * f + random() % (end - 16 * f)}) {
      const auto s = static_cast<std::uint32_t>(state);
      ASSERT_FALSE(format::Rans::is_full(s, symbol));
      const std::uint32_t pushed = format::Rans::push(s, symbol);
      ASSERT_EQ(pushed, state / f * format::Rans::kTotal + start + state % f) << f << ' ' << state;
      const std::uint32_t offset = pushed % format::Rans::kTotal - start;
      ASSERT_LT(offset, f);
      ASSERT_EQ(format::Rans::pop(pushed, format::Rans::slot(5, f, offset)), s);
    }
    if (f < format::Rans::kTotal) ASSERT_TRUE(format::Rans::is_full(static_cast<std::uint32_t>(end), symbol));
  }
}

TEST(Exponent, FrequenciesAddUpAndLeaveNoneOut) {
  std::mt19937 random{11};
  for (int round = 0; round < 2000; ++round) {
    std::array<std::uint32_t, 256> counts{};
    const std::uint32_t kinds = 1 + random() % 256;
    std::uint32_t total = 0;
    for (std::uint32_t k = 0; k < kinds; ++k) {
      const std::uint32_t count = round % 2 == 0 ? 1 + random() % 3 : 1 + random() % (65536 / kinds);
      counts[random() % 256] = count;
    }
    if (round % 2 == 0) counts[random() % 256] += 50'000;  // many that round up to 1
    total = std::accumulate(counts.begin(), counts.end(), 0U);
    std::array<std::uint16_t, 256> frequencies{};
    Exponents::scale_counts(counts.data(), total, frequencies.data());
    ASSERT_EQ(std::accumulate(frequencies.begin(), frequencies.end(), 0U), format::Rans::kTotal);
    for (std::size_t s = 0; s < 256; ++s) ASSERT_EQ(frequencies[s] == 0, counts[s] == 0) << s;
  }
}

/// 98 of 100 bytes of the exponents are information, for normal values of float32 and of bfloat16.
TEST(Exponent, ReachesTheEntropyOfExponents) {
  const std::size_t n = 1 << 20;
  std::vector<float> x(n);
  const auto draws = normal(n, 5);
  std::transform(draws.begin(), draws.end(), x.begin(), [](double v) { return static_cast<float>(1e-3 * v); });
  for (const bool narrow : {false, true}) {
    const auto values = narrow ? as_bf16(x) : x;
    const double mantissas = static_cast<double>(n) * (narrow ? 1.0 : 3.0);
    const auto header = static_cast<double>(8 + 4 * Exponents{n}.chunks());
    const double exponents = static_cast<double>(round_trip("exponent", values)) - mantissas - header;
    const double bound = entropy_bytes(values);
    EXPECT_GT(exponents, bound);
    EXPECT_LT(exponents, bound / 0.98);
    EXPECT_NEAR(8.0 * bound / static_cast<double>(n), 2.55, 0.05);  // of the exponent of a normal variable
  }
}

/// Whatever is changed in sizes, tables, states or words shows, at the latest in the states that are left.
TEST(Exponent, FindsDamagedExponents) {
  const std::size_t n = 4000;
  CodecRun run{"exponent", n};
  const auto payload = run.encode(gradient_like(n, 3));
  std::vector<float> out(n);
  std::uint32_t bitmap[8];
  std::memcpy(bitmap, payload.data() + 12, sizeof bitmap);
  std::size_t used = 0;
  for (const std::uint32_t word : bitmap) used += static_cast<std::size_t>(std::popcount(word));
  const std::size_t mantissas = 12 + format::CodedChunk{n, used, true}.upper_offset();
  const std::size_t words = 12 + format::CodedChunk{n, used, true}.words_offset();
  for (std::size_t at = 0; at < payload.size(); at += at < mantissas ? 1 : 7) {
    if (at >= mantissas && at < words) continue;
    if (at >= 12 && at < 12 + sizeof bitmap) continue;  // another exponent of the same frequency is no contradiction
    auto damaged = payload;
    damaged[at] ^= std::byte{0x10};
    EXPECT_THROW(run.decode_add(damaged, 1.0F, out), Error) << "byte " << at;
  }
}

}  // namespace
}  // namespace gradtool::test
