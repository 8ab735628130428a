// DLCP (Wang et al. 2020, arXiv 2008.08445): packets are sent once, and again only while more than the bound is
// missing.
#include <ns3/simulator.h>

#include <algorithm>
#include <map>
#include <set>

#include "lib/core/error.hpp"
#include "netsim/datagrams.hpp"
#include "netsim/switch_queue.hpp"
#include "netsim/transport.hpp"

namespace gradtool::netsim {
namespace {

using ns3::Simulator;
using Kind = DatagramHeader::Kind;

constexpr int kControlBand = 0;

/// A message on its way. Sender and receiver know its size and bound, which are agreed before training begins.
struct Flow {
  Message message;
  Transport::Done done;
  ns3::Time start;
  std::uint32_t id = 0;
  std::uint32_t packets = 0;
  std::uint64_t important_bytes = 0;

  // The sender's.
  std::uint32_t next = 0;            ///< first packet that was never sent
  std::vector<std::uint32_t> again;  ///< packets to be sent again, the last one first
  std::uint32_t probes = 0;
  ns3::EventId unanswered;
  bool stopped = false;  ///< STOP has come: nothing is left to do
  std::uint64_t repeated = 0;

  // The receiver's.
  std::vector<bool> arrived;
  std::uint64_t got = 0, got_important = 0;
  bool delivered = false;

  [[nodiscard]] bool sends() const { return !stopped && (next < packets || !again.empty()); }
  [[nodiscard]] std::uint64_t needed() const {
    return message.bytes - static_cast<std::uint64_t>(message.bound * static_cast<double>(message.bytes));
  }
};

/// From one host to another: what is to be sent, and how fast. The other host's reports drive the rate.
struct Connection {
  int from = 0, to = 0;
  std::set<std::pair<int, std::uint32_t>> waiting;  ///< layer class and number of the flows that have packets to send
  double rate = 0.0;                                ///< bit/s
  double alpha = 1.0;                               ///< moving share of marked packets
  ns3::Time next;                                   ///< when the rate lets the next packet go
  std::optional<ns3::Time> unheard;                 ///< when the first packet after the last report was sent
  // The receiver's.
  std::uint32_t received = 0, marked = 0;  ///< since the last report
  bool reporting = false;
};

struct Host {
  std::unique_ptr<LinkPacer> pacer;
  std::vector<Connection*> connections;
};

class Dlcp final : public Transport {
 public:
  Dlcp(Fabric& fabric, const DlcpOptions& options)
      : fabric_{fabric},
        options_{options},
        payload_{static_cast<std::uint32_t>(fabric.options().payload)},
        round_trip_{fabric.round_trip()},
        datagrams_{fabric, [this](int from, int to, const DatagramHeader& header, const ns3::Packet& packet,
                                  bool marked) { receive(from, to, header, packet, marked); }},
        hosts_(static_cast<std::size_t>(fabric.hosts())) {
    for (auto& host : hosts_)
      host.pacer = std::make_unique<LinkPacer>(fabric, [this, &host] { return send_one(host); });
  }

  void send(const Message& message, Done done) override {
    auto made = std::make_unique<Flow>();
    Flow& flow = *made;
    flow.id = static_cast<std::uint32_t>(flows_.size());
    flows_.push_back(std::move(made));
    flow.message = message;
    flow.done = std::move(done);
    flow.start = Simulator::Now();
    flow.packets = static_cast<std::uint32_t>((message.bytes + payload_ - 1) / payload_);
    flow.arrived.resize(flow.packets);
    for (std::uint32_t i = 0; i < flow.packets; ++i) flow.important_bytes += important(flow, i) ? bytes(flow, i) : 0;
    resume(flow);
  }

 private:
  [[nodiscard]] std::uint32_t bytes(const Flow& flow, std::uint32_t packet) const {
    return packet + 1 < flow.packets
               ? payload_
               : static_cast<std::uint32_t>(flow.message.bytes - std::uint64_t{packet} * payload_);
  }
  [[nodiscard]] bool important(const Flow& flow, std::uint32_t packet) const {
    return flow.message.importance.of(packet, flow.packets);
  }
  [[nodiscard]] int band(const Flow& flow) const { return options_.priorities ? 1 + flow.message.layer : kMiddleBand; }
  [[nodiscard]] ns3::Time round_trips(double count) const { return ns3::Seconds(count * round_trip_); }

  Connection& connection(int from, int to) {
    auto& made = connections_[{from, to}];
    if (made == nullptr) {
      made = std::make_unique<Connection>();
      made->from = from;
      made->to = to;
      made->rate = options_.start * fabric_.options().rate;
      hosts_[static_cast<std::size_t>(from)].connections.push_back(made.get());
    }
    return *made;
  }

  /// The flow has packets to send.
  void resume(Flow& flow) {
    Connection& pair = connection(flow.message.from, flow.message.to);
    pair.waiting.insert({flow.message.layer, flow.id});
    hosts_[static_cast<std::size_t>(flow.message.from)].pacer->wake();
  }

  void retire(const Flow& flow) {
    connection(flow.message.from, flow.message.to).waiting.erase({flow.message.layer, flow.id});
  }

  /// A packet of the oldest message of the most urgent layer, among the connections whose rate allows one. Messages go
  /// one after the other, so that the first receiver can go on while the others still wait.
  LinkPacer::Turn send_one(Host& host) {
    const ns3::Time now = Simulator::Now();
    Connection* best = nullptr;
    std::optional<ns3::Time> next;
    for (Connection* pair : host.connections) {
      if (pair->waiting.empty()) continue;
      if (pair->next > now) {
        if (!next || pair->next < *next) next = pair->next;
      } else if (best == nullptr || *pair->waiting.begin() < *best->waiting.begin()) {
        best = pair;
      }
    }
    if (best == nullptr) return {.next = next};
    return {.bytes = send_packet(*best)};
  }

  double send_packet(Connection& pair) {
    const ns3::Time now = Simulator::Now();
    // Whoever hears nothing while it sends takes that for a sign that nothing arrives.
    if (!pair.unheard) pair.unheard = now;
    if (now - *pair.unheard > round_trips(4.0 * options_.feedback)) {
      pair.unheard = now;
      change_rate(pair, 1.0, 1.0);
    }
    Flow& flow = *flows_[pair.waiting.begin()->second];
    const bool first_time = flow.next < flow.packets;
    std::uint32_t packet = flow.next;
    if (first_time) {
      ++flow.next;
    } else {
      packet = flow.again.back();
      flow.again.pop_back();
      flow.repeated += bytes(flow, packet);
    }
    const std::uint32_t data = bytes(flow, packet);
    // A packet that is sent again is needed for the bound, so it is protected.
    const bool droppable = options_.marking && first_time && !important(flow, packet);
    post(flow, Kind::data, packet, ns3::Create<ns3::Packet>(data), band(flow), !droppable);
    const double size = data + kPacketOverhead;
    pair.next = now + ns3::Seconds(size * 8.0 / pair.rate);
    if (!flow.sends()) {
      retire(flow);
      probe(flow);
    }
    return size;
  }

  void post(const Flow& flow, Kind kind, std::uint32_t packet, ns3::Ptr<ns3::Packet> content, int priority,
            bool ecn_capable) {
    DatagramHeader header;
    header.port = static_cast<std::uint16_t>(flow.id);
    header.kind = kind;
    header.flow = flow.id;
    header.packet = packet;
    header.number = flow.probes;
    const bool back = kind == Kind::bitmap || kind == Kind::stop;
    datagrams_.send(back ? flow.message.to : flow.message.from, back ? flow.message.from : flow.message.to, header,
                    content, tos_of(priority, ecn_capable));
  }

  /// Asks what has arrived. The probe is in the band of the data, so that it does not overtake them; without an answer
  /// it is sent again, after twice the time each time.
  void probe(Flow& flow, double patience = 1.0) {
    ++flow.probes;
    post(flow, Kind::probe, 0, ns3::Create<ns3::Packet>(), band(flow), true);
    flow.unanswered = Simulator::Schedule(round_trips(options_.probe * patience), [this, &flow, patience] {
      if (!flow.stopped) probe(flow, 2.0 * patience);
    });
  }

  void receive(int from, int to, const DatagramHeader& header, const ns3::Packet& packet, bool marked) {
    if (header.kind == Kind::feedback) return take_report(connection(to, from), header);
    Flow& flow = *flows_[header.flow];
    switch (header.kind) {
      case Kind::data:
        count(connection(from, to), marked);
        return take_data(flow, header.packet);
      case Kind::probe:
        return flow.delivered ? stop(flow) : send_bitmap(flow, header.number);
      case Kind::bitmap:
        return take_bitmap(flow, header, packet);
      case Kind::stop:
        return take_stop(flow);
      case Kind::acknowledgement:
      case Kind::feedback:
        expects(false, "DLCP acknowledges no packets");
    }
  }

  void take_data(Flow& flow, std::uint32_t packet) {
    if (flow.delivered || flow.arrived[packet]) return;
    flow.arrived[packet] = true;
    flow.got += bytes(flow, packet);
    flow.got_important += important(flow, packet) ? bytes(flow, packet) : 0;
    if (flow.got < flow.needed()) return;
    flow.delivered = true;
    stop(flow);
    flow.done({.seconds = (Simulator::Now() - flow.start).GetSeconds(),
               .bytes = flow.got,
               .important = flow.got_important,
               .important_sent = flow.important_bytes,
               .repeated = flow.repeated});
  }

  void stop(Flow& flow) { post(flow, Kind::stop, 0, ns3::Create<ns3::Packet>(), kControlBand, true); }

  void take_stop(Flow& flow) {
    flow.stopped = true;
    flow.unanswered.Cancel();
    retire(flow);
    flow.again = {};
    flow.arrived = {};
  }

  /// The bitmap takes as many packets as its bits need.
  void send_bitmap(Flow& flow, std::uint32_t number) {
    const std::uint32_t bits = 8 * payload_;
    for (std::uint32_t first = 0; first < flow.packets; first += bits) {
      const std::uint32_t last = std::min(flow.packets, first + bits);
      std::vector<std::uint8_t> map((last - first + 7) / 8);
      for (std::uint32_t i = first; i < last; ++i) {
        if (flow.arrived[i]) map[(i - first) / 8] |= static_cast<std::uint8_t>(1U << (i - first) % 8);
      }
      DatagramHeader header;
      header.port = static_cast<std::uint16_t>(flow.id);
      header.kind = Kind::bitmap;
      header.flow = flow.id;
      header.packet = first;
      header.number = number;
      datagrams_.send(flow.message.to, flow.message.from, header,
                      ns3::Create<ns3::Packet>(map.data(), static_cast<std::uint32_t>(map.size())),
                      tos_of(kControlBand, true));
    }
  }

  void take_bitmap(Flow& flow, const DatagramHeader& header, const ns3::Packet& packet) {
    if (flow.stopped || header.number != flow.probes) return;  // of an earlier probe
    flow.unanswered.Cancel();
    std::vector<std::uint8_t> map(packet.GetSize());
    packet.CopyData(map.data(), packet.GetSize());
    const std::uint32_t last = std::min(flow.packets, header.packet + 8 * static_cast<std::uint32_t>(map.size()));
    for (std::uint32_t i = last; i > header.packet; --i) {
      const std::uint32_t bit = i - 1 - header.packet;
      if ((map[bit / 8] >> bit % 8 & 1U) == 0) flow.again.push_back(i - 1);
    }
    if (flow.again.empty()) {
      probe(flow);  // this part is complete and those of other parts were lost
    } else {
      resume(flow);
    }
  }

  void count(Connection& pair, bool marked) {
    ++pair.received;
    pair.marked += marked ? 1 : 0;
    if (pair.reporting) return;
    pair.reporting = true;
    Simulator::Schedule(round_trips(options_.feedback), [this, &pair] {
      DatagramHeader header;
      header.kind = Kind::feedback;
      header.number = pair.received;
      header.marked = pair.marked;
      datagrams_.send(pair.to, pair.from, header, ns3::Create<ns3::Packet>(), tos_of(kControlBand, true));
      pair.received = pair.marked = 0;
      pair.reporting = false;
    });
  }

  void take_report(Connection& pair, const DatagramHeader& header) {
    pair.unheard.reset();
    change_rate(pair, static_cast<double>(header.marked) / header.number, options_.gain);
    hosts_[static_cast<std::size_t>(pair.from)].pacer->wake();
  }

  /// DCTCP's rule (Alizadeh et al. 2010) for a rate: a share of marked packets reduces it in proportion to the moving
  /// share. Without marks it grows in each report by the same amount, which is less than DCTCP's packet a round trip:
  /// of many senders to one host each has to find a rate far below that.
  void change_rate(Connection& pair, double share, double gain) {
    const double line = fabric_.options().rate;
    constexpr double kSlowest = 1e-3;  // of the line's rate
    pair.alpha += gain * (share - pair.alpha);
    if (share > 0.0) {
      pair.rate *= 1.0 - 0.5 * pair.alpha;
    } else {
      pair.rate += options_.increase * line;
    }
    pair.rate = std::clamp(pair.rate, kSlowest * line, line);
  }

  Fabric& fabric_;
  DlcpOptions options_;
  std::uint32_t payload_;
  double round_trip_;
  Datagrams datagrams_;
  std::vector<Host> hosts_;
  std::map<std::pair<int, int>, std::unique_ptr<Connection>> connections_;
  std::vector<std::unique_ptr<Flow>> flows_;
};

}  // namespace

std::unique_ptr<Transport> make_dlcp(Fabric& fabric, const DlcpOptions& options) {
  return std::make_unique<Dlcp>(fabric, options);
}

}  // namespace gradtool::netsim
