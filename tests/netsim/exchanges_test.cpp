// The messages of collectives: as many bytes as lib/comm counts, and what one rank sends another one expects.
#include "netsim/exchanges.hpp"

#include <gtest/gtest.h>

#include <numeric>

#include "lib/comm/traffic.hpp"
#include "netsim/payload_log.hpp"

namespace gradtool::netsim {
namespace {

/// Each message is received at the step that its sender says, and nothing else is received.
void expect_matched(const Schedule& schedule) {
  const auto step_of = [&](int rank, std::size_t step) {
    return schedule.steps()[static_cast<std::size_t>(rank)][step];
  };
  std::size_t sent = 0, received = 0;
  for (int r = 0; r < schedule.ranks(); ++r) {
    ASSERT_EQ(schedule.steps()[static_cast<std::size_t>(r)].size(), schedule.length());
    for (std::size_t s = 0; s < schedule.length(); ++s) {
      const Exchange step = step_of(r, s);
      EXPECT_EQ(step.to >= 0, step.bytes > 0);
      if (step.to >= 0) {
        ++sent;
        EXPECT_EQ(step_of(step.to, s - static_cast<std::size_t>(step.ahead)).from, r) << s;
      }
      if (step.from >= 0) ++received;
    }
  }
  EXPECT_EQ(sent, received);
}

TEST(Schedule, SendsWhatTheRingsOfLibCommSend) {
  for (const int ranks : {2, 3, 5, 8}) {
    for (const std::size_t elements : {std::size_t{1}, std::size_t{7}, std::size_t{100'003}}) {
      Schedule reduce{ranks}, scatter{ranks};
      reduce.all_reduce(elements, 4, 0);
      scatter.reduce_scatter(elements, 2, 0);
      expect_matched(reduce);
      expect_matched(scatter);
      for (int r = 0; r < ranks; ++r) {
        EXPECT_EQ(reduce.bytes_of(r), ring_all_reduce_bytes(elements, 4, r, ranks)) << ranks << ' ' << elements;
        EXPECT_EQ(scatter.bytes_of(r), ring_reduce_scatter_bytes(elements, 2, r, ranks)) << ranks << ' ' << elements;
      }
    }
  }
}

TEST(Schedule, SendsWhatTheOtherCollectivesOfLibCommSend) {
  const std::vector<std::uint64_t> sizes{10, 0, 300, 7};
  Schedule gather{4}, exchange{4}, hop{4};
  gather.all_gather(sizes, 0);
  exchange.all_to_all(sizes, 0);
  hop.hop(sizes, 0);
  for (const auto* schedule : {&gather, &exchange, &hop}) expect_matched(*schedule);
  for (int r = 0; r < 4; ++r) {
    EXPECT_EQ(gather.bytes_of(r), ring_all_gather_bytes(sizes, r));
    EXPECT_EQ(exchange.bytes_of(r), 3 * sizes[static_cast<std::size_t>(r)]);
    EXPECT_EQ(hop.bytes_of(r), sizes[static_cast<std::size_t>(r)]);
  }
  for (const std::uint64_t bytes : {std::uint64_t{0}, std::uint64_t{100}, std::uint64_t{1'000'000}}) {
    Schedule chain{4};
    chain.broadcast(bytes, 2, 0);
    expect_matched(chain);
    for (int r = 0; r < 4; ++r) EXPECT_EQ(chain.bytes_of(r), chain_broadcast_bytes(bytes, 2, r, 4)) << bytes;
  }
}

TEST(Schedule, SegmentsOfTheRingCoverTheUnitOnce) {
  Schedule reduce{5};
  reduce.all_reduce(1001, 4, 0);
  double covered = 0.0;  // of the first hop over all ranks
  for (const auto& steps : reduce.steps()) covered += steps.front().last - steps.front().first;
  EXPECT_NEAR(covered, 1.0, 1e-12);
}

TEST(PayloadLog, ModelsWhatItSends) {
  // Three ranks with a link of 1 us and 1 GB/s: the ring, two gathers of unequal parts, a broadcast.
  const LoggedStep step{.units = {{.calls = {{.name = "all_reduce_f32", .bytes = {3000, 3000, 3000}},
                                             {.name = "all_gather_v", .bytes = {100, 200, 600}},
                                             {.name = "broadcast", .bytes = {0, 5000, 0}}}}}};
  Network network;
  network.link = {.alpha = 1e-6, .beta = 1e9};
  // All-reduce 4 alpha + 4/3 * 3000 / beta; all-gather 2 alpha + 2 * 300 / beta; broadcast 2 alpha + 5000 / beta.
  EXPECT_NEAR(modelled_seconds(step, 1.0, network, 3), 8e-6 + 9.6e-6, 1e-12);
  EXPECT_NEAR(modelled_seconds(step, 2.0, network, 3), 8e-6 + 19.2e-6, 1e-12);
  Schedule schedule{3};
  for (const auto& call : step.units.front().calls) append_call(schedule, call, 1.0, 0);
  std::uint64_t sent = 0;
  for (int r = 0; r < 3; ++r) sent += schedule.bytes_of(r);
  EXPECT_EQ(sent, 3 * 4000U + 2 * 900U + 2 * 5000U);
}

}  // namespace
}  // namespace gradtool::netsim
