// The emulated channel: how much is lost, in what pattern, what is protected, and what the bound does.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "lib/methods/dlcp/channel.hpp"
#include "lib/methods/dlcp/format.hpp"
#include "tests/codecs/codec_run.hpp"
#include "tests/codecs/inputs.hpp"

namespace gradtool::test {
namespace {

using format::PacketHeader;
using Options = LossyChannel::Options;

std::vector<bool> losses(const Options& options, std::size_t packets, std::uint64_t seed) {
  LossyChannel channel{options, {.seed = seed}};
  std::vector<bool> lost(packets);
  for (std::size_t t = 0; t < packets; ++t) lost[t] = channel.loses(t, 1460, false);
  return lost;
}

TEST(DlcpChannel, IidLosesItsShareOfPackets) {
  for (const double loss : {0.0, 0.01, 0.3, 1.0}) {
    const std::size_t n = 40'000;
    const auto lost = losses({.model = LossyChannel::Model::iid, .loss = loss}, n, 5);
    const auto count = static_cast<double>(std::count(lost.begin(), lost.end(), true));
    const double mean = loss * static_cast<double>(n);
    EXPECT_NEAR(count, mean, 4.0 * std::sqrt(mean * (1.0 - loss))) << loss;  // 4 sigma of the binomial
  }
}

TEST(DlcpChannel, GilbertElliottLosesInBursts) {
  const Options options{.model = LossyChannel::Model::gilbert_elliott, .bad_share = 0.1, .burst = 20.0};
  const std::size_t n = 400'000;
  const auto lost = losses(options, n, 6);
  std::size_t bursts = 0;
  for (std::size_t t = 1; t < n; ++t) bursts += lost[t] && !lost[t - 1] ? 1 : 0;
  const auto count = static_cast<double>(std::count(lost.begin(), lost.end(), true));
  // About n 0.1 / 20 = 2000 geometric bursts: their mean length has a relative deviation of 1/sqrt(2000).
  EXPECT_NEAR(count / static_cast<double>(n), 0.1, 0.012);
  EXPECT_NEAR(count / static_cast<double>(bursts), 20.0, 1.8);
}

TEST(DlcpChannel, GilbertElliottMixesTheLossesOfItsStates) {
  const Options options{.model = LossyChannel::Model::gilbert_elliott,
                        .bad_share = 0.25,
                        .burst = 4.0,
                        .loss_good = 0.02,
                        .loss_bad = 0.6};
  const auto lost = losses(options, 200'000, 7);
  EXPECT_NEAR(static_cast<double>(std::count(lost.begin(), lost.end(), true)) / 200'000.0, 0.25 * 0.6 + 0.75 * 0.02,
              0.006);
}

TEST(DlcpChannel, TheQueueDropsWhatExceedsItsDrain) {
  const Options options{.model = LossyChannel::Model::importance, .drain = 0.9, .queue_bytes = 8 * 1460};
  const auto lost = losses(options, 10'000, 8);
  EXPECT_NEAR(static_cast<double>(std::count(lost.begin(), lost.end(), true)), 1000.0, 20.0);
}

struct Sent {
  PacketHeader head;
  bool arrived;
};

std::vector<Sent> transmissions(const std::vector<std::byte>& payload) {
  std::uint32_t count = 0;
  std::memcpy(&count, payload.data() + 12, 4);
  std::vector<Sent> sent(count);
  std::size_t at = 16 + 4 * ((count + 31) / 32);
  for (std::size_t t = 0; t < count; ++t) {
    std::memcpy(&sent[t].head, payload.data() + at, sizeof(PacketHeader));
    sent[t].arrived = (static_cast<unsigned>(payload[16 + t / 8]) >> t % 8 & 1U) != 0;
    at += sizeof(PacketHeader) + sent[t].head.bytes;
  }
  EXPECT_EQ(at, payload.size());
  return sent;
}

const EncodeContext kContext{.key = {.seed = 3}};

TEST(Dlcp, ImportantPacketsSurviveWhereDroppableOnesDoNot) {
  CodecRun run{"dlcp:packet=256,drain=0.8,bound=1", 64 * 1000};
  std::size_t lost = 0;
  for (const auto& packet : transmissions(run.encode(gradient_like(64 * 1000), kContext))) {
    if (!packet.arrived) {
      ++lost;
      EXPECT_EQ(packet.head.flags & PacketHeader::kImportant, 0);
    }
  }
  EXPECT_NEAR(static_cast<double>(lost), 200.0, 10.0);
}

TEST(Dlcp, LargePacketsAndBackLayersAreImportant) {
  const std::size_t each = 64;
  Layout layout;
  for (const double depth : {0.0, 0.9}) {
    layout.tensors.push_back({.shape = {10, 64}, .first = layout.elements, .elements = 10 * each, .depth = depth});
    layout.elements += 10 * each;
  }
  const auto spec = parse_codec("dlcp:model=none,packet=256");
  const auto codec = spec.descriptor->make_host(spec.params, layout);
  std::vector<float> x(layout.elements, 0.1F);
  for (std::size_t i = 0; i < 3 * each; ++i) x[i] = 1.0F;  // three large packets
  for (std::size_t i = 3 * each; i < 10 * each; ++i) x[i] = 0.01F * static_cast<float>(i / each);
  Arena<Space::host> arena{codec->plan(x.size()).payload_bytes + codec->plan(x.size()).scratch_bytes + 512};
  auto payload = arena.take_bytes(codec->plan(x.size()).payload_bytes);
  codec->encode({}, {x.data(), x.size()}, kContext, payload, arena.take_bytes(codec->plan(x.size()).scratch_bytes));
  std::uint64_t bytes = 0;
  std::memcpy(&bytes, payload.data(), 8);
  std::size_t important_front = 0;
  for (const auto& packet : transmissions({payload.data(), payload.data() + bytes})) {
    const bool important = (packet.head.flags & PacketHeader::kImportant) != 0;
    if (packet.head.tensor == 1) EXPECT_TRUE(important);
    if (packet.head.tensor == 0 && packet.head.packet < 3) EXPECT_TRUE(important);
    important_front += packet.head.tensor == 0 && important ? 1 : 0;
    EXPECT_EQ(packet.head.layer_class, packet.head.tensor == 0 ? 0 : 6);
  }
  EXPECT_EQ(important_front, 5U);  // from the upper median on
}

TEST(Dlcp, TheBoundIsKeptForEveryTensorAndNotOverdone) {
  Layout layout;
  for (const std::size_t packets : {1U, 10U, 1000U}) {
    layout.tensors.push_back(
        {.shape = {static_cast<std::int64_t>(packets), 16}, .first = layout.elements, .elements = 16 * packets});
    layout.elements += 16 * packets;
  }
  const auto x = gradient_like(layout.elements);
  for (const double bound : {0.0, 0.05, 0.25}) {
    const auto spec = parse_codec(fmt::format("dlcp:model=iid,loss=0.4,packet=64,bound={}", bound));
    const auto codec = spec.descriptor->make_host(spec.params, layout);
    const Footprint footprint = codec->plan(x.size());
    Arena<Space::host> arena{footprint.payload_bytes + footprint.scratch_bytes + 512};
    auto payload = arena.take_bytes(footprint.payload_bytes);
    codec->encode({}, {x.data(), x.size()}, kContext, payload, arena.take_bytes(footprint.scratch_bytes));
    std::uint64_t bytes = 0;
    std::memcpy(&bytes, payload.data(), 8);
    std::vector<double> there(3, 0.0);
    for (const auto& packet : transmissions({payload.data(), payload.data() + bytes})) {
      if (packet.arrived) there[packet.head.tensor] += 1.0 / packet.head.packets;
    }
    for (const double share : there) EXPECT_GE(share, 1.0 - bound - 1e-9);
    EXPECT_LE(there[2], 1.0 - bound + 0.002);  // the sender stops when it is told to
  }
}

TEST(Dlcp, WhatIsLostIsExactlyZeroAndTheRestExact) {
  const std::size_t n = 16 * 500 + 3;
  CodecRun run{"dlcp:model=iid,loss=0.2,packet=64,bound=1", n};
  const auto x = gradient_like(n);
  const auto payload = run.encode(x, kContext);
  const auto y = run.decode(payload);
  std::size_t lost = 0;
  for (const auto& packet : transmissions(payload)) {
    for (std::size_t i = 16 * packet.head.packet; i < std::min<std::size_t>(n, 16 * packet.head.packet + 16); ++i)
      ASSERT_EQ(y[i], packet.arrived ? x[i] : 0.0F);
    lost += packet.arrived ? 0 : 1;
  }
  EXPECT_GT(lost, 50U);
}

TEST(Dlcp, LostAndRepeatedPacketsAreCounted) {
  const std::size_t n = 16 * 1000;
  CodecRun all{"dlcp:model=iid,loss=1,packet=64,bound=1", n};
  CodecRun none{"dlcp:model=none,packet=64", n};
  CodecRun again{"dlcp:model=iid,loss=1,packet=64,bound=0", n};
  const auto x = gradient_like(n);
  const std::size_t once = 16 + 128 + 1000 * (24 + 64);  // 1000 bits are 128 bytes of bitmap
  EXPECT_EQ(all.encode(x, kContext).size(), once);
  EXPECT_EQ(none.encode(x, kContext).size(), once);
  EXPECT_EQ(again.encode(x, kContext).size(), 16 + 252 + 2 * 1000 * (24 + 64));
  EXPECT_EQ(again.decode(again.encode(x, kContext)), x);
  EXPECT_EQ(all.decode(all.encode(x, kContext)), std::vector<float>(n, 0.0F));
}

TEST(Dlcp, TheMedianRunsOverSteps) {
  const std::size_t n = 16 * 100;
  const auto spec = parse_codec("dlcp:model=none,packet=64,decay=0.5");
  const auto codec = spec.descriptor->make_host(spec.params, Layout::flat(n));
  auto encoder = codec->make_encoder(n, 1, {});
  Arena<Space::host> arena{codec->plan(n).payload_bytes + codec->plan(n).scratch_bytes + 512};
  auto payload = arena.take_bytes(codec->plan(n).payload_bytes);
  auto scratch = arena.take_bytes(codec->plan(n).scratch_bytes);
  const auto important = [&](float size) {
    const std::vector<float> x(n, size);
    encoder->encode({}, {x.data(), n}, {}, kContext, payload, scratch);
    std::uint64_t bytes = 0;
    std::memcpy(&bytes, payload.data(), 8);
    return (transmissions({payload.data(), payload.data() + bytes})[0].head.flags & PacketHeader::kImportant) != 0;
  };
  EXPECT_TRUE(important(1.0F));   // compared with itself
  EXPECT_FALSE(important(0.5F));  // with 1; the median becomes 0.75
  EXPECT_TRUE(important(0.8F));   // with 0.75
  encoder->reset({});
  EXPECT_TRUE(important(0.1F));
}

}  // namespace
}  // namespace gradtool::test
