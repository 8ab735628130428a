#pragma once

#include <ns3/queue-disc.h>
#include <ns3/queue.h>
#include <ns3/tag.h>

#include <cstdint>

namespace gradtool::netsim {

/// Strict priorities of a port. Band 0 is served first. Hosts choose a packet's band by its DSCP class selector: band b
/// is CS(7-b), so that packets without a DSCP are in the last band.
inline constexpr int kBands = 8;
/// The band of packets whose messages have no priorities: others can be put before them and behind.
inline constexpr int kMiddleBand = kBands / 2;
/// The type-of-service byte of a packet in `band`, ECN-capable (ECT(0)) or not.
[[nodiscard]] constexpr std::uint8_t tos_of(int band, bool ecn_capable) {
  return static_cast<std::uint8_t>((kBands - 1 - band) << 5 | (ecn_capable ? 2 : 0));
}
[[nodiscard]] constexpr int band_of(std::uint8_t tos) {
  return kBands - 1 - (tos >> 5);
}

/// The port of a commodity switch: strict priorities, and RED with equal lower and upper limits, which is a threshold.
/// Bytes are those of all bands together, because they share the port's buffer. A packet that finds
///   `drop` bytes or more is dropped unless it is ECN-capable;
///   `mark` bytes or more is marked when it is ECN-capable;
///   no room in `limit` bytes is dropped in any case.
/// So ECN-capable packets see the buffer as their only limit, and the others a lower one.
class TwoThresholdQueue final : public ns3::QueueDisc {
 public:
  struct Limits {
    std::uint64_t drop = 0, mark = 0, limit = 0;  ///< bytes
  };
  static ns3::TypeId GetTypeId();
  TwoThresholdQueue();
  void set_limits(const Limits& limits) { limits_ = limits; }

  static constexpr const char* kThresholdDrop = "not ECN-capable above the threshold";
  static constexpr const char* kBufferDrop = "buffer full";
  static constexpr const char* kMark = "above the threshold";

 private:
  bool DoEnqueue(ns3::Ptr<ns3::QueueDiscItem> item) override;
  ns3::Ptr<ns3::QueueDiscItem> DoDequeue() override;
  bool CheckConfig() override;
  void InitializeParams() override {}

  Limits limits_;
};

/// A tag for pFabric's switches: the packet's flow, and the bytes that the flow still had to deliver when the packet
/// was sent.
class RemainingTag final : public ns3::Tag {
 public:
  static ns3::TypeId GetTypeId();
  RemainingTag() = default;
  RemainingTag(std::uint32_t flow, std::uint64_t remaining) : flow_{flow}, remaining_{remaining} {}
  [[nodiscard]] std::uint32_t flow() const { return flow_; }
  [[nodiscard]] std::uint64_t remaining() const { return remaining_; }

  ns3::TypeId GetInstanceTypeId() const override { return GetTypeId(); }
  std::uint32_t GetSerializedSize() const override { return 12; }
  void Serialize(ns3::TagBuffer to) const override;
  void Deserialize(ns3::TagBuffer from) override;
  void Print(std::ostream& out) const override;

 private:
  std::uint32_t flow_ = 0;
  std::uint64_t remaining_ = 0;
};

/// A pFabric port (Alizadeh et al. 2013): sends the oldest packet of the flow that has the packet with the fewest
/// remaining bytes, and where the buffer is full drops the packet with the most.
class RemainingQueue final : public ns3::QueueDisc {
 public:
  static ns3::TypeId GetTypeId();
  RemainingQueue();
  void set_limit(std::uint64_t bytes) { limit_ = bytes; }

  static constexpr const char* kBufferDrop = "most bytes remaining in a full buffer";

 private:
  bool DoEnqueue(ns3::Ptr<ns3::QueueDiscItem> item) override;
  ns3::Ptr<ns3::QueueDiscItem> DoDequeue() override;
  bool CheckConfig() override;
  void InitializeParams() override {}

  std::uint64_t limit_ = 0;
};

}  // namespace gradtool::netsim
