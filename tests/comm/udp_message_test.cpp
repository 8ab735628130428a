// The bounded-loss transport without sockets: packets, tags, plans, what is repeated and when there is enough, rates.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "lib/comm/udp/message.hpp"
#include "lib/comm/udp/rate.hpp"

namespace gradtool::udp {
namespace {

constexpr JobKey kKey{0x0706050403020100, 0x0f0e0d0c0b0a0908};

// The test values of the paper and of its reference: bytes 0, 1, 2, ... under the key 0, 1, ..., 15.
TEST(UdpPacket, SipHashHasThePublishedValues) {
  std::array<std::byte, 64> bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i);
  const auto hash = [&](std::size_t n) { return siphash(kKey, std::span{bytes}.first(n)); };
  EXPECT_EQ(hash(0), 0x726fdb47dd0e0e31U);
  EXPECT_EQ(hash(1), 0x74f839c593dc67fdU);
  EXPECT_EQ(hash(8), 0x93f5f5799a932462U);
  EXPECT_EQ(hash(15), 0xa129ca6149be45e5U);
  for (std::size_t n = 0; n < bytes.size(); ++n) {
    for (std::size_t cut = 0; cut <= n; ++cut)
      ASSERT_EQ(siphash(kKey, std::span{bytes}.first(cut), std::span{bytes}.subspan(cut, n - cut)), hash(n));
  }
}

TEST(UdpPacket, ATagCoversEveryBit) {
  PacketHeader header;
  std::vector<std::byte> data(16, std::byte{0x5a});
  header.bytes = 16;
  seal(header, kKey, 7, data);
  ASSERT_TRUE(is_sealed(header, kKey, 7, data));
  EXPECT_FALSE(is_sealed(header, kKey, 7 + (std::uint64_t{1} << 32), data)) << "a message of 2^32 messages ago";
  EXPECT_FALSE(is_sealed(header, {kKey[0], kKey[1] ^ 1}, 7, data));
  for (std::size_t bit = 0; bit < 8 * (sizeof(header) + data.size()); ++bit) {
    PacketHeader other = header;
    auto changed = data;
    std::byte* bytes = bit / 8 < sizeof(header) ? reinterpret_cast<std::byte*>(&other) + bit / 8
                                                : changed.data() + (bit / 8 - sizeof(header));
    *bytes ^= std::byte{1} << (bit % 8);
    ASSERT_FALSE(is_sealed(other, kKey, 7, changed)) << "bit " << bit;
  }
}

TEST(UdpPacket, ServiceTellsClassAndDroppability) {
  EXPECT_EQ(type_of_service(0, false), 5 << 5);
  EXPECT_EQ(type_of_service(0, true), 5 << 5 | 2);
  EXPECT_EQ(type_of_service(6, true), 1 << 5 | 2);
  for (int c = 1; c < 7; ++c) {
    EXPECT_LE(type_of_service(static_cast<std::uint8_t>(c), false),
              type_of_service(static_cast<std::uint8_t>(c - 1), false));
    EXPECT_LT(type_of_service(static_cast<std::uint8_t>(c), true), kControlService);
  }
}

TEST(UdpPlan, EveryByteLiesInOnePacket) {
  const std::vector<TensorPart> parts{{.bytes = 100}, {.bytes = 0}, {.bytes = 7}, {.bytes = 64}, {.bytes = 0}};
  const Plan plan{parts, 32};
  EXPECT_EQ(plan.packets(), 4U + 1U + 2U);
  EXPECT_EQ(plan.bytes(), 171U);
  std::size_t next = 0;
  for (std::size_t i = 0; i < plan.packets(); ++i) {
    const Plan::Packet packet = plan.packet(i);
    EXPECT_EQ(packet.offset, next);
    EXPECT_EQ(plan.first_packet(packet.tensor) + packet.number, i);
    EXPECT_TRUE(packet.bytes > 0 && packet.bytes <= 32);
    next += packet.bytes;
  }
  EXPECT_EQ(next, plan.bytes());
}

/// A sender and a receiver with a channel between them that loses, repeats, damages and reorders.
struct Transfer {
  Transfer(std::vector<TensorPart> given, std::size_t packet_bytes, std::uint32_t seed, Bits important = {})
      : random{seed},
        parts{std::move(given)},
        plan{parts, packet_bytes},
        sent(plan.bytes()),
        memory(plan.bytes() + 128, std::byte{0xee}),
        out{plan, sent, 3, 5, 41, std::move(important)},
        in{plan, std::span{memory}.subspan(64, plan.bytes()), 3, 5, 41} {
    for (std::byte& one : sent) one = static_cast<std::byte>(random() | 1U);  // never zero
  }
  /// One pass, each packet lost with this probability. Stops sending once the receiver has enough of it.
  void pass(double loss) {
    std::vector<std::pair<PacketHeader, std::span<const std::byte>>> under_way;
    std::uniform_real_distribution<double> uniform;
    while (!out.pass_ended()) {
      const std::size_t packet = out.next_packet();
      const PacketHeader header = out.take(kKey, 0);
      if (uniform(random) < loss) continue;
      under_way.emplace_back(header, out.data_of(packet));
      if (uniform(random) < 0.1) under_way.push_back(under_way.back());
    }
    std::shuffle(under_way.begin(), under_way.end(), random);
    for (const auto& one : under_way) {
      if (uniform(random) < 0.1) {
        PacketHeader damaged = one.first;
        damaged.sent_us ^= 1U << random() % 32;
        EXPECT_EQ(in.take(damaged, one.second, kKey), Arrival::damaged);
      }
      const Arrival arrival = in.take(one.first, one.second, kKey);
      EXPECT_TRUE(arrival == Arrival::placed || arrival == Arrival::duplicate);
    }
  }
  void run(double loss) {
    for (int passes = 0; passes < 1000; ++passes) {
      pass(loss);
      in.set_important(out.important());
      if (in.satisfied()) break;
      out.repeat_missing(in.arrived());
    }
    ASSERT_TRUE(in.satisfied());
    in.fill_missing();
  }
  /// Checks the memory: what arrived is right, what did not is zero, nothing else was touched.
  void check() const {
    for (std::size_t i = 0; i < 64; ++i)
      ASSERT_TRUE(memory[i] == std::byte{0xee} && memory[memory.size() - 1 - i] == std::byte{0xee})
          << "written outside";
    for (std::size_t i = 0; i < plan.packets(); ++i) {
      const Plan::Packet packet = plan.packet(i);
      for (std::size_t b = packet.offset; b < packet.offset + packet.bytes; ++b)
        ASSERT_EQ(memory[64 + b], test_bit(in.arrived(), i) ? sent[b] : std::byte{0}) << "byte " << b;
    }
  }
  [[nodiscard]] double delivered(std::size_t tensor) const {
    std::size_t bytes = 0;
    for (std::size_t i = plan.first_packet(tensor); i < plan.first_packet(tensor) + plan.packets_of(tensor); ++i)
      bytes += test_bit(in.arrived(), i) ? plan.packet(i).bytes : 0;
    return static_cast<double>(bytes) / static_cast<double>(plan.tensor(tensor).bytes);
  }

  std::mt19937 random;
  std::vector<TensorPart> parts;
  Plan plan;
  std::vector<std::byte> sent, memory;
  Outbound out;
  Inbound in;
};

TEST(UdpMessage, NothingIsMissingWhereNothingMayBe) {
  for (std::uint32_t seed = 0; seed < 50; ++seed) {
    Transfer transfer{{{.bytes = 1000 + seed}, {.bytes = 0}, {.bytes = 4}, {.bytes = 5000}}, 64, seed};
    transfer.run(0.02 * seed);
    EXPECT_TRUE(transfer.in.complete());
    transfer.check();
  }
}

TEST(UdpMessage, EveryTensorKeepsItsBound) {
  std::size_t lost = 0;
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    const double bound = 0.01 * (seed % 12);
    Transfer transfer{{{.bytes = 6400, .loss = bound, .loss_important = bound},
                       {.bytes = 100, .loss = bound, .loss_important = bound},
                       {.bytes = 3333, .loss = 0.0}},
                      64,
                      seed};
    transfer.run(0.01 * (seed % 30));
    transfer.check();
    for (std::size_t t = 0; t < 3; ++t) EXPECT_GE(transfer.delivered(t), 1.0 - transfer.parts[t].loss);
    EXPECT_EQ(transfer.delivered(2), 1.0);
    EXPECT_EQ(transfer.in.least_delivered(),
              std::min({transfer.delivered(0), transfer.delivered(1), transfer.delivered(2)}));
    lost += transfer.in.missing_bytes();
  }
  EXPECT_GT(lost, 0U) << "a bound above zero was never used";
}

TEST(UdpMessage, ImportantPacketsHaveABoundOfTheirOwn) {
  std::size_t lost = 0;
  for (std::uint32_t seed = 0; seed < 100; ++seed) {
    Bits important(2, 0x5555555555555555U);  // every second of 100 packets
    Transfer transfer{{{.bytes = 6400, .loss = 0.1, .loss_important = 0.0}}, 64, seed, important};
    transfer.run(0.08);
    transfer.check();
    for (std::size_t i = 0; i < 100; i += 2)
      EXPECT_TRUE(test_bit(transfer.in.arrived(), i)) << "an important packet is lost";
    lost += transfer.in.missing_packets();
  }
  EXPECT_GT(lost, 0U);
}

TEST(UdpMessage, WhatMustArriveIsImportant) {
  const std::vector<std::byte> data(100);
  const TensorPart exact{.bytes = 100};
  const TensorPart lossy{.bytes = 100, .loss = 0.1};
  EXPECT_EQ(Outbound(Plan({&exact, 1}, 64), data, 0, 1, 1, {}).service_of(1), type_of_service(0, true));
  EXPECT_EQ(Outbound(Plan({&lossy, 1}, 64), data, 0, 1, 1, {}).service_of(1), type_of_service(0, false));
  EXPECT_EQ(Outbound(Plan({&lossy, 1}, 64), data, 0, 1, 1, {2}).service_of(1), type_of_service(0, true));
}

TEST(UdpMessage, WhatDoesNotFitIsNotPlaced) {
  Transfer transfer{{{.bytes = 1000}}, 64, 1};
  const std::size_t packet = transfer.out.next_packet();
  const PacketHeader good = transfer.out.take(kKey, 0);
  const auto data = transfer.out.data_of(packet);
  const auto arrival = [&](auto&& change, std::span<const std::byte> with) {
    PacketHeader header = good;
    change(header);
    seal(header, kKey, 41, with);
    return transfer.in.take(header, with, kKey);
  };
  EXPECT_EQ(arrival([](PacketHeader& h) { h.tensor = 1; }, data), Arrival::misfit);
  EXPECT_EQ(arrival([](PacketHeader& h) { h.packet = 16; }, data), Arrival::misfit);
  EXPECT_EQ(arrival([](PacketHeader& h) { h.packet = 0xffffffff; }, data), Arrival::misfit);
  EXPECT_EQ(arrival([](PacketHeader& h) { h.packet = 15; }, data), Arrival::misfit) << "the last one is shorter";
  EXPECT_EQ(arrival([](PacketHeader& h) { h.packets = 17; }, data), Arrival::misfit);
  EXPECT_EQ(arrival([](PacketHeader& h) { h.from = 4; }, data), Arrival::misfit);
  EXPECT_EQ(arrival([](PacketHeader& h) { h.to = 4; }, data), Arrival::misfit);
  EXPECT_EQ(arrival([](PacketHeader& h) { h.bytes = 60; }, data), Arrival::misfit);
  EXPECT_EQ(arrival([](PacketHeader& h) { h.bytes = 60; }, data.first(60)), Arrival::misfit);
  EXPECT_EQ(arrival([](PacketHeader&) {}, data), Arrival::placed);
  EXPECT_EQ(arrival([](PacketHeader&) {}, data), Arrival::duplicate);
  EXPECT_EQ(transfer.in.missing_packets(), 15U);
}

TEST(UdpMessage, TheBoundOfAHopAddsUpToThatOfTheRing) {
  for (const double loss : {0.0, 0.01, 0.1, 0.5, 1.0}) {
    for (const int hops : {1, 2, 7, 63}) EXPECT_NEAR(1.0 - std::pow(1.0 - loss_of_hop(loss, hops), hops), loss, 1e-12);
  }
}

TEST(UdpRate, DoublesUntilCongestionThenGoesDownByMarksDelayOrLoss) {
  const RateControl::Limits limits{
      .first = 1e6, .least = 1e5, .most = 1e9, .target_delay = 1e-3, .tolerated_loss = 0.01};
  const PathReport idle{.round_trip = 1e-3};
  RateControl rate{limits};
  double now = 0.0;
  for (int i = 0; i < 5; ++i, now += 0.01) rate.take(now, idle);
  EXPECT_DOUBLE_EQ(rate.rate(), 32e6);
  const auto after = [&](const PathReport& report) {
    RateControl other = rate;
    other.take(now, report);
    return other.rate() / rate.rate();
  };
  EXPECT_LT(after({.marked = 1.0, .round_trip = 1e-3}), 0.7);
  EXPECT_DOUBLE_EQ(after({.queue_delay = 2e-3, .round_trip = 1e-3}), 0.75);
  EXPECT_NEAR(after({.queue_delay = 1.0, .round_trip = 1e-3}), 0.5, 1e-3);
  EXPECT_DOUBLE_EQ(after({.loss = 0.5, .round_trip = 1e-3}), 0.51);
  EXPECT_DOUBLE_EQ(after({.loss = 0.01, .round_trip = 1e-3}), 2.0) << "a tolerated loss is no congestion";
  EXPECT_DOUBLE_EQ(after({.round_trip = 1e-3, .paced = false}), 1.0) << "a rate that was not used proves nothing";
  rate.take(now, {.loss = 0.5, .round_trip = 1e-3});
  const double reduced = rate.rate();
  rate.take(now + 1e-4, {.loss = 0.5, .round_trip = 1e-3});
  EXPECT_DOUBLE_EQ(rate.rate(), reduced) << "once a round trip";
  rate.take(now + 1.0, idle);
  EXPECT_NEAR(rate.rate(), 1.02 * reduced + 1e5, 1.0) << "additive from then on";
  for (int i = 0; i < 100; ++i) rate.take(now + 2.0 + i, {.loss = 0.5, .round_trip = 1e-3});
  EXPECT_DOUBLE_EQ(rate.rate(), 1e5);
}

}  // namespace
}  // namespace gradtool::udp
