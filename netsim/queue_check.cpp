#include "netsim/queue_check.hpp"

#include <ns3/random-variable-stream.h>
#include <ns3/simulator.h>

#include <cmath>
#include <functional>
#include <vector>

#include "lib/model/statistics.hpp"
#include "netsim/datagrams.hpp"

namespace gradtool::netsim {

QueueCheck check_queue(const FabricOptions& options, double load, std::uint64_t packets, std::uint64_t seed) {
  using ns3::Simulator;
  constexpr std::uint64_t kBatches = 30;
  FabricOptions two = options;
  two.leaves = two.spines = 1;
  two.hosts_per_leaf = 2;
  Fabric fabric{two, PortKind::fifo, Routing::ecmp, seed};
  const auto payload = static_cast<std::uint32_t>(options.payload);
  const double alone = fabric.one_way(payload, false);
  const std::uint64_t skipped = packets / 10;
  std::vector<double> sums(kBatches);
  std::vector<std::uint64_t> counts(kBatches);
  std::vector<ns3::Time> sent(packets);
  Datagrams datagrams{fabric, [&](int, int, const DatagramHeader& header, const ns3::Packet&, bool) {
                        if (header.flow < skipped) return;
                        // The link behind this one has the same rate, so nothing waits there.
                        const double wait = (Simulator::Now() - sent[header.flow]).GetSeconds() - alone;
                        const std::uint64_t batch = (header.flow - skipped) * kBatches / (packets - skipped);
                        sums[batch] += wait;
                        ++counts[batch];
                      }};
  auto random = ns3::CreateObject<ns3::UniformRandomVariable>();
  random->SetStream(kArrivalStream);
  const double service = fabric.serialisation(payload + kPacketOverhead);
  std::uint32_t next = 0;
  std::function<void()> arrive = [&] {
    DatagramHeader header;
    header.flow = next;
    sent[next] = Simulator::Now();
    datagrams.send(0, 1, header, ns3::Create<ns3::Packet>(payload), 0);
    if (++next == packets) return;
    Simulator::Schedule(ns3::Seconds(-service / load * std::log(1.0 - random->GetValue(0.0, 1.0))), arrive);
  };
  Simulator::Schedule(ns3::Seconds(0.0), arrive);
  Simulator::Run();

  QueueCheck check{.load = load, .theory = load / (2.0 * (1.0 - load)) * service};
  std::vector<double> means;
  means.reserve(kBatches);
  for (std::uint64_t b = 0; b < kBatches; ++b) {
    check.packets += counts[b];
    check.wait += sums[b];
    means.push_back(sums[b] / static_cast<double>(counts[b]));
  }
  check.wait /= static_cast<double>(check.packets);
  check.half_width = relative_error_of_mean(means) * t_quantile(static_cast<int>(kBatches) - 1) * check.wait;
  return check;
}

}  // namespace gradtool::netsim
