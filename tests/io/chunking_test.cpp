
#include <gtest/gtest.h>

#include "lib/io/schema.hpp"

namespace gradtool {
namespace {

using Shape = std::vector<std::uint64_t>;

TEST(ChunkShape, NeverExceedsFourMebibytesNorTheDataSet) {
  for (const std::uint64_t bytes : {2, 4}) {
    for (const std::uint64_t workers : {1, 2, 3, 7, 64, 1000, 1 << 20}) {
      for (const std::uint64_t n : {1, 2, 10, 4096, 16384, 16385, 1 << 20, (1 << 20) + 1, 25'000'000}) {
        const Shape chunk = chunk_shape(workers, n, bytes);
        ASSERT_EQ(chunk.size(), 3U);
        EXPECT_GE(chunk[0], 1U);
        EXPECT_LE(chunk[1], workers);
        EXPECT_LE(chunk[2], n);
        EXPECT_LE(chunk[0] * chunk[1] * chunk[2] * bytes, schema::kMaxChunkBytes) << workers << " " << n;
      }
    }
  }
}

TEST(ChunkShape, CutsLargeTensorsEvenly) {
  // One element over 4 MiB: two halves, not 4 MiB and a chunk of 4 MiB for one element.
  EXPECT_EQ(chunk_shape(4, (1 << 20) + 1, 4), (Shape{1, 1, (1 << 19) + 1}));
  EXPECT_EQ(chunk_shape(4, 1 << 20, 4), (Shape{1, 1, 1 << 20}));
  EXPECT_EQ(chunk_shape(4, 1 << 21, 2), (Shape{1, 1, 1 << 21}));
}

TEST(ChunkShape, GathersSmallTensors) {
  EXPECT_EQ(chunk_shape(4, 10, 4), (Shape{25, 4, 10}));       // 160 bytes a step
  EXPECT_EQ(chunk_shape(1, 1, 4), (Shape{32, 1, 1}));         // never more than 32 steps
  EXPECT_EQ(chunk_shape(8, 432, 4), (Shape{1, 8, 432}));      // all workers of one step
  EXPECT_EQ(chunk_shape(40, 1000, 4), (Shape{1, 14, 1000}));  // 40 workers in 3 chunks
}

TEST(ChunkShape, PadsAtMostAFewKilobytesForAFewSteps) {
  for (const std::uint64_t workers : {1, 2, 4, 8}) {
    for (std::uint64_t n = 1; n < 3000; n = n * 3 / 2 + 1) {
      const Shape chunk = chunk_shape(workers, n, 4);
      EXPECT_LE(chunk[0] * chunk[1] * chunk[2] * 4, std::max<std::uint64_t>(4096, workers * n * 4));
    }
  }
}

}  // namespace
}  // namespace gradtool
