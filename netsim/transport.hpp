#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "netsim/fabric.hpp"

namespace gradtool::netsim {

/// Priorities that gradients may have: 0 for the layers that the next forward pass needs first.
inline constexpr int kLayerClasses = 7;

/// Which packets of a message are important. A message is the part from `first` to `last` of something whose packets
/// have these flags in order; the shares let the part have another number of packets than flags.
struct Importance {
  const std::vector<std::uint8_t>* flags = nullptr;  ///< all packets are important without flags
  double first = 0.0, last = 1.0;

  [[nodiscard]] bool of(std::uint64_t packet, std::uint64_t packets) const {
    if (flags == nullptr || flags->empty()) return true;
    const double share = (static_cast<double>(packet) + 0.5) / static_cast<double>(packets);
    const auto at = static_cast<std::size_t>((first + share * (last - first)) * static_cast<double>(flags->size()));
    return (*flags)[at < flags->size() ? at : flags->size() - 1] != 0;
  }
};

struct Message {
  int from = 0, to = 0;     ///< hosts, which differ
  std::uint64_t bytes = 0;  ///< at least 1
  int layer = 0;            ///< class of the layer, 0 to kLayerClasses - 1
  double bound = 0.0;       ///< share of the bytes that may stay lost, where the transport tolerates loss
  bool background = false;  ///< other people's traffic
  Importance importance{};
};

/// The outcome of a message.
struct Delivery {
  double seconds = 0.0;         ///< from send() until the receiver could go on
  std::uint64_t bytes = 0;      ///< that had arrived then
  std::uint64_t important = 0;  ///< of them in important packets
  std::uint64_t important_sent = 0;
  std::uint64_t repeated = 0;  ///< bytes that were sent more than once
};

/// Carries messages between hosts of a fabric. Objects live as long as the fabric's simulation.
class Transport {
 public:
  using Done = std::function<void(const Delivery&)>;
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  /// `done` is called from the simulation at the time when the receiver has what it needs.
  virtual void send(const Message& message, Done done) = 0;

  /// Tells which hosts will talk, so that connections are there before the clock starts.
  virtual void prepare(int /*from*/, int /*to*/) {}

 protected:
  Transport() = default;
};

struct DlcpOptions {
  double start = 1.0;       ///< rate of a new connection, share of the line's
  double gain = 1.0 / 16;   ///< of the moving share of marked packets, as in DCTCP
  double increase = 0.005;  ///< of the rate with each report without marks, share of the line's
  double feedback = 1.0;    ///< round trips between two reports of a receiver
  double probe = 4.0;       ///< round trips after which an unanswered probe is sent again
  bool priorities = true;   ///< layers have bands of their own; else all share the middle one
  bool marking = true;      ///< unimportant packets may be dropped early; else all are ECN-capable
};

struct TcpOptions {
  double min_rto = 10e-3;   ///< seconds
  int initial_window = 10;  ///< packets
};

enum class Protocol : std::uint8_t { dlcp, dctcp, tcp, pfabric };
inline constexpr std::string_view kProtocolNames[] = {"dlcp", "dctcp", "tcp", "pfabric"};
[[nodiscard]] constexpr std::string_view name_of(Protocol protocol) {
  return kProtocolNames[static_cast<std::size_t>(protocol)];
}
[[nodiscard]] constexpr std::string_view name_of(Routing routing) {
  return routing == Routing::ecmp ? "ecmp" : "spray";
}

/// The ports that a protocol expects, and its routing unless another is asked for.
[[nodiscard]] PortKind ports_of(Protocol protocol);
[[nodiscard]] Routing routing_of(Protocol protocol);

/// A transport on `fabric`. With dlcp the messages of background traffic go over ns-3's DCTCP, in the middle band of
/// the same ports; the others carry them like any message.
[[nodiscard]] std::unique_ptr<Transport> make_transport(Protocol protocol, Fabric& fabric, const DlcpOptions& dlcp,
                                                        const TcpOptions& tcp);

// The protocols one by one.
/// ns-3's TCP: with DCTCP's congestion control, or CUBIC. One connection for each pair of hosts, and another one for
/// background traffic, carries messages in order. `band` is that of all packets.
[[nodiscard]] std::unique_ptr<Transport> make_tcp(Fabric& fabric, const TcpOptions& options, bool dctcp, int band);
[[nodiscard]] std::unique_ptr<Transport> make_dlcp(Fabric& fabric, const DlcpOptions& options);
[[nodiscard]] std::unique_ptr<Transport> make_pfabric(Fabric& fabric);

}  // namespace gradtool::netsim
