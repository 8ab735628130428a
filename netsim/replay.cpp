#include "netsim/replay.hpp"

#include <ns3/simulator.h>

#include <algorithm>

#include "lib/core/throw_error.hpp"
#include "netsim/background.hpp"

namespace gradtool::netsim {
namespace {

using ns3::Seconds;
using ns3::Simulator;

}  // namespace

ReplayResult replay(const Setting& setting, const PayloadLog& log, const ReplayOptions& options,
                    const Network& network) {
  Fabric fabric{setting.fabric, ports_of(setting.protocol), setting.routing, setting.seed};
  if (log.ranks > fabric.hosts()) {
    throw_error(Fault::usage, "the log has {} ranks and the fabric {} hosts; enlarge --leaves or --hosts-per-leaf",
                log.ranks, fabric.hosts());
  }
  const auto transport = make_transport(setting.protocol, fabric, setting.dlcp, setting.tcp);
  const std::size_t steps = options.steps == 0 ? log.steps.size() : std::min(options.steps, log.steps.size());
  Schedule schedule{log.ranks};
  std::vector<std::size_t> ends;
  ends.reserve(steps);
  for (std::size_t s = 0; s < steps; ++s) {
    int unit = 0;
    for (const auto& logged : log.steps[s].units) {
      for (const auto& call : logged.calls) append_call(schedule, call, options.scale, unit);
      ++unit;
    }
    ends.push_back(schedule.length());
  }
  std::vector<int> hosts;
  hosts.reserve(static_cast<std::size_t>(log.ranks));
  for (int r = 0; r < log.ranks; ++r) hosts.push_back(host_of_rank(setting.fabric, r));
  double wire_bytes = 0.0;
  for (int r = 0; r < log.ranks; ++r) {
    wire_bytes += static_cast<double>(schedule.bytes_of(r));
    for (const auto& step : schedule.steps()[static_cast<std::size_t>(r)]) {
      if (step.to >= 0)
        transport->prepare(hosts[static_cast<std::size_t>(r)], hosts[static_cast<std::size_t>(step.to)]);
    }
  }

  ReplayResult result{
      .seconds = {}, .modelled = {}, .wire_bytes = wire_bytes / static_cast<double>(steps) / log.ranks, .counts = {}};
  ns3::Time begun;
  std::size_t step = 0;
  int finished = 0;
  std::optional<ExchangeRun> run;
  const auto begin = [&] {
    begun = Simulator::Now();
    finished = 0;
    for (int r = 0; r < log.ranks; ++r) run->release(r, ends[step]);
  };
  run.emplace(
      schedule, hosts, *transport, [](int, const Exchange&) { return Message{.layer = kLayerClasses / 2}; },
      [](const Message&, const Delivery&) {},
      [&](int, std::size_t at) {
        if (at + 1 != ends[step] || ++finished < log.ranks) return;
        result.seconds.push_back((Simulator::Now() - begun).GetSeconds());
        if (++step == steps) {
          Simulator::Stop();
        } else {
          Simulator::ScheduleNow(begin);
        }
      });
  std::optional<Background> background;
  if (setting.background > 0.0) {
    background.emplace(fabric, *transport, setting.background, [](const Message&, const Delivery&) {});
    Simulator::Schedule(Seconds(kBackgroundStart), [&] { background->start(); });
  }
  Simulator::Schedule(Seconds(kStart), begin);
  Simulator::Stop(Seconds(kLongest));
  Simulator::Run();
  if (step < steps) {
    throw_error(Fault::check, "{} over {} had not ended step {} after {} simulated seconds", log.codec,
                name_of(setting.protocol), step, kLongest);
  }
  result.counts = fabric.counts();
  result.modelled.reserve(steps);
  for (std::size_t s = 0; s < steps; ++s)
    result.modelled.push_back(modelled_seconds(log.steps[s], options.scale, network, log.ranks));
  return result;
}

Network probe_fabric(const Setting& setting) {
  Fabric fabric{setting.fabric, ports_of(setting.protocol), setting.routing, setting.seed};
  const auto transport = make_transport(setting.protocol, fabric, setting.dlcp, setting.tcp);
  const int from = 0, to = host_of_rank(setting.fabric, 1);
  transport->prepare(from, to);
  constexpr std::uint64_t kSmall = 1000, kLarge = 4'000'000;
  const std::vector<std::uint64_t> sizes{kLarge, kLarge, kSmall, kLarge};  // the first two open the window
  std::vector<double> seconds;
  std::function<void()> next = [&] {
    transport->send({.from = from, .to = to, .bytes = sizes[seconds.size()], .layer = kLayerClasses / 2},
                    [&](const Delivery& delivery) {
                      seconds.push_back(delivery.seconds);
                      if (seconds.size() == sizes.size()) return Simulator::Stop();
                      Simulator::Schedule(Seconds(1e-3), next);
                    });
  };
  Simulator::Schedule(Seconds(kStart), next);
  Simulator::Stop(Seconds(kLongest));
  Simulator::Run();
  expects(seconds.size() == sizes.size(), "a probe of the idle fabric ends");
  const double beta = static_cast<double>(kLarge - kSmall) / (seconds[3] - seconds[2]);
  Network network;
  network.name = "fabric";
  network.link = {.alpha = seconds[2] - static_cast<double>(kSmall) / beta, .beta = beta};
  return network;
}

}  // namespace gradtool::netsim
