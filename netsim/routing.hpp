#pragma once

#include <ns3/ipv4-routing-protocol.h>
#include <ns3/random-variable-stream.h>

#include <cstdint>
#include <vector>

namespace gradtool::netsim {

/// Routes of one node of a leaf-spine network, found by arithmetic instead of a table of all hosts.
class LeafSpineRouting final : public ns3::Ipv4RoutingProtocol {
 public:
  enum class Role : std::uint8_t { host, leaf, spine };
  struct Place {
    Role role = Role::host;
    int leaf = 0;  ///< of a leaf, its number
    int hosts_per_leaf = 1;
    bool spray = false;
    std::uint32_t hash_seed = 0;
  };

  static ns3::TypeId GetTypeId();
  void set_place(const Place& place, ns3::Ptr<ns3::UniformRandomVariable> random) {
    place_ = place;
    random_ = random;
  }
  /// Ports in the order in which they are needed: a host's one link; a leaf's hosts, then its spines; a spine's leaves.
  void add_port(ns3::Ptr<ns3::NetDevice> device);

  ns3::Ptr<ns3::Ipv4Route> RouteOutput(ns3::Ptr<ns3::Packet> packet, const ns3::Ipv4Header& header,
                                       ns3::Ptr<ns3::NetDevice> out, ns3::Socket::SocketErrno& error) override;
  bool RouteInput(ns3::Ptr<const ns3::Packet> packet, const ns3::Ipv4Header& header,
                  ns3::Ptr<const ns3::NetDevice> device, UnicastForwardCallback forward, MulticastForwardCallback,
                  LocalDeliverCallback deliver, ErrorCallback error) override;
  void NotifyInterfaceUp(std::uint32_t) override {}
  void NotifyInterfaceDown(std::uint32_t) override {}
  void NotifyAddAddress(std::uint32_t, ns3::Ipv4InterfaceAddress) override {}
  void NotifyRemoveAddress(std::uint32_t, ns3::Ipv4InterfaceAddress) override {}
  void SetIpv4(ns3::Ptr<ns3::Ipv4> ipv4) override { ipv4_ = ipv4; }
  void PrintRoutingTable(ns3::Ptr<ns3::OutputStreamWrapper>, ns3::Time::Unit) const override {}

 private:
  void DoDispose() override;
  [[nodiscard]] std::size_t port_towards(const ns3::Packet& packet, const ns3::Ipv4Header& header) const;

  Place place_;
  ns3::Ptr<ns3::UniformRandomVariable> random_;
  ns3::Ptr<ns3::Ipv4> ipv4_;
  std::vector<ns3::Ptr<ns3::Ipv4Route>> ports_;
};

}  // namespace gradtool::netsim
