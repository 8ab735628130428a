#include "lib/io/utf8.hpp"

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
}

}  // namespace
}  // namespace gradtool
