#include "netsim/transport.hpp"

#include "netsim/switch_queue.hpp"

namespace gradtool::netsim {
namespace {

/// Gradients over DLCP, and other people's traffic over DCTCP beside it.
class Mixed final : public Transport {
 public:
  Mixed(std::unique_ptr<Transport> gradients, std::unique_ptr<Transport> background)
      : gradients_{std::move(gradients)}, background_{std::move(background)} {}
  void send(const Message& message, Done done) override {
    (message.background ? background_ : gradients_)->send(message, std::move(done));
  }
  void prepare(int from, int to) override { gradients_->prepare(from, to); }

 private:
  std::unique_ptr<Transport> gradients_, background_;
};

}  // namespace

PortKind ports_of(Protocol protocol) {
  switch (protocol) {
    case Protocol::dlcp:
      return PortKind::two_thresholds;
    case Protocol::dctcp:
      return PortKind::red;
    case Protocol::tcp:
      return PortKind::fifo;
    case Protocol::pfabric:
      return PortKind::remaining;
  }
  return PortKind::fifo;
}

Routing routing_of(Protocol protocol) {
  return protocol == Protocol::dlcp || protocol == Protocol::pfabric ? Routing::spray : Routing::ecmp;
}

std::unique_ptr<Transport> make_transport(Protocol protocol, Fabric& fabric, const DlcpOptions& dlcp,
                                          const TcpOptions& tcp) {
  switch (protocol) {
    case Protocol::dlcp:
      return std::make_unique<Mixed>(make_dlcp(fabric, dlcp), make_tcp(fabric, tcp, true, kMiddleBand));
    case Protocol::dctcp:
    case Protocol::tcp:
      return make_tcp(fabric, tcp, protocol == Protocol::dctcp, kMiddleBand);
    case Protocol::pfabric:
      return make_pfabric(fabric);
  }
  return nullptr;
}

}  // namespace gradtool::netsim
