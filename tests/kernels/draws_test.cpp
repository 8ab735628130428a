#include "kernels/draws.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace gradtool::test {
namespace {

TEST(DrawTile, EveryInstructionSetDrawsWhatTheLawDraws) {
  constexpr std::size_t kCount = 3 * host::kDrawGroup + 1;
  const format::DrawKey key{.seed = 0x123456789abcdef0, .step = 7, .rank = 0xffffffff, .tensor = 0x00ffee};
  ASSERT_FALSE(host::draw_fills().empty());
  for (const std::uint64_t first : {std::uint64_t{0}, std::uint64_t{4}, (std::uint64_t{1} << 34) - 128,
                                    std::uint64_t{1} << 34, (std::uint64_t{5} << 34) + 4}) {
    for (const auto fill : host::draw_fills()) {
      std::vector<std::uint32_t> out(4 * host::kDrawGroup + 1, 0xA5A5A5A5U);
      fill(key, first, kCount, out.data());
      for (std::size_t i = 0; i < 4 * host::kDrawGroup; ++i)
        ASSERT_EQ(out[i], format::draw4(key, (first + i) / 4).bits[i % 4]) << first << "+" << i;
      EXPECT_EQ(out.back(), 0xA5A5A5A5U) << "wrote past the group";
    }
  }
}

}  // namespace
}  // namespace gradtool::test
