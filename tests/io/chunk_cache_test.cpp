#include "lib/io/chunk_cache.hpp"

#include <gtest/gtest.h>

namespace gradtool::hdf5 {
namespace {

/// A cache that counts what had to be unpacked.
struct Counted {
  ChunkCache cache{100};
  int unpacked = 0;
  std::size_t get(std::uint64_t set, std::uint64_t chunk, std::size_t bytes) {
    const auto unpack = [&] {
      ++unpacked;
      return std::vector<std::byte>(bytes);
    };
    return cache.get({set, {0, 0, chunk}}, unpack).size();
  }
};

TEST(ChunkCache, KeepsWhatWasUsedLastAsFarAsItFits) {
  Counted counted;
  EXPECT_EQ(counted.get(1, 0, 40), 40U);
  EXPECT_EQ(counted.get(1, 1, 41), 41U);
  EXPECT_EQ(counted.get(1, 0, 40), 40U);
  EXPECT_EQ(counted.get(2, 0, 19), 19U);  // the same place in another data set
  EXPECT_EQ(counted.unpacked, 3);
  EXPECT_EQ(counted.get(2, 1, 1), 1U);  // the chunk of 41 bytes goes
  EXPECT_EQ(counted.get(1, 0, 40), 40U);
  EXPECT_EQ(counted.get(2, 0, 19), 19U);
  EXPECT_EQ(counted.unpacked, 4);
  EXPECT_EQ(counted.get(1, 1, 41), 41U);
  EXPECT_EQ(counted.unpacked, 5);
}

TEST(ChunkCache, AChunkThatIsLargerThanAllIsHeldAlone) {
  Counted counted;
  counted.get(1, 0, 60);
  EXPECT_EQ(counted.get(1, 1, 500), 500U);
  EXPECT_EQ(counted.get(1, 1, 500), 500U);
  EXPECT_EQ(counted.unpacked, 2);
  counted.get(1, 0, 60);
  EXPECT_EQ(counted.unpacked, 3);
}

TEST(ChunkCache, AFailureLeavesItAsItWas) {
  Counted counted;
  counted.get(1, 0, 60);
  EXPECT_THROW(counted.cache.get({1, {0, 0, 1}}, []() -> std::vector<std::byte> { throw 1; }), int);
  counted.get(1, 0, 60);
  EXPECT_EQ(counted.unpacked, 1);
}

}  // namespace
}  // namespace gradtool::hdf5
