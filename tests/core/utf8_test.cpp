#include "lib/core/utf8.hpp"

#include <gtest/gtest.h>

namespace gradtool {
namespace {

TEST(Utf8, AcceptsWellFormedText) {
  for (const char* text :
       {"", "plain", "\u00e9", "\u20ac", "\U0001f600", "\u0080", "\u0800", "\U00010000", "\U0010ffff"}) {
    EXPECT_TRUE(is_utf8(text)) << text;
  }
}

TEST(Utf8, RefusesEverythingElse) {
  for (const char* text : {"\x80", "\xc3", "\xc0\xaf", "\xc1\xbf", "\xe0\x80\xaf", "\xe2\x82", "\xed\xa0\x80",
                           "\xf0\x80\x80\x80", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "a\xe9z"}) {
    EXPECT_FALSE(is_utf8(text)) << printable(text);
  }
}

TEST(Utf8, ControlCharactersAreSeenAndShown) {
  EXPECT_FALSE(has_control("caf\u00e9 x"));
  EXPECT_TRUE(has_control("a\nb"));
  EXPECT_TRUE(has_control("a\x7f"));
  EXPECT_EQ(printable("a\nb\x1b[31m"), "a\\x0ab\\x1b[31m");
  EXPECT_EQ(printable("\u009b31m\u202ea\u2028"), "\\xc2\\x9b31m\\xe2\\x80\\xaea\\xe2\\x80\\xa8")
      << "C1, directions and line ends";
  EXPECT_EQ(printable("a\xff\xc3\xa4\u20ac\xf0\x9f\x98\x80\xe2\x80"), "a\\xff\xc3\xa4\u20ac\xf0\x9f\x98\x80\\xe2\\x80");
  EXPECT_TRUE(has_control("a\u0085b"));
  EXPECT_FALSE(has_control("\u00a0\u00c2"));
}

}  // namespace
}  // namespace gradtool
