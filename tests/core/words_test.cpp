// Tests that each enum with words has one for each of its values, and reads them back.
#include "lib/core/words.hpp"

#include <gtest/gtest.h>

#include <set>

#include "lib/comm/communicator.hpp"

namespace gradtool::test {
namespace {

enum class Fruit : unsigned char { apple, pear };
constexpr auto spellings(Fruit) {
  return words("apple", "pear");
}

template <class E>
void expect_words(E last) {
  constexpr auto kAll = spellings(E{});
  EXPECT_EQ(kAll.size(), static_cast<std::size_t>(last) + 1) << "a value without a word, or a word without a value";
  EXPECT_EQ(std::set(kAll.begin(), kAll.end()).size(), kAll.size());
  for (const auto word : kAll) EXPECT_EQ(name_of(named<E>(word).value()), word);
  EXPECT_FALSE(named<E>("no such word"));
  EXPECT_FALSE(named<E>(""));
}

TEST(Words, AreReadBack) {
  expect_words(Fruit::pear);
  expect_words(Level::across);
  expect_words(AllReduce::transpose);
  static_assert(name_of(Fruit::pear) == "pear" && named<Fruit>("pear") == Fruit::pear);
}

}  // namespace
}  // namespace gradtool::test
