#include "lib/core/text.hpp"

#include <gtest/gtest.h>

#include "tests/core/fault.hpp"

namespace gradtool::test {
namespace {

TEST(ParseBytes, TakesDecimalAndBinaryUnits) {
  EXPECT_EQ(parse_bytes("25MB", "x"), 25'000'000U);
  EXPECT_EQ(parse_bytes("4MiB", "x"), 4U << 20);
  EXPECT_EQ(parse_bytes("512K", "x"), 512U << 10);
  EXPECT_EQ(parse_bytes("100", "x"), 100U);
  EXPECT_EQ(parse_bytes("100B", "x"), 100U);
  EXPECT_EQ(parse_bytes("3kB", "x"), 3000U);
  EXPECT_EQ(parse_bytes("3KB", "x"), 3000U);
  EXPECT_EQ(parse_bytes("3KiB", "x"), 3072U);
  EXPECT_EQ(parse_bytes("2M", "x"), 2U << 20);
  EXPECT_EQ(parse_bytes("2GB", "x"), 2'000'000'000U);
  EXPECT_EQ(parse_bytes("2G", "x"), std::uint64_t{2} << 30);
  EXPECT_EQ(parse_bytes("2GiB", "x"), std::uint64_t{2} << 30);
  EXPECT_EQ(parse_bytes("1.5GB", "x"), 1'500'000'000U);
}

TEST(ParseBytes, HasEdges) {
  EXPECT_EQ(parse_bytes("1", "x"), 1U);
  EXPECT_EQ(parse_bytes("1.9", "x"), 1U);  // a part of a byte is dropped
  EXPECT_EQ(parse_bytes("0.001kB", "x"), 1U);
  EXPECT_EQ(parse_bytes("4611686018427387904", "x"), std::uint64_t{1} << 62);
  for (const char* bad : {"0", "0.5", "0.0009kB", "4611686018427389952", "1e30GB", "inf", "-1MB", "-0"}) {
    EXPECT_THROW(static_cast<void>(parse_bytes(bad, "x")), Error) << bad;
  }
}

TEST(ParseBytes, RefusesWhatIsNoSize) {
  for (const char* bad : {"", "MB", "3XB", "nan", "3 MB", " 3MB", "3MB ", "3mb", "3MiB/s", "0x10", "1,5MB", "+3"}) {
    EXPECT_THROW(static_cast<void>(parse_bytes(bad, "x")), Error) << bad;
  }
  EXPECT_EQ(message_of(Fault::usage, [] { static_cast<void>(parse_bytes("3XB", "--size")); }),
            "--size: '3XB' is not a size; write for example 25MB, 4MiB or 65536");
}

TEST(HumanBytes, HasThreeDigitsAndDecimalPrefixes) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1), "1 B");
  EXPECT_EQ(human_bytes(999), "999 B");
  EXPECT_EQ(human_bytes(1000), "1.00 kB");
  EXPECT_EQ(human_bytes(12'340), "12.3 kB");
  EXPECT_EQ(human_bytes(123'400), "123 kB");
  EXPECT_EQ(human_bytes(4'200'000), "4.20 MB");
  EXPECT_EQ(human_bytes(7e9), "7.00 GB");
  EXPECT_EQ(human_bytes(1.25e12), "1.25 TB");
  EXPECT_EQ(human_bytes(5e15), "5000 TB");
}

// A number that rounds up to the next power of ten takes the digits, or the unit, of that power.
TEST(HumanBytes, RoundsAtTheBorders) {
  EXPECT_EQ(human_bytes(999.4), "999 B");
  EXPECT_EQ(human_bytes(999.6), "1.00 kB");
  EXPECT_EQ(human_bytes(9'994), "9.99 kB");
  EXPECT_EQ(human_bytes(9'996), "10.0 kB");
  EXPECT_EQ(human_bytes(99'940), "99.9 kB");
  EXPECT_EQ(human_bytes(99'960), "100 kB");
  EXPECT_EQ(human_bytes(999'400), "999 kB");
  EXPECT_EQ(human_bytes(999'600), "1.00 MB");
}

TEST(HumanSeconds, ChoosesTheUnit) {
  EXPECT_EQ(human_seconds(0), "0.00 us");
  EXPECT_EQ(human_seconds(12.34e-6), "12.3 us");
  EXPECT_EQ(human_seconds(4.2e-3), "4.20 ms");
  EXPECT_EQ(human_seconds(1.5), "1.5 s");
  EXPECT_EQ(human_seconds(119.9), "119.9 s");
  EXPECT_EQ(human_seconds(120), "2 min 0 s");
  EXPECT_EQ(human_seconds(200), "3 min 20 s");
  EXPECT_EQ(human_seconds(3600), "60 min 0 s");
}

TEST(HumanSeconds, RoundsAtTheBorders) {
  EXPECT_EQ(human_seconds(999.4e-6), "999 us");
  EXPECT_EQ(human_seconds(999.6e-6), "1.00 ms");
  EXPECT_EQ(human_seconds(0.9994), "999 ms");
  EXPECT_EQ(human_seconds(0.9996), "1.0 s");
  EXPECT_EQ(human_seconds(119.96), "2 min 0 s");
  EXPECT_EQ(human_seconds(179.4), "2 min 59 s");
  EXPECT_EQ(human_seconds(179.7), "3 min 0 s");  // and not 2 min 60 s
}

TEST(Nearest, FindsWhatWasMeantOrNothing) {
  EXPECT_EQ(nearest("granularty", {"comm", "granularity", "codec"}), "granularity");
  EXPECT_EQ(nearest("codec", {"comm", "granularity", "codec"}), "codec");
  EXPECT_EQ(nearest("topkk", {"topk", "topk-block"}), "topk");
  EXPECT_EQ(nearest("zzzzzzz", {"comm", "codec"}), "");
  EXPECT_EQ(nearest("word", {}), "");
  EXPECT_EQ(nearest("ab", {"cd", "ad"}), "ad");
}

TEST(Matches, SearchesAnywhereInTheText) {
  EXPECT_TRUE(matches("conv", "layer1.0.conv1.weight"));
  EXPECT_TRUE(matches("^layer[12]\\.", "layer1.0.conv1.weight"));
  EXPECT_FALSE(matches("^conv", "layer1.0.conv1.weight"));
  EXPECT_TRUE(matches("", "anything"));
  const std::string message = message_of(Fault::usage, [] { static_cast<void>(matches("a(", "a")); });
  EXPECT_TRUE(message.starts_with("'a(' is not a regular expression: ")) << message;
}

TEST(Matches, EndsWhateverThePatternIs) {
  EXPECT_TRUE(matches("^layer[0-9]+\\.conv(1|2)\\.(?:weight|bias)$", "layer3.conv2.bias"));
  EXPECT_FALSE(matches("(a*)*b", std::string(1000, 'a')));
  EXPECT_FALSE(matches("(a|aa)+$", std::string(1000, 'a') + "b"));
  EXPECT_FALSE(matches("(((((((((a*)*)*)*)*)*)*)*)*)*b", std::string(100, 'a')));
  EXPECT_TRUE(matches(std::string(490, '(') + "a" + std::string(490, ')'), "a"));
  for (const std::string& bad : {std::string(20'000, '('), std::string(1001, 'a'), std::string{"(a)\\1"}}) {
    EXPECT_THROW(static_cast<void>(matches(bad, "a")), Error) << bad.substr(0, 20);
  }
}

TEST(Wrapped, BreaksLinesAtSpacesAndIndentsAllButTheFirst) {
  EXPECT_EQ(wrapped("", 10), "\n");
  EXPECT_EQ(wrapped("one two", 10), "one two\n");
  EXPECT_EQ(wrapped("one two", 7), "one two\n");
  EXPECT_EQ(wrapped("one two three", 9), "one two\n  three\n");
  EXPECT_EQ(wrapped("one two three", 9, "...."), "one two\n....three\n");
  EXPECT_EQ(wrapped("  one two", 6), "  one\n  two\n") << "what the text begins with is kept";
  EXPECT_EQ(wrapped("abcdefghijk", 6), "abcdef\n  ghij\n  k\n") << "a word that no line can hold";
}

}  // namespace
}  // namespace gradtool::test
