#include "lib/core/task_pool.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <vector>

#include "tests/core/fault.hpp"

namespace gradtool::test {
namespace {

/// pool.run with a callable.
template <class F>
void run(TaskPool& pool, std::size_t count, F&& body) {
  using Body = std::remove_reference_t<F>;
  pool.run(
      count, [](void* context, std::size_t i) { (*static_cast<Body*>(context))(i); }, &body);
}

TEST(TaskPool, RunsEveryTaskOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    TaskPool pool{threads};
    EXPECT_EQ(pool.threads(), threads);
    for (const std::size_t count : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> calls(count);
      run(pool, count, [&](std::size_t i) { ++calls[i]; });
      for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(calls[i], 1) << threads << " threads, task " << i;
    }
  }
}

TEST(TaskPool, NeedsAThread) {
  message_of(Fault::usage, [] { TaskPool{0}; });
  message_of(Fault::usage, [] { TaskPool{-1}; });
}

TEST(TaskPool, RethrowsAfterEveryTaskHasEnded) {
  for (const int threads : {1, 4}) {
    TaskPool pool{threads};
    std::atomic<int> ended{0};
    EXPECT_THROW(run(pool, 100,
                     [&](std::size_t i) {
                       ++ended;
                       if (i % 10 == 3) throw std::out_of_range{"task"};
                     }),
                 std::out_of_range);
    EXPECT_EQ(ended, 100);
    std::atomic<int> after{0};
    run(pool, 10, [&](std::size_t) { ++after; });  // the pool works on
    EXPECT_EQ(after, 10);
  }
}

TEST(TaskPool, ManyShortJobs) {
  TaskPool pool{4};
  std::atomic<std::size_t> sum{0};
  for (std::size_t job = 0; job < 2000; ++job) run(pool, 5, [&](std::size_t i) { sum += i; });
  EXPECT_EQ(sum, 2000U * 10U);
}

TEST(ParallelFor, CoversTheRangeInAlignedParts) {
  TaskPool pool{3};
  for (TaskPool* used : {static_cast<TaskPool*>(nullptr), &pool}) {
    for (const std::size_t items : {0, 1, 63, 64, 65, 1000, 4096}) {
      std::vector<std::atomic<int>> seen(items);
      std::atomic<bool> misaligned{false};
      parallel_for(Queue<Space::host>{used}, items, 64, 100, [&](std::size_t first, std::size_t last) {
        if (first % 64 != 0 || (last % 64 != 0 && last != items)) misaligned = true;
        for (std::size_t i = first; i < last; ++i) ++seen[i];
      });
      EXPECT_FALSE(misaligned) << items;
      for (std::size_t i = 0; i < items; ++i) ASSERT_EQ(seen[i], 1) << items << ", item " << i;
    }
  }
}

TEST(PartCount, IsOneForLittleWorkOrOneThread) {
  TaskPool alone{1}, pool{4};
  EXPECT_EQ(part_count(Queue<Space::host>{}, 1 << 20, 10), 1U);
  EXPECT_EQ(part_count(Queue<Space::host>{&alone}, 1 << 20, 10), 1U);
  EXPECT_EQ(part_count(Queue<Space::host>{&pool}, 99, 100), 1U);
  EXPECT_EQ(part_count(Queue<Space::host>{&pool}, 200, 100), 2U);
  EXPECT_EQ(part_count(Queue<Space::host>{&pool}, 1 << 20, 0), 4U);
}

}  // namespace
}  // namespace gradtool::test
