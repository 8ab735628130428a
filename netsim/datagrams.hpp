#pragma once

#include <ns3/event-id.h>
#include <ns3/header.h>
#include <ns3/packet.h>

#include <functional>
#include <memory>
#include <optional>

#include "netsim/fabric.hpp"

namespace gradtool::netsim {

/// The header of every packet of our own protocols: kHeaderBytes bytes, of which eight stand for UDP's header.
struct DatagramHeader final : ns3::Header {
  enum class Kind : std::uint8_t { data, acknowledgement, probe, bitmap, stop, feedback };
  std::uint16_t port = 0;  ///< of the sender; switches hash it
  Kind kind = Kind::data;
  std::uint32_t flow = 0;
  std::uint32_t packet = 0;  ///< data, acknowledgement: its number; bitmap: that of its first bit
  std::uint32_t number = 0;  ///< probe and its bitmap: which probe; feedback: packets that came
  std::uint32_t marked = 0;  ///< feedback: of them with a congestion mark

  static ns3::TypeId GetTypeId();
  ns3::TypeId GetInstanceTypeId() const override { return GetTypeId(); }
  std::uint32_t GetSerializedSize() const override { return kHeaderBytes; }
  void Serialize(ns3::Buffer::Iterator to) const override;
  std::uint32_t Deserialize(ns3::Buffer::Iterator from) override;
  void Print(std::ostream& out) const override;
};

/// Datagrams between the hosts of a fabric, as an IP protocol of its own.
class Datagrams {
 public:
  /// `packet` is what follows the header; `marked` says whether a switch has marked it.
  using Receive = std::function<void(int from, int to, const DatagramHeader&, const ns3::Packet& packet, bool marked)>;
  Datagrams(Fabric& fabric, Receive receive);
  Datagrams(const Datagrams&) = delete;
  Datagrams& operator=(const Datagrams&) = delete;

  /// Puts the header before `packet` and sends it now. `tos` is its priority and whether it is ECN-capable.
  void send(int from, int to, const DatagramHeader& header, const ns3::Ptr<ns3::Packet>& packet, std::uint8_t tos);

 private:
  class Protocol;
  Fabric& fabric_;
  Receive receive_;
};

/// Lets a host's processes send at the rate of its link and no faster, so that packets wait where their order can still
/// be chosen, and not in the port.
class LinkPacer {
 public:
  /// Sends at most one packet, if one may go now. Bytes on the link; where none may go, when the next one may, if that
  /// is known.
  struct Turn {
    double bytes = 0.0;
    std::optional<ns3::Time> next{};
  };
  LinkPacer(const Fabric& fabric, std::function<Turn()> turn) : fabric_{fabric}, turn_{std::move(turn)} {}
  /// Something may have become ready.
  void wake();

 private:
  const Fabric& fabric_;
  std::function<Turn()> turn_;
  ns3::Time free_;  ///< when the link has sent what it was given
  ns3::EventId event_;
};

}  // namespace gradtool::netsim
