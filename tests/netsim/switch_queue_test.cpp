// Tests the work of a port on packets: drops, marks, and the order in which they leave.
#include "netsim/switch_queue.hpp"

#include <gtest/gtest.h>
#include <ns3/boolean.h>
#include <ns3/double.h>
#include <ns3/ipv4-queue-disc-item.h>
#include <ns3/red-queue-disc.h>
#include <ns3/simulator.h>
#include <ns3/uinteger.h>

#include <vector>

namespace gradtool::netsim {
namespace {

constexpr std::uint32_t kBytes = 1000;  // of a packet with its IP header

ns3::Ptr<ns3::Ipv4QueueDiscItem> item(int band, bool ecn_capable, RemainingTag tag = {}) {
  ns3::Ipv4Header header;
  header.SetTos(tos_of(band, ecn_capable));
  header.SetPayloadSize(kBytes - header.GetSerializedSize());
  auto packet = ns3::Create<ns3::Packet>(kBytes - header.GetSerializedSize());
  packet->AddPacketTag(tag);
  return ns3::Create<ns3::Ipv4QueueDiscItem>(packet, ns3::Address{}, 0x0800, header);
}

bool is_marked(const ns3::QueueDiscItem& item) {
  return dynamic_cast<const ns3::Ipv4QueueDiscItem&>(item).GetHeader().GetEcn() == ns3::Ipv4Header::ECN_CE;
}

ns3::Ptr<TwoThresholdQueue> two_thresholds() {
  auto queue = ns3::CreateObject<TwoThresholdQueue>();
  queue->set_limits({.drop = 5 * kBytes, .mark = 3 * kBytes, .limit = 8 * kBytes});
  queue->Initialize();
  return queue;
}

TEST(TwoThresholdQueue, DropsDroppablePacketsFirst) {
  const auto queue = two_thresholds();
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(queue->Enqueue(item(4, false))) << i;
  EXPECT_FALSE(queue->Enqueue(item(4, false)));  // at the threshold
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(queue->Enqueue(item(4, true))) << i;
  EXPECT_FALSE(queue->Enqueue(item(4, true)));  // the buffer is full
  EXPECT_FALSE(queue->Enqueue(item(0, false)));
  EXPECT_EQ(queue->GetStats().GetNDroppedPackets(TwoThresholdQueue::kThresholdDrop), 1U);
  EXPECT_EQ(queue->GetStats().GetNDroppedPackets(TwoThresholdQueue::kBufferDrop), 2U);
}

TEST(TwoThresholdQueue, MarksAsRedWithEqualLimitsDoes) {
  const auto queue = two_thresholds();
  auto red = ns3::CreateObject<ns3::RedQueueDisc>();
  red->SetAttribute("MinTh", ns3::DoubleValue{3.0 * kBytes});
  red->SetAttribute("MaxTh", ns3::DoubleValue{3.0 * kBytes});
  red->SetAttribute("MaxSize", ns3::QueueSizeValue{ns3::QueueSize{ns3::QueueSizeUnit::BYTES, 8 * kBytes}});
  red->SetAttribute("QW", ns3::DoubleValue{1.0});
  red->SetAttribute("UseEcn", ns3::BooleanValue{true});
  red->SetAttribute("UseHardDrop", ns3::BooleanValue{false});
  red->SetAttribute("Gentle", ns3::BooleanValue{false});
  red->Initialize();
  for (int i = 0; i < 7; ++i) {
    const auto ours = item(4, true), theirs = item(4, true);
    EXPECT_EQ(queue->Enqueue(ours), red->Enqueue(theirs)) << i;
    EXPECT_EQ(is_marked(*ours), i >= 3) << i;
    EXPECT_EQ(is_marked(*ours), is_marked(*theirs)) << i;
  }
}

TEST(TwoThresholdQueue, ServesBandsInOrder) {
  const auto queue = two_thresholds();
  for (const int band : {7, 2, 5, 2, 0}) ASSERT_TRUE(queue->Enqueue(item(band, false)));
  for (const int band : {0, 2, 2, 5, 7}) {
    std::uint8_t tos = 0;
    const auto next = queue->Dequeue();
    ASSERT_TRUE(next->GetUint8Value(ns3::QueueItem::IP_DSFIELD, tos));
    EXPECT_EQ(band_of(tos), band);
  }
  EXPECT_EQ(queue->Dequeue(), nullptr);
}

TEST(RemainingQueue, KeepsTheFewestRemainingBytesAndSendsThemFirst) {
  auto queue = ns3::CreateObject<RemainingQueue>();
  queue->set_limit(4 * kBytes);
  queue->Initialize();
  // Flow 1 has sent its first packet when 9000 bytes remained, the second one when 2000 did.
  for (const RemainingTag& tag :
       {RemainingTag{1, 9000}, RemainingTag{2, 5000}, RemainingTag{3, 7000}, RemainingTag{1, 2000}})
    ASSERT_TRUE(queue->Enqueue(item(7, false, tag)));
  EXPECT_FALSE(queue->Enqueue(item(7, false, {4, 9500})));  // more than any other
  EXPECT_TRUE(queue->Enqueue(item(7, false, {4, 6000})));   // in the place of 9000
  std::vector<std::uint32_t> flows;
  while (const auto next = queue->Dequeue()) {
    RemainingTag tag;
    ASSERT_TRUE(next->GetPacket()->PeekPacketTag(tag));
    flows.push_back(tag.flow());
  }
  EXPECT_EQ(flows, (std::vector<std::uint32_t>{1, 2, 4, 3}));
}

TEST(RemainingQueue, SendsAFlowsPacketsInTheirOrder) {
  auto queue = ns3::CreateObject<RemainingQueue>();
  queue->set_limit(4 * kBytes);
  queue->Initialize();
  for (const RemainingTag& tag : {RemainingTag{1, 9000}, RemainingTag{2, 5000}, RemainingTag{1, 2000}})
    ASSERT_TRUE(queue->Enqueue(item(7, false, tag)));
  RemainingTag first;
  ASSERT_TRUE(queue->Dequeue()->GetPacket()->PeekPacketTag(first));
  EXPECT_EQ(first.flow(), 1U);
  EXPECT_EQ(first.remaining(), 9000U);
}

}  // namespace
}  // namespace gradtool::netsim
