#include "lib/core/parse.hpp"

#include <gtest/gtest.h>

#include <cstdint>

namespace gradtool::test {
namespace {

TEST(Split, KeepsEmptyParts) {
  using Parts = std::vector<std::string_view>;
  EXPECT_EQ(split("", ','), Parts{});
  EXPECT_EQ(split("a", ','), Parts{"a"});
  EXPECT_EQ(split("a,,b,", ','), (Parts{"a", "", "b", ""}));
}

TEST(NumberOf, TakesTheWholeTextOrNothing) {
  EXPECT_EQ(number_of<int>("42"), 42);
  EXPECT_EQ(number_of<double>("1e-2"), 0.01);
  for (const char* text : {"", " 1", "1 ", "+1", "0x10", "1.5", "2147483648", "one"})
    EXPECT_EQ(number_of<int>(text), std::nullopt) << text;
  EXPECT_EQ(number_of<std::uint64_t>("-1"), std::nullopt);
  EXPECT_EQ(number_of<double>("1e400"), std::nullopt);
}

}  // namespace
}  // namespace gradtool::test
