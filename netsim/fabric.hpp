#pragma once

#include <ns3/ipv4-address.h>
#include <ns3/node.h>
#include <ns3/nstime.h>

#include <cstdint>
#include <vector>

#include "lib/model/network.hpp"

namespace gradtool::netsim {

/// How a leaf chooses the spine of a packet.
enum class Routing : std::uint8_t {
  ecmp,   ///< by a hash of addresses and ports: a flow keeps to one path
  spray,  ///< by chance, anew for every packet
};

/// How a port treats packets that wait.
enum class PortKind : std::uint8_t {
  red,             ///< ns-3's RED with one threshold, above which packets are marked
  two_thresholds,  ///< TwoThresholdQueue
  fifo,            ///< drops when the buffer is full
  remaining,       ///< RemainingQueue
};

/// A leaf-spine network: every host has one link to its leaf, every leaf one to every spine.
struct FabricOptions {
  int leaves = 9, spines = 4, hosts_per_leaf = 16;
  double rate = 100e9;          ///< of a host's link, bit/s
  double uplink = 400e9;        ///< of a link between leaf and spine, bit/s
  double delay = 1e-6;          ///< of every link, seconds
  double buffer = 1e6;          ///< of a port, bytes
  double threshold = 3e5;       ///< bytes from which ECN-capable packets are marked and others dropped
  double pfabric_buffer = 2e5;  ///< of a port of kind `remaining`, bytes
  int payload = 1436;           ///< bytes of data in a full packet
};

/// Bytes that a packet has beyond its data: 24 of our header and 8 as UDP has, 20 of IP, 2 of the link (ns-3's PPP).
/// TCP's header has 20 and its time stamps 12, which is as much.
inline constexpr int kHeaderBytes = 32, kIpBytes = 20, kLinkBytes = 2;
inline constexpr int kPacketOverhead = kHeaderBytes + kIpBytes + kLinkBytes;

/// Streams of random numbers that have one user each: sizes and gaps of other traffic, and arrivals of `check_queue`.
inline constexpr std::int64_t kBackgroundStream = 1, kArrivalStream = 2;

/// The nodes, links and queues of one simulation, in ns-3's one and only simulator: there is at most one Fabric at a
/// time. What a host sends to another passes its own link, its leaf's, and where the leaves differ two of a spine.
class Fabric {
 public:
  /// `seed` decides the paths of packets. Hosts' own ports never drop: like the switches' they mark, but a process that
  /// sends too fast waits.
  Fabric(const FabricOptions& options, PortKind ports, Routing routing, std::uint64_t seed);
  ~Fabric();  ///< ends the simulation and all that it made
  Fabric(const Fabric&) = delete;
  Fabric& operator=(const Fabric&) = delete;

  [[nodiscard]] const FabricOptions& options() const { return options_; }
  [[nodiscard]] int hosts() const { return options_.leaves * options_.hosts_per_leaf; }
  [[nodiscard]] ns3::Ptr<ns3::Node> host(int index) const { return hosts_[static_cast<std::size_t>(index)]; }
  [[nodiscard]] static ns3::Ipv4Address address(int host);
  [[nodiscard]] static int host_of(ns3::Ipv4Address address);

  /// Seconds that `bytes` take on a host's link.
  [[nodiscard]] double serialisation(double bytes) const { return bytes * 8.0 / options_.rate; }
  /// Seconds from sending one packet of `data` bytes until the other host has it, on an idle network.
  [[nodiscard]] double one_way(double data, bool across) const;
  /// Seconds from sending a full packet to the answer, on an idle network between leaves.
  [[nodiscard]] double round_trip() const { return one_way(options_.payload, true) + one_way(0.0, true); }
  /// Seconds until the last byte of a message is there that is sent at line rate on an idle network.
  [[nodiscard]] double ideal_seconds(double bytes, bool across) const;
  [[nodiscard]] bool across(int a, int b) const { return a / options_.hosts_per_leaf != b / options_.hosts_per_leaf; }

  /// Over all ports so far.
  struct Counts {
    std::uint64_t packets = 0, dropped = 0, marked = 0;
  };
  [[nodiscard]] Counts counts() const;

 private:
  FabricOptions options_;
  std::vector<ns3::Ptr<ns3::Node>> hosts_, leaves_, spines_;
};

/// Prepares ns-3 for the first simulation of the process: time in picoseconds, because a packet takes only some
/// nanoseconds. Does nothing the second time.
void prepare_simulator();

}  // namespace gradtool::netsim
