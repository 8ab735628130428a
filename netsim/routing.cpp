#include "netsim/routing.hpp"

#include <ns3/hash.h>
#include <ns3/ipv4-l3-protocol.h>
#include <ns3/ipv4-route.h>

#include <array>
#include <cstring>

#include "netsim/fabric.hpp"

namespace gradtool::netsim {

NS_OBJECT_ENSURE_REGISTERED(LeafSpineRouting);

ns3::TypeId LeafSpineRouting::GetTypeId() {
  static const ns3::TypeId id = ns3::TypeId("gradtool::LeafSpineRouting")
                                    .SetParent<ns3::Ipv4RoutingProtocol>()
                                    .SetGroupName("Internet")
                                    .AddConstructor<LeafSpineRouting>();
  return id;
}

void LeafSpineRouting::add_port(ns3::Ptr<ns3::NetDevice> device) {
  auto route = ns3::Create<ns3::Ipv4Route>();
  route->SetOutputDevice(device);
  // On a link between two nodes any gateway is the other end, as long as it is no node's own address.
  route->SetGateway(ns3::Ipv4Address{"172.31.255.255"});
  ports_.push_back(route);
}

void LeafSpineRouting::DoDispose() {
  ports_.clear();
  random_ = nullptr;
  ipv4_ = nullptr;
  ns3::Ipv4RoutingProtocol::DoDispose();
}

std::size_t LeafSpineRouting::port_towards(const ns3::Packet& packet, const ns3::Ipv4Header& header) const {
  const int host = Fabric::host_of(header.GetDestination());
  const int leaf = host / place_.hosts_per_leaf;
  if (place_.role == Role::spine) return static_cast<std::size_t>(leaf);
  const auto hosts = static_cast<std::size_t>(place_.hosts_per_leaf);
  if (leaf == place_.leaf) return static_cast<std::size_t>(host) % hosts;
  const std::size_t spines = ports_.size() - hosts;
  if (place_.spray) return hosts + random_->GetInteger(0, static_cast<std::uint32_t>(spines - 1));
  // Both protocols in use begin with the two ports.
  struct Flow {
    std::uint32_t seed, from, to, ports;
  } flow{place_.hash_seed, header.GetSource().Get(), header.GetDestination().Get(), 0};
  std::array<std::uint8_t, sizeof(flow.ports)> ports{};
  packet.CopyData(ports.data(), ports.size());
  std::memcpy(&flow.ports, ports.data(), ports.size());
  std::array<char, sizeof(flow)> bytes{};
  std::memcpy(bytes.data(), &flow, bytes.size());
  return hosts + ns3::Hash32(bytes.data(), bytes.size()) % spines;
}

ns3::Ptr<ns3::Ipv4Route> LeafSpineRouting::RouteOutput(ns3::Ptr<ns3::Packet> /*packet*/, const ns3::Ipv4Header& header,
                                                       ns3::Ptr<ns3::NetDevice> /*out*/,
                                                       ns3::Socket::SocketErrno& error) {
  error = ns3::Socket::ERROR_NOTERROR;
  auto route = ns3::Create<ns3::Ipv4Route>(*ports_.front());
  route->SetDestination(header.GetDestination());
  route->SetSource(ipv4_->GetAddress(1, 0).GetLocal());
  return route;
}

bool LeafSpineRouting::RouteInput(ns3::Ptr<const ns3::Packet> packet, const ns3::Ipv4Header& header,
                                  ns3::Ptr<const ns3::NetDevice> device, UnicastForwardCallback forward,
                                  MulticastForwardCallback /*multicast*/, LocalDeliverCallback deliver,
                                  ErrorCallback /*error*/) {
  if (place_.role == Role::host) {
    deliver(packet, header, static_cast<std::uint32_t>(ipv4_->GetInterfaceForDevice(device)));
  } else {
    forward(ports_[port_towards(*packet, header)], packet, header);
  }
  return true;
}

}  // namespace gradtool::netsim
