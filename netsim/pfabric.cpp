// pFabric's rate control (Alizadeh et al. 2013, section 4.2): windows of the bandwidth-delay product, and timeouts.
#include <ns3/simulator.h>

#include <algorithm>
#include <cmath>

#include "lib/core/error.hpp"
#include "netsim/datagrams.hpp"
#include "netsim/switch_queue.hpp"
#include "netsim/transport.hpp"

namespace gradtool::netsim {
namespace {

using ns3::Simulator;
using Kind = DatagramHeader::Kind;

constexpr double kTimeoutRoundTrips = 3.0;
constexpr int kPatience = 5;  // timeouts in a row, after which only probes are sent

enum class State : std::uint8_t { waiting, flying, acknowledged };

struct PfabricFlow {
  Message message;
  Transport::Done done;
  ns3::Time start;
  std::uint32_t id = 0;
  std::uint32_t packets = 0;
  std::vector<State> states;
  std::uint32_t first_waiting = 0;  ///< no packet before it waits
  std::uint32_t flying = 0;
  std::uint32_t sent = 0;  ///< packets that were sent at least once
  std::uint64_t remaining = 0;
  double window = 0.0, threshold = 0.0;  ///< packets
  int timeouts = 0;                      ///< in a row
  ns3::EventId timer;
  std::uint64_t repeated = 0;
  std::vector<bool> arrived;
  std::uint64_t missing = 0;

  [[nodiscard]] bool may_send() {
    if (timeouts >= kPatience || static_cast<double>(flying) + 1.0 > std::max(1.0, window)) return false;
    while (first_waiting < packets && states[first_waiting] != State::waiting) ++first_waiting;
    return first_waiting < packets;
  }
};

class PFabric final : public Transport {
 public:
  explicit PFabric(Fabric& fabric)
      : fabric_{fabric},
        payload_{static_cast<std::uint32_t>(fabric.options().payload)},
        window_{std::ceil(fabric.options().rate * fabric.round_trip() / (8.0 * (payload_ + kPacketOverhead)))},
        datagrams_{fabric, [this](int /*from*/, int /*to*/, const DatagramHeader& header, const ns3::Packet&,
                                  bool /*marked*/) { receive(header); }},
        hosts_(static_cast<std::size_t>(fabric.hosts())) {
    for (auto& host : hosts_)
      host.pacer = std::make_unique<LinkPacer>(fabric, [this, &host] { return send_one(host); });
  }

  void send(const Message& message, Done done) override {
    auto made = std::make_unique<PfabricFlow>();
    PfabricFlow& flow = *made;
    flow.id = static_cast<std::uint32_t>(flows_.size());
    flows_.push_back(std::move(made));
    flow.message = message;
    flow.done = std::move(done);
    flow.start = Simulator::Now();
    flow.packets = static_cast<std::uint32_t>((message.bytes + payload_ - 1) / payload_);
    flow.states.resize(flow.packets);
    flow.arrived.resize(flow.packets);
    flow.remaining = flow.missing = message.bytes;
    flow.window = flow.threshold = window_;
    Host& host = hosts_[static_cast<std::size_t>(message.from)];
    host.flows.push_back(&flow);
    host.pacer->wake();
  }

 private:
  struct Host {
    std::unique_ptr<LinkPacer> pacer;
    std::vector<PfabricFlow*> flows;  ///< not wholly acknowledged
  };

  [[nodiscard]] std::uint32_t bytes(const PfabricFlow& flow, std::uint32_t packet) const {
    return packet + 1 < flow.packets
               ? payload_
               : static_cast<std::uint32_t>(flow.message.bytes - std::uint64_t{packet} * payload_);
  }

  /// The flow with the fewest remaining bytes goes first, as in the ports.
  LinkPacer::Turn send_one(Host& host) {
    PfabricFlow* best = nullptr;
    for (PfabricFlow* flow : host.flows) {
      if ((best == nullptr || flow->remaining < best->remaining) && flow->may_send()) best = flow;
    }
    if (best == nullptr) return {};
    const std::uint32_t packet = best->first_waiting;
    const std::uint32_t data = bytes(*best, packet);
    best->states[packet] = State::flying;
    if (packet < best->sent)
      best->repeated += data;
    else
      best->sent = packet + 1;
    if (best->flying++ == 0) restart_timer(*best);
    post(*best, Kind::data, packet, data, best->remaining);
    return {.bytes = static_cast<double>(data) + kPacketOverhead};
  }

  void post(const PfabricFlow& flow, Kind kind, std::uint32_t packet, std::uint32_t data, std::uint64_t remaining) {
    DatagramHeader header;
    header.port = static_cast<std::uint16_t>(flow.id);
    header.kind = kind;
    header.flow = flow.id;
    header.packet = packet;
    auto content = ns3::Create<ns3::Packet>(data);
    content->AddPacketTag(RemainingTag{flow.id, remaining});
    const bool back = kind == Kind::acknowledgement;
    datagrams_.send(back ? flow.message.to : flow.message.from, back ? flow.message.from : flow.message.to, header,
                    content, 0);
  }

  void receive(const DatagramHeader& header) {
    PfabricFlow& flow = *flows_[header.flow];
    if (header.kind == Kind::acknowledgement) return take_acknowledgement(flow, header.packet);
    const bool probe = header.kind == Kind::probe;
    post(flow, Kind::acknowledgement, probe ? flow.packets : header.packet, 0, 0);
    if (probe || flow.arrived[header.packet]) return;
    flow.arrived[header.packet] = true;
    flow.missing -= bytes(flow, header.packet);
    if (flow.missing > 0) return;
    flow.done({.seconds = (Simulator::Now() - flow.start).GetSeconds(),
               .bytes = flow.message.bytes,
               .important = flow.message.bytes,
               .important_sent = flow.message.bytes,
               .repeated = flow.repeated});
  }

  /// `packet` is beyond the last one when a probe is acknowledged.
  void take_acknowledgement(PfabricFlow& flow, std::uint32_t packet) {
    if (flow.remaining == 0) return;
    flow.timeouts = 0;
    if (packet < flow.packets && flow.states[packet] != State::acknowledged) {
      flow.flying -= flow.states[packet] == State::flying ? 1 : 0;
      flow.states[packet] = State::acknowledged;
      flow.remaining -= bytes(flow, packet);
      flow.window = std::min(window_, flow.window + (flow.window < flow.threshold ? 1.0 : 1.0 / flow.window));
    }
    Host& host = hosts_[static_cast<std::size_t>(flow.message.from)];
    flow.timer.Cancel();
    if (flow.remaining == 0) {
      std::erase(host.flows, &flow);
      flow.states = {};
    } else if (flow.flying > 0) {
      restart_timer(flow);
    }
    host.pacer->wake();
  }

  void restart_timer(PfabricFlow& flow) {
    flow.timer.Cancel();
    flow.timer = Simulator::Schedule(ns3::Seconds(kTimeoutRoundTrips * fabric_.round_trip()), [this, &flow] {
      ++flow.timeouts;
      flow.threshold = std::max(1.0, flow.window / 2.0);
      flow.window = 1.0;
      for (auto& state : flow.states) state = state == State::flying ? State::waiting : state;
      flow.first_waiting = 0;
      flow.flying = 0;
      if (flow.timeouts >= kPatience) {
        post(flow, Kind::probe, 0, 0, flow.remaining);
        restart_timer(flow);
      } else {
        hosts_[static_cast<std::size_t>(flow.message.from)].pacer->wake();
      }
    });
  }

  Fabric& fabric_;
  std::uint32_t payload_;
  double window_;  ///< packets of a bandwidth-delay product
  Datagrams datagrams_;
  std::vector<Host> hosts_;
  std::vector<std::unique_ptr<PfabricFlow>> flows_;
};

}  // namespace

std::unique_ptr<Transport> make_pfabric(Fabric& fabric) {
  return std::make_unique<PFabric>(fabric);
}

}  // namespace gradtool::netsim
