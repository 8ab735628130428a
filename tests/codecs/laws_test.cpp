// Laws against what they are defined as: published vectors, exhaustive loops, simple arithmetic.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "kernels/host/largest.hpp"
#include "kernels/host/select.hpp"
#include "kernels/law/bitpack.hpp"
#include "kernels/law/chunk_sums.hpp"
#include "kernels/law/half.hpp"
#include "kernels/law/normal.hpp"
#include "kernels/law/philox.hpp"
#include "kernels/law/qsgd.hpp"
#include "lib/core/arena.hpp"
#include "lib/core/sha256.hpp"
#include "tests/codecs/inputs.hpp"

namespace gradtool::test {
namespace {

TEST(Philox, KnownAnswers) {  // Random123's kat_vectors for philox4x32-10
  const auto zero = law::philox(0, 0, 0, 0, 0, 0);
  EXPECT_EQ(zero.bits[0], 0x6627e8d5U);
  EXPECT_EQ(zero.bits[1], 0xe169c58dU);
  EXPECT_EQ(zero.bits[2], 0xbc57ac4cU);
  EXPECT_EQ(zero.bits[3], 0x9b00dbd8U);
  const auto ones = law::philox(~0U, ~0U, ~0U, ~0U, ~0U, ~0U);
  EXPECT_EQ(ones.bits[0], 0x408f276dU);
  EXPECT_EQ(ones.bits[1], 0x41c83b0eU);
  EXPECT_EQ(ones.bits[2], 0xa20bc7c6U);
  EXPECT_EQ(ones.bits[3], 0x6d5451fdU);
}

TEST(Philox, UniformIsBelowOne) {
  EXPECT_LT(law::uniform(0xffffffffU), 1.0F);
  EXPECT_EQ(law::uniform(0), 0.0F);
}

TEST(Sha256, KnownAnswers) {  // FIPS 180-4 examples
  Sha256 empty;
  EXPECT_EQ(empty.hex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  Sha256 abc;
  const std::string text = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
  for (const char c : text) abc.update(std::as_bytes(std::span{&c, 1}));
  EXPECT_EQ(abc.hex(), "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

TEST(Half, EveryBinary16SurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = law::f32_from_f16(half);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(law::f32_from_f16(law::f16_from_f32(value))));
    } else {
      ASSERT_EQ(law::f16_from_f32(value), half) << bits;
    }
  }
}

TEST(Half, RoundsToNearestEven) {
  for (std::uint32_t bits = 0; bits < 0x7bff; ++bits) {  // halfway between neighbours goes to the even one
    const double low = static_cast<double>(law::f32_from_f16(static_cast<std::uint16_t>(bits)));
    const double high = static_cast<double>(law::f32_from_f16(static_cast<std::uint16_t>(bits + 1)));
    const auto middle = static_cast<float>((low + high) / 2.0);
    ASSERT_EQ(law::f16_from_f32(middle), bits % 2 == 0 ? bits : bits + 1) << bits;
    ASSERT_EQ(law::f16_from_f32(std::nextafter(middle, 0.0F)), bits);
    ASSERT_EQ(law::f16_from_f32(std::nextafter(middle, 1e30F)), bits + 1);
  }
  EXPECT_EQ(law::f16_from_f32(65519.99F), 0x7bffU);
  EXPECT_EQ(law::f16_from_f32(65520.0F), 0x7c00U);
  EXPECT_EQ(law::f16_from_f32(-1e30F), 0xfc00U);
}

TEST(Half, Bfloat16RoundsToNearestEven) {
  EXPECT_EQ(law::bf16_from_f32(law::float_of(0x3f808000)), 0x3f80U);
  EXPECT_EQ(law::bf16_from_f32(law::float_of(0x3f818000)), 0x3f82U);
  EXPECT_EQ(law::bf16_from_f32(law::float_of(0x3f808001)), 0x3f81U);
  EXPECT_TRUE(std::isnan(law::f32_from_bf16(law::bf16_from_f32(NAN))));
  EXPECT_TRUE(std::isinf(law::f32_from_bf16(law::bf16_from_f32(3.4e38F))));
}

TEST(Bitpack, CodesComeBackForEveryWidthAndCount) {
  for (std::uint32_t bits = 1; bits <= 16; ++bits) {
    for (const std::uint32_t count : {1U, 5U, 31U, 32U}) {
      std::vector<std::uint32_t> codes(count);
      for (std::uint32_t i = 0; i < count; ++i) codes[i] = (i * 2654435761U >> 7) & ((1U << bits) - 1);
      std::vector<std::uint32_t> words(law::packed_words(count, bits));
      for (std::uint32_t w = 0; w < words.size(); ++w) words[w] = law::packed_word(codes.data(), count, bits, w);
      for (std::uint32_t i = 0; i < count; ++i) ASSERT_EQ(law::unpacked(words.data(), words.size(), bits, i), codes[i]);
      EXPECT_EQ(law::unpacked(words.data(), 0, bits, count), 0U);  // reads nothing behind what is available
    }
  }
}

TEST(Selector, FindsTheCutThatSortingFinds) {
  Arena<Space::host> scratch{host::Selector::scratch_bytes()};
  const auto view = scratch.take_bytes(host::Selector::scratch_bytes());
  TaskPool pool{3};
  for (const std::size_t n : {1U, 2U, 33U, 5000U, 200'000U}) {
    std::vector<std::uint32_t> keys(n);
    for (std::size_t i = 0; i < n; ++i)
      keys[i] = law::draw4({.seed = n}, i).bits[0] >> (i % 3 == 0 ? 28 : 1);  // many ties
    auto sorted = keys;
    std::sort(sorted.rbegin(), sorted.rend());
    const auto key = [&](std::size_t i) { return keys[i]; };
    for (const std::size_t k : {std::size_t{1}, n / 3 + 1, n}) {
      for (const Queue<Space::host> queue : {Queue<Space::host>{}, Queue<Space::host>{&pool}}) {
        const host::Selector selector{queue, n, view};
        const host::Cut cut = selector.find(k, key);
        EXPECT_EQ(cut.threshold, sorted[k - 1]);
        const auto above = static_cast<std::size_t>(
            std::count_if(keys.begin(), keys.end(), [&](auto v) { return v > cut.threshold; }));
        EXPECT_EQ(cut.ties, k - above);
      }
    }
  }
}

TEST(Largest, TakesWhatSortingTakes) {
  TaskPool pool{3};
  for (const std::size_t n : {1U, 2U, 33U, 5000U, 200'003U}) {
    std::vector<float> x(n);
    for (std::size_t i = 0; i < n; ++i) {  // signs, ties inside a bin and across, subnormals, infinities and NaN
      const std::uint32_t bits = law::draw4({.seed = n}, i).bits[0];
      x[i] = law::float_of(i % 5 == 0 ? bits & 0x80700000U : i % 5 == 1 ? bits & 0xbfffffffU : bits & 0xbf000fffU);
      if (i % 997 == 3) x[i] = i % 2 == 0 ? INFINITY : NAN;
    }
    const auto magnitude = [&](std::size_t i) { return law::bits_of(x[i]) & 0x7fffffffU; };
    std::vector<std::uint32_t> order(n);
    std::iota(order.begin(), order.end(), 0U);
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return magnitude(a) > magnitude(b); });
    Arena<Space::host> arena{host::Largest::scratch_bytes(n) + 256};
    const auto scratch = arena.take_bytes(host::Largest::scratch_bytes(n));
    for (const std::size_t k : {std::size_t{0}, std::size_t{1}, n / 100, n / 3 + 1, n}) {
      std::vector<std::uint32_t> expected(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(k));
      std::sort(expected.begin(), expected.end());
      for (const Queue<Space::host> queue : {Queue<Space::host>{}, Queue<Space::host>{&pool}}) {
        std::vector<std::uint32_t> positions(k);
        std::vector<float> values(k);
        host::Largest{queue, {x.data(), n}, scratch}.select({positions.data(), k}, values.data());
        ASSERT_EQ(positions, expected) << k << " of " << n;
        for (std::size_t i = 0; i < k; ++i) ASSERT_EQ(law::bits_of(values[i]), law::bits_of(x[positions[i]]));
      }
    }
  }
}

TEST(Qsgd, LevelsSitOnTheirValuesAndStaySorted) {
  for (std::uint32_t bits = 2; bits <= 8; ++bits) {
    const auto q = law::Qsgd::with_bits(bits);
    const float norm = 0.75F;
    const float step = q.decode_factor(norm);
    for (std::uint32_t level = 0; level <= q.levels; ++level) {
      const float value = step * static_cast<float>(level);
      EXPECT_EQ(q.decode(step, level), value);
      EXPECT_EQ(q.decode(step, level | 1U << (bits - 1)), -value);
    }
    EXPECT_EQ(q.encode(q.encode_factor(norm), norm, 0.9999999F) & q.levels, q.levels);  // never above the top level
  }
  EXPECT_TRUE(std::isnan(law::Qsgd::stored_norm(INFINITY)));
  EXPECT_TRUE(std::isnan(law::Qsgd::stored_norm(NAN)));
  EXPECT_EQ(law::Qsgd::stored_norm(1e-38F), 0.0F);
}

TEST(NormalLaw, SeriesAreTheLibrarysFunctions) {
  for (std::uint32_t n = 1; n <= 1U << 24; n += n < 999 ? 1 : 4099) {
    const double expected = std::log(static_cast<double>(n) * 0x1p-24);
    ASSERT_NEAR(law::log_of_24_bits(n), expected, 1e-15 * std::abs(expected)) << n;
    const double angle = 2.0 * std::numbers::pi * static_cast<double>(n - 1) * 0x1p-24;
    ASSERT_NEAR(law::wave_of_24_bits(n - 1, false), std::sin(angle), 2e-15) << n;
    ASSERT_NEAR(law::wave_of_24_bits(n - 1, true), std::cos(angle), 2e-15) << n;
  }
}

TEST(NormalLaw, MomentsAreThoseOfANormalDistribution) {
  constexpr std::size_t kDraws = 400'000;
  double moments[4] = {};
  for (std::size_t i = 0; i < kDraws; ++i) {
    double power = 1.0;
    for (double& moment : moments) moment += (power *= static_cast<double>(law::normal({.seed = 5}, i))) / kDraws;
  }
  EXPECT_NEAR(moments[0], 0.0, 0.01);
  EXPECT_NEAR(moments[1], 1.0, 0.02);
  EXPECT_NEAR(moments[2], 0.0, 0.04);
  EXPECT_NEAR(moments[3], 3.0, 0.1);
}

TEST(GroupedSum, AddsSixtyFourInOrderAndThenTheGroups) {
  for (const std::size_t count : {0U, 1U, 63U, 64U, 65U, 128U, 1000U}) {
    const auto chunk = [](std::size_t i) { return 1.0 / (3.0 + static_cast<double>(i * i % 101)); };
    law::GroupedSum sum;
    for (std::size_t i = 0; i < count; ++i) sum.add(chunk(i));
    double expected = 0.0;
    for (std::size_t first = 0; first < count; first += 64) {
      double group = 0.0;
      for (std::size_t i = first; i < std::min(count, first + 64); ++i) group += chunk(i);
      expected += group;
    }
    EXPECT_EQ(sum.value(), expected) << count;
  }
}

}  // namespace
}  // namespace gradtool::test
