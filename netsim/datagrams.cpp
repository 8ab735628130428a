#include "netsim/datagrams.hpp"

#include <ns3/ip-l4-protocol.h>
#include <ns3/ipv4-l3-protocol.h>
#include <ns3/ipv4-route.h>
#include <ns3/simulator.h>
#include <ns3/socket.h>

#include <ostream>

namespace gradtool::netsim {

using ns3::Simulator;

NS_OBJECT_ENSURE_REGISTERED(DatagramHeader);

ns3::TypeId DatagramHeader::GetTypeId() {
  static const ns3::TypeId id =
      ns3::TypeId("gradtool::DatagramHeader").SetParent<ns3::Header>().AddConstructor<DatagramHeader>();
  return id;
}

void DatagramHeader::Serialize(ns3::Buffer::Iterator to) const {
  to.WriteHtonU16(port);
  to.WriteHtonU16(0);
  to.WriteU8(static_cast<std::uint8_t>(kind));
  to.WriteHtonU32(flow);
  to.WriteHtonU32(packet);
  to.WriteHtonU32(number);
  to.WriteHtonU32(marked);
  constexpr std::uint32_t kUsed = 2 + 2 + 1 + 4 * 4;
  to.WriteU8(0, kHeaderBytes - kUsed);
}

std::uint32_t DatagramHeader::Deserialize(ns3::Buffer::Iterator from) {
  port = from.ReadNtohU16();
  from.ReadNtohU16();
  kind = static_cast<Kind>(from.ReadU8());
  flow = from.ReadNtohU32();
  packet = from.ReadNtohU32();
  number = from.ReadNtohU32();
  marked = from.ReadNtohU32();
  return kHeaderBytes;
}

void DatagramHeader::Print(std::ostream& out) const {
  out << "flow " << flow << " packet " << packet;
}

class Datagrams::Protocol final : public ns3::IpL4Protocol {
 public:
  static constexpr std::uint8_t kNumber = 253;  // for experiments, RFC 3692
  Protocol(const Datagrams& owner, int host) : owner_{owner}, host_{host} {}

  int GetProtocolNumber() const override { return kNumber; }
  enum RxStatus Receive(ns3::Ptr<ns3::Packet> packet, const ns3::Ipv4Header& ip,
                        ns3::Ptr<ns3::Ipv4Interface> /*interface*/) override {
    DatagramHeader header;
    packet->RemoveHeader(header);
    owner_.receive_(Fabric::host_of(ip.GetSource()), host_, header, *packet, ip.GetEcn() == ns3::Ipv4Header::ECN_CE);
    return RX_OK;
  }
  enum RxStatus Receive(ns3::Ptr<ns3::Packet> /*packet*/, const ns3::Ipv6Header& /*ip*/,
                        ns3::Ptr<ns3::Ipv6Interface> /*interface*/) override {
    return RX_ENDPOINT_UNREACH;
  }
  void SetDownTarget(DownTargetCallback target) override { down_ = target; }
  void SetDownTarget6(DownTargetCallback6 target) override { down6_ = target; }
  DownTargetCallback GetDownTarget() const override { return down_; }
  DownTargetCallback6 GetDownTarget6() const override { return down6_; }

 private:
  const Datagrams& owner_;
  int host_;
  DownTargetCallback down_;
  DownTargetCallback6 down6_;
};

Datagrams::Datagrams(Fabric& fabric, Receive receive) : fabric_{fabric}, receive_{std::move(receive)} {
  for (int h = 0; h < fabric.hosts(); ++h)
    fabric.host(h)->GetObject<ns3::Ipv4>()->Insert(ns3::CreateObject<Protocol>(*this, h));
}

void Datagrams::send(int from, int to, const DatagramHeader& header, const ns3::Ptr<ns3::Packet>& packet,
                     std::uint8_t tos) {
  packet->AddHeader(header);
  ns3::SocketIpTosTag tag;
  tag.SetTos(tos);
  packet->AddPacketTag(tag);
  fabric_.host(from)->GetObject<ns3::Ipv4>()->Send(packet, Fabric::address(from), Fabric::address(to),
                                                   Protocol::kNumber, nullptr);
}

void LinkPacer::wake() {
  const ns3::Time now = Simulator::Now();
  event_.Cancel();
  if (free_ <= now) {
    const Turn turn = turn_();
    if (turn.bytes > 0.0) {
      free_ = now + ns3::Seconds(fabric_.serialisation(turn.bytes));
    } else if (turn.next) {
      event_ = Simulator::Schedule(*turn.next - now, &LinkPacer::wake, this);
      return;
    } else {
      return;
    }
  }
  event_ = Simulator::Schedule(free_ - now, &LinkPacer::wake, this);
}

}  // namespace gradtool::netsim
