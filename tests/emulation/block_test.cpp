// Threads of a block: barriers, meetings of lanes, orders.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace {

constexpr unsigned kThreads = 96;

template <class Kernel>
void play(unsigned blocks, Kernel kernel, std::size_t shared = 0) {
  emulation::launch(nullptr, "test", {blocks, 1, 1}, {kThreads, 1, 1}, shared, kernel);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

template <bool Barrier>
void reverse(int* values) {
  __shared__ int block[kThreads];
  block[threadIdx.x] = values[blockIdx.x * kThreads + threadIdx.x];
  if constexpr (Barrier) __syncthreads();
  values[blockIdx.x * kThreads + threadIdx.x] = block[kThreads - 1 - threadIdx.x];
}

std::vector<int> counted(std::size_t count) {
  std::vector<int> values(count);
  std::iota(values.begin(), values.end(), 0);
  return values;
}

TEST(EmulatedBlock, KeepsBarriersAndShowsAMissingOne) {
#if defined(GT_EMULATION_RACES)
  GTEST_SKIP() << "a missing barrier is a race, and races_test.cpp's matter in this build";
#endif
  auto expected = counted(10 * kThreads);
  for (std::size_t block = 0; block < 10; ++block)
    std::reverse(expected.begin() + static_cast<long>(block * kThreads),
                 expected.begin() + static_cast<long>((block + 1) * kThreads));
  auto good = counted(10 * kThreads);
  play(10, [at = good.data()] { reverse<true>(at); });
  EXPECT_EQ(good, expected);
  auto bad = counted(10 * kThreads);
  play(10, [at = bad.data()] { reverse<false>(at); });
  EXPECT_NE(bad, expected);
}

TEST(EmulatedBlock, ThreadsThatLeftAreNotWaitedFor) {
  std::vector<int> counts(kThreads, 0);
  play(1, [at = counts.data()] {
    if (threadIdx.x % 3 == 0) return;
    __syncthreads();
    at[threadIdx.x] = __syncthreads_count(threadIdx.x % 2 == 0 ? 1 : 0);
  });
  for (unsigned i = 0; i < kThreads; ++i) EXPECT_EQ(counts[i], i % 3 == 0 ? 0 : 32) << i;
}

TEST(EmulatedBlock, LanesExchange) {
  constexpr unsigned kAll = 0xffffffffu;
  std::vector<unsigned> up(kThreads), down(kThreads), other(kThreads), odd(kThreads), sum(kThreads), same(kThreads);
  play(1, [&] {
    const unsigned i = threadIdx.x;
    const unsigned lane = i % 32;
    // Many in a row: a lane may be one meeting ahead of another.
    for (int round = 0; round < 5; ++round) {
      up[i] = __shfl_up_sync(kAll, i, 3);
      down[i] = __shfl_down_sync(kAll, i, 5, 16);
      other[i] = __shfl_xor_sync(kAll, i, 9);
      odd[i] = __ballot_sync(kAll, lane % 2 == 1 ? 1 : 0);
      sum[i] = __reduce_add_sync(kAll, i);
      same[i] = __match_any_sync(kAll, lane / 8);
    }
  });
  for (unsigned i = 0; i < kThreads; ++i) {
    const unsigned lane = i % 32;
    EXPECT_EQ(up[i], lane < 3 ? i : i - 3);
    EXPECT_EQ(down[i], lane % 16 + 5 < 16 ? i + 5 : i);
    EXPECT_EQ(other[i], i ^ 9u);
    EXPECT_EQ(odd[i], 0xaaaaaaaau);
    EXPECT_EQ(sum[i], 32 * (i - lane) + 496);
    EXPECT_EQ(same[i], 0xffu << (lane / 8 * 8));
  }
}

TEST(EmulatedBlock, HalvesOfAWarpMeetForThemselves) {
  std::vector<unsigned> sums(kThreads, 0);
  play(1, [&] {
    const unsigned lane = threadIdx.x % 32;
    if (lane < 16) {
      for (int round = 0; round < 3; ++round) sums[threadIdx.x] += __reduce_add_sync(0x0000ffffu, 1u);
    } else {
      sums[threadIdx.x] = __reduce_add_sync(0xffff0000u, lane);
    }
    __syncwarp();
  });
  for (unsigned i = 0; i < kThreads; ++i) EXPECT_EQ(sums[i], i % 32 < 16 ? 48u : 376u);
}

TEST(EmulatedBlock, DynamicSharedMemoryIsNotCleared) {
  unsigned seen = 0;
  play(
      1,
      [&] {
        if (threadIdx.x == 0) seen = static_cast<unsigned>(emulation::dynamic_shared()[1000]);
      },
      1024);
  EXPECT_EQ(seen, 0xA7u);
}

TEST(EmulatedBlock, RefusesWhatNoGpuTakes) {
  emulation::launch(nullptr, "test", {1, 1, 1}, {2048, 1, 1}, 0, [] {});
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
  emulation::launch(nullptr, "test", {1, 1, 1}, {32, 1, 1}, 300 * 1024, [] {});
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST(EmulatedBlockDeath, BarrierThatSomeNeverReachEndsTheProgram) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(play(1,
                    [] {
                      if (threadIdx.x % 32 < 7) __shfl_sync(0xffffffffu, 1, 0);
                    }),
               "kernel test.*never come");
  EXPECT_DEATH(play(1, [] { __syncwarp(0x0000ffffu); }), "is not among them");
}

}  // namespace
