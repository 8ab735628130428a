// Messages over the transports: alone, and many to one host.
#include "netsim/transport.hpp"

#include <gtest/gtest.h>
#include <ns3/simulator.h>

#include <algorithm>
#include <cmath>

#include "netsim/iterations.hpp"

namespace gradtool::netsim {
namespace {

constexpr double kStart = 60e-3;

const FabricOptions kSmall{.leaves = 4, .spines = 2, .hosts_per_leaf = 4};
constexpr Protocol kAll[] = {Protocol::dlcp, Protocol::dctcp, Protocol::tcp, Protocol::pfabric};

struct Outcome {
  std::vector<Delivery> deliveries;
  Fabric::Counts counts;
};

/// `senders` hosts send one message each to host 0 at the same time; every second packet is important.
Outcome many_to_one(Protocol protocol, int senders, std::uint64_t bytes, double bound, const DlcpOptions& dlcp = {}) {
  Fabric fabric{kSmall, ports_of(protocol), routing_of(protocol), 1};
  const auto transport = make_transport(protocol, fabric, dlcp, {});
  const std::vector<std::uint8_t> flags{1, 0};
  std::vector<std::uint8_t> important;
  for (int i = 0; i < 1000; ++i) important.insert(important.end(), flags.begin(), flags.end());
  Outcome run;
  for (int s = 1; s <= senders; ++s) transport->prepare(fabric.hosts() - s, 0);
  ns3::Simulator::Schedule(ns3::Seconds(kStart), [&] {
    for (int s = 1; s <= senders; ++s) {
      transport->send({.from = fabric.hosts() - s,
                       .to = 0,
                       .bytes = bytes,
                       .layer = 3,
                       .bound = bound,
                       .importance = {.flags = &important}},
                      [&](const Delivery& delivery) {
                        run.deliveries.push_back(delivery);
                        if (static_cast<int>(run.deliveries.size()) == senders) ns3::Simulator::Stop();
                      });
    }
  });
  ns3::Simulator::Stop(ns3::Seconds(10.0));
  ns3::Simulator::Run();
  run.counts = fabric.counts();
  return run;
}

double wire_seconds(double bytes) {
  return bytes * (1.0 + kPacketOverhead / 1436.0) * 8.0 / kSmall.rate;
}

TEST(Transport, ALoneMessageTakesItsSizeOverTheRateAndTheLatency) {
  const double bytes = 1e6;
  const double latency = 4.0 * kSmall.delay;
  for (const Protocol protocol : {Protocol::dlcp, Protocol::pfabric}) {
    const Outcome run = many_to_one(protocol, 1, static_cast<std::uint64_t>(bytes), 0.0);
    ASSERT_EQ(run.deliveries.size(), 1U) << name_of(protocol);
    EXPECT_NEAR(run.deliveries[0].seconds, wire_seconds(bytes) + latency, 0.01 * wire_seconds(bytes))
        << name_of(protocol);
    EXPECT_EQ(run.counts.dropped, 0U);
  }
}

TEST(Transport, TcpOpensItsWindowFirst) {
  // Ten packets, then twice as many each round trip of 8.5 us, until 74 fill the pipe: three round trips more or less.
  for (const Protocol protocol : {Protocol::dctcp, Protocol::tcp}) {
    const Outcome run = many_to_one(protocol, 1, 1'000'000, 0.0);
    ASSERT_EQ(run.deliveries.size(), 1U);
    EXPECT_GT(run.deliveries[0].seconds, wire_seconds(1e6) + 4e-6) << name_of(protocol);
    EXPECT_LT(run.deliveries[0].seconds, 3.0 * wire_seconds(1e6)) << name_of(protocol);
  }
}

TEST(Transport, ManyToOneIsNeverFasterThanTheReceiversLink) {
  const int senders = 12;
  const double bytes = 300e3;
  for (const Protocol protocol : kAll) {
    for (const double bound : {0.0, 0.1}) {
      if (protocol != Protocol::dlcp && bound == 0.0) continue;  // the others deliver all with any bound
      const Outcome run = many_to_one(protocol, senders, static_cast<std::uint64_t>(bytes), bound);
      ASSERT_EQ(run.deliveries.size(), static_cast<std::size_t>(senders)) << name_of(protocol);
      double delivered = 0.0, last = 0.0;
      for (const auto& delivery : run.deliveries) {
        delivered += static_cast<double>(delivery.bytes);
        last = std::max(last, delivery.seconds);
        if (protocol != Protocol::dlcp) EXPECT_EQ(delivery.bytes, static_cast<std::uint64_t>(bytes));
      }
      EXPECT_GT(last, wire_seconds(delivered)) << name_of(protocol);
    }
  }
}

TEST(Dlcp, DeliversAllWithoutToleranceAndNeverLessThanTheBound) {
  for (const double bound : {0.0, 0.05, 0.2}) {
    const Outcome run = many_to_one(Protocol::dlcp, 12, 300'000, bound);
    ASSERT_EQ(run.deliveries.size(), 12U);
    EXPECT_GT(run.counts.dropped, 100U);  // or nothing is tested
    double least = 1.0;
    for (const auto& delivery : run.deliveries)
      least = std::min(least, static_cast<double>(delivery.bytes) / 300'000.0);
    EXPECT_GE(least, 1.0 - bound);
    EXPECT_LE(least, 1.0 - bound + 1436.0 / 300'000.0);  // and stops when it has enough
  }
}

TEST(Dlcp, LosesUnimportantPacketsFirst) {
  const auto shares = [](const DlcpOptions& options) {
    double important = 0.0, important_sent = 0.0, others = 0.0, others_sent = 0.0;
    for (const auto& delivery : many_to_one(Protocol::dlcp, 3, 1'000'000, 0.3, options).deliveries) {
      important += static_cast<double>(delivery.important);
      important_sent += static_cast<double>(delivery.important_sent);
      others += static_cast<double>(delivery.bytes - delivery.important);
      others_sent += 1e6 - static_cast<double>(delivery.important_sent);
    }
    return std::pair{important / important_sent, others / others_sent};
  };
  const auto [important, others] = shares({});
  EXPECT_GT(important, others + 0.15);
  const auto [unmarked, unmarked_others] = shares({.marking = false});
  EXPECT_NEAR(unmarked, unmarked_others, 0.05);
}

TEST(Dlcp, SendsUrgentLayersFirst) {
  Fabric fabric{kSmall, PortKind::two_thresholds, Routing::spray, 1};
  const auto transport = make_dlcp(fabric, {});
  std::vector<int> order;
  for (const int layer : {6, 3, 0}) {
    transport->send({.from = 15, .to = 0, .bytes = 500'000, .layer = layer}, [&order, layer](const Delivery&) {
      order.push_back(layer);
      if (order.size() == 3) ns3::Simulator::Stop();
    });
  }
  ns3::Simulator::Run();
  EXPECT_EQ(order, (std::vector<int>{0, 3, 6}));
}

TEST(PFabric, SendsTheShortestMessageFirst) {
  Fabric fabric{kSmall, PortKind::remaining, Routing::spray, 1};
  const auto transport = make_pfabric(fabric);
  std::vector<std::uint64_t> order;
  int next = 0;
  for (const std::uint64_t bytes : {900'000, 500'000, 100'000}) {
    // From three hosts, so that the switch decides.
    const int sent = next++;
    transport->send({.from = 15 - sent, .to = 0, .bytes = bytes}, [&order](const Delivery& d) {
      order.push_back(d.bytes);
      if (order.size() == 3) ns3::Simulator::Stop();
    });
  }
  ns3::Simulator::Run();
  EXPECT_EQ(order, (std::vector<std::uint64_t>{100'000, 500'000, 900'000}));
}

TEST(Dlcp, BoundOfAHopKeepsTheBoundOfTheWholeWay) {
  for (const int workers : {2, 8, 144}) {
    const double kept = std::pow(1.0 - hop_bound(0.1, workers), 2.0 * (workers - 1));
    EXPECT_NEAR(kept, 0.9, 1e-9);
  }
}

}  // namespace
}  // namespace gradtool::netsim
