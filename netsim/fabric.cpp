#include "netsim/fabric.hpp"

#include <fmt/format.h>
#include <ns3/boolean.h>
#include <ns3/config.h>
#include <ns3/double.h>
#include <ns3/internet-stack-helper.h>
#include <ns3/ipv4-routing-helper.h>
#include <ns3/ipv4.h>
#include <ns3/point-to-point-helper.h>
#include <ns3/point-to-point-net-device.h>
#include <ns3/red-queue-disc.h>
#include <ns3/rng-seed-manager.h>
#include <ns3/simulator.h>
#include <ns3/string.h>
#include <ns3/traffic-control-layer.h>
#include <ns3/uinteger.h>

#include <algorithm>
#include <cmath>

#include "lib/core/error.hpp"
#include "netsim/routing.hpp"
#include "netsim/switch_queue.hpp"

namespace gradtool::netsim {
namespace {

constexpr std::uint32_t kHostNetwork = 10U << 24;
// Streams of random numbers, so that none depends on how many others there are.
constexpr std::int64_t kPathStreams = 1000;

class RoutingHelper final : public ns3::Ipv4RoutingHelper {
 public:
  RoutingHelper* Copy() const override { return new RoutingHelper{*this}; }  // ns-3 owns it
  ns3::Ptr<ns3::Ipv4RoutingProtocol> Create(ns3::Ptr<ns3::Node> /*node*/) const override {
    return ns3::CreateObject<LeafSpineRouting>();
  }
};

LeafSpineRouting& routing_of(const ns3::Ptr<ns3::Node>& node) {
  return static_cast<LeafSpineRouting&>(*node->GetObject<ns3::Ipv4>()->GetRoutingProtocol());
}

ns3::Ptr<ns3::QueueDisc> make_queue(const FabricOptions& options, PortKind kind, bool of_host, double rate) {
  constexpr double kRoomy = 1e15;
  const auto bytes = [](double value) { return static_cast<std::uint64_t>(value); };
  const double buffer = of_host ? kRoomy : options.buffer;
  switch (kind) {
    case PortKind::red: {
      auto queue = ns3::CreateObject<ns3::RedQueueDisc>();
      const auto set = [&queue](const char* name, const ns3::AttributeValue& value) {
        queue->SetAttribute(name, value);
      };
      set("MinTh", ns3::DoubleValue{options.threshold});
      set("MaxTh", ns3::DoubleValue{options.threshold});
      set("MaxSize", ns3::QueueSizeValue{
                         ns3::QueueSize{ns3::QueueSizeUnit::BYTES, static_cast<std::uint32_t>(std::min(buffer, 4e9))}});
      set("QW", ns3::DoubleValue{1.0});  // the queue as it is, without averaging
      set("MeanPktSize", ns3::UintegerValue{static_cast<std::uint64_t>(options.payload + kPacketOverhead)});
      set("LinkBandwidth", ns3::DataRateValue{ns3::DataRate{bytes(rate)}});
      set("LinkDelay", ns3::TimeValue{ns3::Seconds(options.delay)});
      set("UseEcn", ns3::BooleanValue{true});
      set("UseHardDrop", ns3::BooleanValue{false});
      set("Gentle", ns3::BooleanValue{false});
      return queue;
    }
    case PortKind::two_thresholds:
    case PortKind::fifo: {
      auto queue = ns3::CreateObject<TwoThresholdQueue>();
      const double threshold = kind == PortKind::fifo ? kRoomy : options.threshold;
      queue->set_limits(
          {.drop = bytes(of_host ? kRoomy : threshold), .mark = bytes(threshold), .limit = bytes(buffer)});
      return queue;
    }
    case PortKind::remaining: {
      auto queue = ns3::CreateObject<RemainingQueue>();
      queue->set_limit(bytes(of_host ? kRoomy : options.pfabric_buffer));
      return queue;
    }
  }
  return nullptr;
}

}  // namespace

void prepare_simulator() {
  static bool prepared = false;
  if (prepared) return;
  ns3::Time::SetResolution(ns3::Time::PS);
  prepared = true;
}

ns3::Ipv4Address Fabric::address(int host) {
  return ns3::Ipv4Address{kHostNetwork + static_cast<std::uint32_t>(host) + 1};
}

int Fabric::host_of(ns3::Ipv4Address address) {
  return static_cast<int>(address.Get() - kHostNetwork) - 1;
}

Fabric::Fabric(const FabricOptions& options, PortKind ports, Routing routing, std::uint64_t seed) : options_{options} {
  prepare_simulator();
  ns3::RngSeedManager::SetSeed(static_cast<std::uint32_t>(seed % 4294967291U) + 1);  // ns-3 forbids 0
  ns3::RngSeedManager::SetRun(1);
  const auto make = [](std::vector<ns3::Ptr<ns3::Node>>& nodes, int count) {
    nodes.reserve(static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i) nodes.push_back(ns3::CreateObject<ns3::Node>());
    ns3::InternetStackHelper stack;
    stack.SetIpv6StackInstall(false);
    stack.SetRoutingHelper(RoutingHelper{});
    for (const auto& node : nodes) stack.Install(node);
  };
  make(hosts_, hosts());
  make(leaves_, options.leaves);
  make(spines_, options.spines);

  const auto place = [&](const std::vector<ns3::Ptr<ns3::Node>>& nodes, LeafSpineRouting::Role role) {
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      auto random = ns3::CreateObject<ns3::UniformRandomVariable>();
      random->SetStream(kPathStreams + static_cast<std::int64_t>(i));
      routing_of(nodes[i]).set_place({.role = role,
                                      .leaf = static_cast<int>(i),
                                      .hosts_per_leaf = options.hosts_per_leaf,
                                      .spray = routing == Routing::spray,
                                      .hash_seed = static_cast<std::uint32_t>(seed)},
                                     random);
    }
  };
  place(hosts_, LeafSpineRouting::Role::host);
  place(leaves_, LeafSpineRouting::Role::leaf);
  place(spines_, LeafSpineRouting::Role::spine);

  std::uint32_t other_addresses = (172U << 24) + (16U << 16);
  const auto connect = [&](const ns3::Ptr<ns3::Node>& below, const ns3::Ptr<ns3::Node>& above, double rate, int host) {
    ns3::PointToPointHelper link;
    link.SetDeviceAttribute("DataRate", ns3::DataRateValue{ns3::DataRate{static_cast<std::uint64_t>(rate)}});
    // The device's own queue holds one packet, so that all others wait in the queue disc.
    link.SetQueue("ns3::DropTailQueue", "MaxSize", ns3::StringValue{"1p"});
    link.SetDeviceAttribute("Mtu",
                            ns3::UintegerValue{static_cast<std::uint64_t>(options.payload + kHeaderBytes + 128)});
    link.SetChannelAttribute("Delay", ns3::TimeValue{ns3::Seconds(options.delay)});
    const auto devices = link.Install(below, above);
    for (std::uint32_t end = 0; end < 2; ++end) {
      const auto device = devices.Get(end);
      const auto node = device->GetNode();
      const auto ipv4 = node->GetObject<ns3::Ipv4>();
      const bool of_host = end == 0 && host >= 0;
      const std::uint32_t interface = ipv4->AddInterface(device);
      const ns3::Ipv4Address own = of_host ? address(host) : ns3::Ipv4Address{++other_addresses};
      ipv4->AddAddress(interface, {own, ns3::Ipv4Mask::GetOnes()});
      ipv4->SetUp(interface);
      routing_of(node).add_port(device);
      node->GetObject<ns3::TrafficControlLayer>()->SetRootQueueDiscOnDevice(device,
                                                                            make_queue(options, ports, of_host, rate));
    }
  };
  for (int h = 0; h < hosts(); ++h) {
    connect(host(h), leaves_[static_cast<std::size_t>(h / options.hosts_per_leaf)], options.rate, h);
  }
  for (const auto& leaf : leaves_) {
    for (const auto& spine : spines_) connect(leaf, spine, options.uplink, -1);
  }
  // ns-3 would do it at the first event; now connections may be opened before that.
  for (const auto* nodes : {&hosts_, &leaves_, &spines_}) {
    for (const auto& node : *nodes) node->Initialize();
  }
}

Fabric::~Fabric() {
  ns3::Simulator::Destroy();
}

double Fabric::one_way(double data, bool across) const {
  const double bits = 8.0 * (data + kPacketOverhead);
  return across ? 4.0 * options_.delay + 2.0 * bits / options_.rate + 2.0 * bits / options_.uplink
                : 2.0 * options_.delay + 2.0 * bits / options_.rate;
}

double Fabric::ideal_seconds(double bytes, bool across) const {
  const double packets = std::max(1.0, std::ceil(bytes / options_.payload));
  const double first = std::min<double>(bytes, options_.payload);
  // From the first packet's arrival on, the last link is busy until the end.
  return one_way(first, across) - serialisation(first + kPacketOverhead) +
         serialisation(bytes + packets * kPacketOverhead);
}

Fabric::Counts Fabric::counts() const {
  Counts counts;
  for (const auto* nodes : {&hosts_, &leaves_, &spines_}) {
    for (const auto& node : *nodes) {
      const auto control = node->GetObject<ns3::TrafficControlLayer>();
      for (std::uint32_t d = 0; d < node->GetNDevices(); ++d) {
        const auto queue = control->GetRootQueueDiscOnDevice(node->GetDevice(d));
        if (queue == nullptr) continue;
        const auto& stats = queue->GetStats();
        counts.packets += stats.nTotalReceivedPackets;
        counts.dropped += stats.nTotalDroppedPackets;
        counts.marked += stats.nTotalMarkedPackets;
      }
    }
  }
  return counts;
}

}  // namespace gradtool::netsim
