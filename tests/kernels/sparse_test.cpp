// Positions of sparse payloads: every code reads back, takes the bytes it says, and refuses what is damaged.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/bit_stream.hpp"
#include "kernels/sparse.hpp"
#include "lib/codecs/params.hpp"
#include "lib/core/arena.hpp"
#include "lib/core/error.hpp"
#include "tests/codecs/inputs.hpp"

namespace gradtool::test {
namespace {

TEST(EliasDelta, HasTheLengthsOfTheLiterature) {
  // floor(log2 x) + 2 floor(log2(floor(log2 x) + 1)) + 1
  for (const auto& [x, bits] : {std::pair{1U, 1U}, {2U, 4U}, {3U, 4U}, {4U, 5U}, {8U, 8U}, {100U, 11U}}) {
    EXPECT_EQ(host::elias_delta_bits(x), bits) << x;
  }
}

TEST(EliasDelta, ReadsBackEveryLength) {
  std::vector<std::uint32_t> numbers;
  for (unsigned shift = 0; shift < 32; ++shift) {
    for (const std::uint32_t low : {0U, 1U, 0x5A5A5A5AU}) {
      numbers.push_back((1U << shift) | (low & ((1U << shift) - 1U)));
    }
  }
  numbers.push_back(0xffffffffU);
  std::vector<std::byte> bytes(8 * numbers.size() + 8);
  host::BitWriter out{bytes.data()};
  std::size_t bits = 0;
  for (const auto x : numbers) {
    host::put_elias_delta(out, x);
    bits += host::elias_delta_bits(x);
  }
  const std::size_t written = out.finish();
  EXPECT_EQ(written, (bits + 7) / 8);
  host::BitReader in{bytes.data(), written};
  for (const auto x : numbers) ASSERT_EQ(host::take_elias_delta(in), x);
  EXPECT_FALSE(in.overrun());
}

std::vector<std::uint32_t> choose_positions(std::size_t n, double density, std::uint32_t seed) {
  std::vector<std::uint32_t> positions;
  for (std::size_t i = 0; i < n; ++i) {
    if (static_cast<double>(uniform_at(seed, i)) < density) positions.push_back(static_cast<std::uint32_t>(i));
  }
  return positions;
}

class IndexCodes : public testing::TestWithParam<std::string> {};

TEST_P(IndexCodes, ReadBackWhatTheyWrite) {
  const IndexCoding coding{GetParam()};
  for (const std::size_t n : {0U, 1U, 31U, 32U, 33U, 1000U, 70'001U}) {
    for (const double density : {0.0, 0.001, 0.02, 0.3, 1.0}) {
      const auto positions = choose_positions(n, density, static_cast<std::uint32_t>(n) + 1);
      const std::size_t k = positions.size();
      const HostView<const std::uint32_t> view{positions.data(), k};
      const auto choice = coding.choose(view, n);
      ASSERT_LE(choice.bytes, coding.bound(k, n)) << n << " " << density;
      ASSERT_EQ(choice.bytes % 4, 0U);
      Arena<Space::host> arena{choice.bytes};
      const auto section = arena.take_bytes(choice.bytes);
      IndexCoding::write({}, choice, view, n, section.data());
      std::vector<std::uint32_t> again(k);
      IndexCoding::read("test", choice.code, section, n, {again.data(), k});
      ASSERT_EQ(again, positions) << n << " " << density;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Words, IndexCodes, testing::Values("auto", "u32", "bitmap", "elias"));

TEST(IndexCodes, AutoTakesTheSmallest) {
  const std::size_t n = 100'000;
  for (const double density : {0.00003, 0.01, 0.2, 0.5, 1.0}) {
    const auto positions = choose_positions(n, density, 3);
    const HostView<const std::uint32_t> view{positions.data(), positions.size()};
    std::size_t smallest = SIZE_MAX;
    for (const char* word : {"u32", "bitmap", "elias"})
      smallest = std::min(smallest, IndexCoding{word}.choose(view, n).bytes);
    EXPECT_EQ(IndexCoding{"auto"}.choose(view, n).bytes, smallest) << density;
  }
  // At 1 % the gaps are geometric with mean 100: about 10 bits each, not 32.
  const auto positions = choose_positions(n, 0.01, 4);
  const auto choice = IndexCoding{"auto"}.choose({positions.data(), positions.size()}, n);
  EXPECT_EQ(choice.code, IndexCode::elias);
  EXPECT_LT(8.0 * static_cast<double>(choice.bytes) / static_cast<double>(positions.size()), 11.0);
}

TEST(IndexCodes, RefuseWhatIsNotAscendingOrTooFar) {
  const auto refused = [](IndexCode code, std::vector<std::uint32_t> words, std::size_t n, std::size_t k) {
    std::vector<std::uint32_t> out(k);
    try {
      IndexCoding::read("test", code, {reinterpret_cast<const std::byte*>(words.data()), 4 * words.size()}, n,
                        {out.data(), k});
      return false;
    } catch (const Error& error) {
      return error.fault() == Fault::data;
    }
  };
  EXPECT_FALSE(refused(IndexCode::u32, {3, 5}, 6, 2));
  EXPECT_TRUE(refused(IndexCode::u32, {5, 3}, 6, 2));
  EXPECT_TRUE(refused(IndexCode::u32, {3, 3}, 6, 2));
  EXPECT_TRUE(refused(IndexCode::u32, {3, 6}, 6, 2));
  EXPECT_TRUE(refused(IndexCode::bitmap, {0x7}, 6, 2));    // three marks for two values
  EXPECT_TRUE(refused(IndexCode::bitmap, {0x1}, 6, 2));    // one
  EXPECT_TRUE(refused(IndexCode::bitmap, {0x41}, 6, 2));   // past the end
  EXPECT_TRUE(refused(IndexCode::elias, {0}, 6, 1));       // no code begins with twelve zeros
  EXPECT_TRUE(refused(IndexCode::elias, {0xF, 0}, 6, 4));  // a word too many
  EXPECT_FALSE(refused(IndexCode::elias, {0xF}, 6, 4));
}

}  // namespace
}  // namespace gradtool::test
