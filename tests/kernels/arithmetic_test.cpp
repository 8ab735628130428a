// The arithmetic that payload formats share, against what it is defined as: published vectors, exhaustive loops, plain
// sums.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/bitpack.hpp"
#include "kernels/draws.hpp"
#include "kernels/float_bits.hpp"
#include "kernels/select.hpp"
#include "kernels/sums.hpp"
#include "lib/core/arena.hpp"
#include "tests/codecs/inputs.hpp"

namespace gradtool::test {
namespace {

TEST(Philox, KnownAnswers) {  // Random123's kat_vectors for philox4x32-10
  const auto zero = format::philox(0, 0, 0, 0, 0, 0);
  EXPECT_EQ(zero.bits[0], 0x6627e8d5U);
  EXPECT_EQ(zero.bits[1], 0xe169c58dU);
  EXPECT_EQ(zero.bits[2], 0xbc57ac4cU);
  EXPECT_EQ(zero.bits[3], 0x9b00dbd8U);
  const auto ones = format::philox(~0U, ~0U, ~0U, ~0U, ~0U, ~0U);
  EXPECT_EQ(ones.bits[0], 0x408f276dU);
  EXPECT_EQ(ones.bits[1], 0x41c83b0eU);
  EXPECT_EQ(ones.bits[2], 0xa20bc7c6U);
  EXPECT_EQ(ones.bits[3], 0x6d5451fdU);
}

TEST(Philox, UniformIsBelowOne) {
  EXPECT_LT(format::uniform(0xffffffffU), 1.0F);
  EXPECT_EQ(format::uniform(0), 0.0F);
}

TEST(Half, EveryBinary16SurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = format::f32_from_f16(half);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(format::f32_from_f16(format::f16_from_f32(value))));
    } else {
      ASSERT_EQ(format::f16_from_f32(value), half) << bits;
    }
  }
}

TEST(Half, RoundsToNearestEven) {
  for (std::uint32_t bits = 0; bits < 0x7bff; ++bits) {  // halfway between neighbours goes to the even one
    const double low = static_cast<double>(format::f32_from_f16(static_cast<std::uint16_t>(bits)));
    const double high = static_cast<double>(format::f32_from_f16(static_cast<std::uint16_t>(bits + 1)));
    const auto middle = static_cast<float>((low + high) / 2.0);
    ASSERT_EQ(format::f16_from_f32(middle), bits % 2 == 0 ? bits : bits + 1) << bits;
    ASSERT_EQ(format::f16_from_f32(std::nextafter(middle, 0.0F)), bits);
    ASSERT_EQ(format::f16_from_f32(std::nextafter(middle, 1e30F)), bits + 1);
  }
  EXPECT_EQ(format::f16_from_f32(65519.99F), 0x7bffU);
  EXPECT_EQ(format::f16_from_f32(65520.0F), 0x7c00U);
  EXPECT_EQ(format::f16_from_f32(-1e30F), 0xfc00U);
}

TEST(Half, Bfloat16RoundsToNearestEven) {
  EXPECT_EQ(format::bf16_from_f32(format::float_of(0x3f808000)), 0x3f80U);
  EXPECT_EQ(format::bf16_from_f32(format::float_of(0x3f818000)), 0x3f82U);
  EXPECT_EQ(format::bf16_from_f32(format::float_of(0x3f808001)), 0x3f81U);
  EXPECT_TRUE(std::isnan(format::f32_from_bf16(format::bf16_from_f32(NAN))));
  EXPECT_TRUE(std::isinf(format::f32_from_bf16(format::bf16_from_f32(3.4e38F))));
}

TEST(Bitpack, CodesComeBackForEveryWidthAndCount) {
  for (std::uint32_t bits = 1; bits <= 16; ++bits) {
    for (const std::uint32_t count : {1U, 5U, 31U, 32U}) {
      std::vector<std::uint32_t> codes(count);
      for (std::uint32_t i = 0; i < count; ++i) codes[i] = (i * 2654435761U >> 7) & ((1U << bits) - 1);
      std::vector<std::uint32_t> words(format::packed_words(count, bits));
      for (std::uint32_t w = 0; w < words.size(); ++w) words[w] = format::packed_word(codes.data(), count, bits, w);
      for (std::uint32_t i = 0; i < count; ++i)
        ASSERT_EQ(format::unpacked(words.data(), words.size(), bits, i), codes[i]);
      EXPECT_EQ(format::unpacked(words.data(), 0, bits, count), 0U);  // reads nothing behind what is available
    }
  }
}

TEST(GroupedSum, AddsSixtyFourInOrderAndThenTheGroups) {
  for (const std::size_t count : {0U, 1U, 63U, 64U, 65U, 128U, 1000U}) {
    const auto chunk = [](std::size_t i) { return 1.0 / (3.0 + static_cast<double>(i * i % 101)); };
    format::GroupedSum sum;
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
