#include "lib/capture/sampler.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "tests/capture/test_data.hpp"

namespace gradtool {
namespace {

TEST(Sampler, DealsEverySampleToExactlyOneShardInEveryEpoch) {
  Sampler sampler{103, 4, 5, 7};
  for (const std::int64_t epoch : {0, 1, 9}) {
    std::vector<std::uint32_t> all;
    for (std::size_t worker = 0; worker < 4; ++worker) {
      const auto shard = sampler.shard(epoch, worker);
      EXPECT_TRUE(shard.size() == 25 || shard.size() == 26);
      all.insert(all.end(), shard.begin(), shard.end());
    }
    std::sort(all.begin(), all.end());
    ASSERT_EQ(all.size(), 103U);
    for (std::uint32_t i = 0; i < 103; ++i) EXPECT_EQ(all[i], i);
  }
}

TEST(Sampler, BatchesWalkThroughTheShards) {
  Sampler sampler{103, 4, 5, 7};
  EXPECT_EQ(sampler.iterations_per_epoch(), 5);
  for (const std::int64_t epoch : {0, 1}) {
    std::vector<std::vector<std::uint32_t>> drawn(4);
    for (std::int64_t i = 0; i < 5; ++i) {
      const auto batch = sampler.batches(epoch * 5 + i);
      ASSERT_EQ(batch.size(), 20U);
      for (std::size_t k = 0; k < 20; ++k) drawn[k / 5].push_back(batch[k]);
    }
    for (std::size_t worker = 0; worker < 4; ++worker) {
      auto shard = sampler.shard(epoch, worker);
      shard.resize(25);
      EXPECT_EQ(drawn[worker], shard);
    }
  }
}

TEST(Sampler, TheSeedAndTheEpochDecideTheOrder) {
  Sampler one{1000, 2, 10, 1}, same{1000, 2, 10, 1}, other{1000, 2, 10, 2};
  EXPECT_EQ(one.shard(3, 1), same.shard(3, 1));
  EXPECT_NE(one.shard(3, 1), one.shard(4, 1));
  EXPECT_NE(one.shard(3, 1), other.shard(3, 1));
  // Not only in the same order: an epoch redistributes the samples between the workers.
  const auto first = one.shard(0, 0), second = one.shard(1, 0);
  EXPECT_NE(std::set<std::uint32_t>(first.begin(), first.end()), std::set<std::uint32_t>(second.begin(), second.end()));
}

TEST(Sampler, JumpsToAnyIteration) {
  Sampler walked{100, 2, 10, 3}, jumped{100, 2, 10, 3};
  std::vector<std::uint32_t> last;
  for (std::int64_t i = 0; i <= 17; ++i) {
    const auto batch = walked.batches(i);
    last.assign(batch.begin(), batch.end());
  }
  EXPECT_TRUE(std::ranges::equal(jumped.batches(17), last));
}

TEST(Sampler, NeedsOneBatchForEveryWorker) {
  const auto text = test::sentence_of(Fault::usage, [] { Sampler{99, 10, 10, 1}; });
  EXPECT_THAT(text, testing::HasSubstr("at least 100"));
  EXPECT_NO_THROW((Sampler{100, 10, 10, 1}));
}

}  // namespace
}  // namespace gradtool
