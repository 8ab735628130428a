#include <gtest/gtest.h>

#include "lib/comm/launch.hpp"
#include "lib/core/allocation_watch.hpp"
#include "lib/core/task_pool.hpp"
#include "tests/comm/collectives.hpp"
#include "tests/comm/rank_memory.hpp"

namespace gradtool::test {
namespace {

class Threads : public testing::TestWithParam<std::tuple<int, std::string>> {};

TEST_P(Threads, Collectives) {
  const int ranks = std::get<0>(GetParam());
  const std::string& name = std::get<1>(GetParam());
  for (const auto& one : collective_cases<Space::host>()) {
    if (one.name == name) {
      run_threads(ranks, [&](Communicator<Space::host>& comm) {
        require(comm.name() == "threads" && comm.size() == ranks, "not the communicator that was asked for");
        one.run(comm, {});
      });
      return;
    }
  }
  FAIL() << "no such case: " << name;
}

INSTANTIATE_TEST_SUITE_P(
    Ranks, Threads, testing::Combine(testing::Values(1, 2, 3, 4, 5, 6, 7, 8, 9, 16), testing::ValuesIn(case_names())),
    [](const auto& info) { return std::to_string(std::get<0>(info.param)) + "_" + std::get<1>(info.param); });

TEST(ThreadsRun, EveryRankRunsOnce) {
  std::vector<int> calls(16);
  run_threads(16, [&](Communicator<Space::host>& comm) { ++calls[static_cast<std::size_t>(comm.rank())]; });
  EXPECT_EQ(calls, std::vector<int>(16, 1));
}

TEST(ThreadsRun, RefusesNoRanks) {
  try {
    run_threads(0, [](Communicator<Space::host>&) {});
    FAIL() << "zero ranks were accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), Fault::usage);
  }
}

TEST(ThreadsRun, ManyRanksOnFewCores) {
  run_threads(64, [](Communicator<Space::host>& comm) {
    Rank<Space::host> rank{comm, {}};
    const auto sums = rank.all_reduce(std::vector<float>(1000, 2.0f), Dtype::f32);
    for (const float sum : sums) require(sum == 128, "wrong sum of 64 ranks");
  });
  // The two orders of adding, bit for bit; the other cases take seconds on so many ranks.
  for (const auto& one : collective_cases<Space::host>()) {
    const std::string_view name{one.name};
    if (name == "scatters_the_bits_of_the_ring" || name == "doubles_in_the_stated_order")
      run_threads(64, [&](Communicator<Space::host>& comm) { one.run(comm, {}); });
  }
}

// A pool may be given to the collectives; the bits do not depend on it.
TEST(ThreadsRun, PoolsDoNotChangeTheSum) {
  run_threads(3, [](Communicator<Space::host>& comm) {
    std::vector<float> values(1'000'003);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = 1.0f / static_cast<float>(i + 1 + static_cast<std::size_t>(comm.rank()));
    TaskPool pool{3};
    Rank<Space::host> alone{comm, {}};
    Rank<Space::host> pooled{comm, {&pool}};
    require(alone.all_reduce(values, Dtype::f32) == pooled.all_reduce(values, Dtype::f32), "the pool changed the sum");
  });
}

TEST(ThreadsRun, CollectivesAllocateNothing) {
  if (!AllocationWatch::active()) GTEST_SKIP() << "allocations are not counted in this build";
  run_threads(4, [](Communicator<Space::host>& comm) {
    std::vector<float> values(5000, 1.0f);
    std::vector<std::byte> all(4 * 4001);
    std::vector<std::byte> scratch(20'000);
    const std::vector<std::uint64_t> sizes(4, 4001);
    const std::vector<std::uint64_t> offsets{0, 4001, 8002, 12003};
    const HostView<std::byte> view{all.data(), all.size()};
    const HostView<std::byte> spare{scratch.data(), scratch.size()};
    double maxima[2] = {1, 2};
    const AllocationWatch watch;
    for (int round = 0; round < 50; ++round) {
      const auto sums = as_writable_bytes(HostView<float>{values});
      comm.all_reduce_sum({}, sums, Dtype::f32, {});
      comm.all_reduce_native({}, sums, Dtype::f32, {});
      comm.reduce_scatter_sum({}, sums, Dtype::f32, {});
      comm.set_all_reduce(AllReduce::doubling);
      comm.all_reduce_sum({}, sums, Dtype::f32, spare);
      comm.set_all_reduce(AllReduce::ring);
      comm.all_to_all({}, view.first(8000), spare.first(8000));
      comm.all_to_all_v({}, view, {sizes, offsets}, spare.first(16004), {sizes, offsets});
      comm.all_gather({}, view.part(static_cast<std::size_t>(comm.rank()) * 4001, 4001), view);
      comm.all_gather_v({}, view.part(static_cast<std::size_t>(comm.rank()) * 4001, 4001), sizes, offsets, view);
      comm.broadcast({}, view, round % 4);
      comm.exchange({}, (comm.rank() + 1) % 4, view.first(100), (comm.rank() + 3) % 4, view.part(200, 100));
      comm.agree_max(maxima);
      comm.barrier({});
    }
    const std::uint64_t allocations = watch.on_this_thread();
    require(allocations == 0, "a collective allocated");
  });
}

}  // namespace
}  // namespace gradtool::test
