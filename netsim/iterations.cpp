#include "netsim/iterations.hpp"

#include <ns3/simulator.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "lib/core/throw_error.hpp"
#include "lib/model/cost_model.hpp"
#include "netsim/background.hpp"
#include "netsim/exchanges.hpp"

namespace gradtool::netsim {
namespace {

using ns3::Seconds;
using ns3::Simulator;

/// Workers that compute, and what their units' communication is left to.
class Training {
 public:
  /// `launch(worker, unit)`: the gradient of that unit is there. Whoever communicates calls arrived().
  using Launch = std::function<void(int worker, int unit)>;
  Training(const Workload& work, const IterationOptions& options, Launch launch)
      : work_{work},
        options_{options},
        launch_{std::move(launch)},
        workers_(static_cast<std::size_t>(options.workers)) {
    for (auto& worker : workers_) worker.have.resize(work.units.size());
  }

  void start() {
    begun_ = Simulator::Now();
    for (int w = 0; w < options_.workers; ++w) backward(w);
  }

  /// The result of `unit` is at `worker`.
  void arrived(int worker, int unit) {
    workers_[static_cast<std::size_t>(worker)].have[static_cast<std::size_t>(unit)] = true;
    forward(worker);
  }

  [[nodiscard]] const std::vector<double>& seconds() const { return seconds_; }
  [[nodiscard]] int iteration(int worker) const { return workers_[static_cast<std::size_t>(worker)].iteration; }

 private:
  struct Worker {
    int iteration = 0;
    std::size_t next = 0;  ///< unit of the forward pass
    bool busy = true;      ///< with the backward pass or with a unit of the forward pass
    std::vector<bool> have;
  };

  void backward(int worker) {
    Worker& self = workers_[static_cast<std::size_t>(worker)];
    self.next = 0;
    self.busy = true;
    std::fill(self.have.begin(), self.have.end(), false);
    const double pass = kBackwardShare * options_.compute;
    for (std::size_t u = work_.units.size(); u-- > 0;) {
      Simulator::Schedule(Seconds(work_.units[u].ready * pass),
                          [this, worker, u] { launch_(worker, static_cast<int>(u)); });
    }
    Simulator::Schedule(Seconds(pass), [this, worker] {
      workers_[static_cast<std::size_t>(worker)].busy = false;
      forward(worker);
    });
  }

  void forward(int worker) {
    Worker& self = workers_[static_cast<std::size_t>(worker)];
    if (self.busy || self.next == work_.units.size() || !self.have[self.next]) return;
    self.busy = true;
    const double pass = (1.0 - kBackwardShare) * options_.compute * work_.units[self.next].share;
    Simulator::Schedule(Seconds(pass), [this, worker] {
      Worker& here = workers_[static_cast<std::size_t>(worker)];
      here.busy = false;
      if (++here.next == work_.units.size()) {
        finish(worker);
      } else {
        forward(worker);
      }
    });
  }

  void finish(int worker) {
    const auto iteration = static_cast<std::size_t>(++workers_[static_cast<std::size_t>(worker)].iteration);
    if (finished_.size() < iteration) finished_.resize(iteration);
    if (++finished_[iteration - 1] == options_.workers) {
      seconds_.push_back((Simulator::Now() - begun_).GetSeconds());
      begun_ = Simulator::Now();
      if (static_cast<int>(iteration) == options_.iterations) return Simulator::Stop();
    }
    if (static_cast<int>(iteration) < options_.iterations) backward(worker);
  }

  const Workload& work_;
  const IterationOptions& options_;
  Launch launch_;
  std::vector<Worker> workers_;
  std::vector<int> finished_;  ///< workers that have ended each iteration
  std::vector<double> seconds_;
  ns3::Time begun_;
};

/// Message of `unit` with the packets of captured worker `worker` modulo their number.
Message describe(const WorkUnit& unit, int worker, double bound) {
  return {.bytes = unit.bytes,
          .layer = unit.layer,
          .bound = bound,
          .importance = {.flags = &unit.important[static_cast<std::size_t>(worker) % unit.important.size()]}};
}

/// Units go to the server that has the fewest bytes so far, the largest first.
std::vector<int> servers_of_units(const Workload& work, int servers) {
  std::vector<std::size_t> order(work.units.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return work.units[a].bytes > work.units[b].bytes; });
  std::vector<std::uint64_t> load(static_cast<std::size_t>(servers));
  std::vector<int> chosen(work.units.size());
  for (const std::size_t unit : order) {
    const auto least = std::min_element(load.begin(), load.end());
    *least += work.units[unit].bytes;
    chosen[unit] = static_cast<int>(least - load.begin());
  }
  return chosen;
}

class Iterations {
 public:
  Iterations(const Setting& setting, const Workload& work, const IterationOptions& options)
      : setting_{setting},
        work_{work},
        options_{options},
        fabric_{setting.fabric, ports_of(setting.protocol), setting.routing, setting.seed},
        transport_{make_transport(setting.protocol, fabric_, setting.dlcp, setting.tcp)},
        completions_{fabric_},
        training_{work, options, [this](int worker, int unit) {
                    options_.pattern == Pattern::server ? push(worker, unit) : ready(worker, unit);
                  }} {
    if (options.pattern == Pattern::server)
      prepare_server();
    else
      prepare_ring();
    if (setting.background > 0.0) {
      background_.emplace(fabric_, *transport_, setting.background,
                          [this](const Message& message, const Delivery& delivery) {
                            completions_.add("background", message, delivery);
                          });
      Simulator::Schedule(Seconds(kBackgroundStart), [this] { background_->start(); });
    }
  }

  IterationResult run() {
    Simulator::Schedule(Seconds(kStart), [this] { training_.start(); });
    Simulator::Stop(Seconds(kLongest));
    Simulator::Run();
    if (static_cast<int>(training_.seconds().size()) < options_.iterations) {
      throw_error(Fault::check, "{} over {} had not ended {} of {} iterations after {} simulated seconds",
                  name_of(options_.pattern), name_of(setting_.protocol),
                  options_.iterations - static_cast<int>(training_.seconds().size()), options_.iterations, kLongest);
    }
    return {.seconds = training_.seconds(),
            .least_seconds = least_seconds(),
            .least_delivered = completions_.least_delivered(),
            .counts = fabric_.counts()};
  }

  [[nodiscard]] const Completions& completions() const { return completions_; }

 private:
  // The parameter server.
  [[nodiscard]] int worker_host(int worker) const {
    return host_of_rank(setting_.fabric, options_.servers * (options_.pattern == Pattern::server ? 1 : 0) + worker);
  }
  [[nodiscard]] int server_host(int unit) const {
    return host_of_rank(setting_.fabric, servers_[static_cast<std::size_t>(unit)]);
  }

  void prepare_server() {
    servers_ = servers_of_units(work_, options_.servers);
    pushed_.resize(work_.units.size());
    for (int w = 0; w < options_.workers; ++w) {
      for (std::size_t u = 0; u < work_.units.size(); ++u) {
        transport_->prepare(worker_host(w), server_host(static_cast<int>(u)));
        transport_->prepare(server_host(static_cast<int>(u)), worker_host(w));
      }
    }
  }

  void push(int worker, int unit) {
    Message message = describe(work_.units[static_cast<std::size_t>(unit)], worker, bound(options_.bound));
    message.from = worker_host(worker);
    message.to = server_host(unit);
    transport_->send(message, [this, message, unit](const Delivery& delivery) {
      completions_.add("push", message, delivery);
      int& count = pushed_[static_cast<std::size_t>(unit)];
      if (++count < options_.workers) return;
      count = 0;
      for (int w = 0; w < options_.workers; ++w) pull(w, unit);
    });
  }

  void pull(int worker, int unit) {
    Message message = describe(work_.units[static_cast<std::size_t>(unit)], 0, bound(options_.pull_bound));
    message.from = server_host(unit);
    message.to = worker_host(worker);
    transport_->send(message, [this, message, worker, unit](const Delivery& delivery) {
      completions_.add("pull", message, delivery);
      training_.arrived(worker, unit);
    });
  }

  // The ring: the units of an iteration are reduced in the order in which they become ready.
  void prepare_ring() {
    order_.resize(work_.units.size());
    std::iota(order_.begin(), order_.end(), 0);
    const auto unit = [this](int u) -> const WorkUnit& { return work_.units[static_cast<std::size_t>(u)]; };
    std::stable_sort(order_.begin(), order_.end(), [&](int a, int b) { return unit(a).ready < unit(b).ready; });
    schedule_.emplace(options_.workers);
    for (int i = 0; i < options_.iterations; ++i) {
      for (const int u : order_) {
        schedule_->all_reduce(unit(u).bytes / sizeof(float), sizeof(float), u);
        ends_.push_back(schedule_->length());
      }
    }
    std::vector<int> hosts;
    hosts.reserve(static_cast<std::size_t>(options_.workers));
    for (int w = 0; w < options_.workers; ++w) {
      hosts.push_back(worker_host(w));
      transport_->prepare(worker_host(w), worker_host((w + 1) % options_.workers));
    }
    launched_.resize(static_cast<std::size_t>(options_.workers));
    const double each = bound(hop_bound(options_.bound, options_.workers));
    run_.emplace(
        *schedule_, std::move(hosts), *transport_,
        [this, each](int rank, const Exchange& step) {
          Message message = describe(work_.units[static_cast<std::size_t>(step.unit)], rank, each);
          message.importance.first = step.first;
          message.importance.last = step.last;
          return message;
        },
        [this](const Message& message, const Delivery& delivery) { completions_.add("hop", message, delivery); },
        [this](int rank, std::size_t step) {
          const auto end = std::lower_bound(ends_.begin(), ends_.end(), step + 1);
          if (*end != step + 1) return;
          training_.arrived(rank, schedule_->steps()[static_cast<std::size_t>(rank)][step].unit);
        });
  }

  /// Units become ready in their order.
  void ready(int worker, int /*unit*/) {
    std::size_t& count = launched_[static_cast<std::size_t>(worker)];
    run_->release(worker, ends_[count++]);
  }

  [[nodiscard]] double bound(double asked) const { return setting_.protocol == Protocol::dlcp ? asked : 0.0; }

  /// The busiest link must carry at least this, with full packets.
  [[nodiscard]] double least_seconds() const {
    const double full = 1.0 + static_cast<double>(kPacketOverhead) / setting_.fabric.payload;
    const auto bytes = static_cast<double>(work_.bytes);
    if (options_.pattern == Pattern::ring) {
      const double p = options_.workers;
      return fabric_.serialisation(2.0 * (p - 1.0) / p * bytes *
                                   (1.0 - bound(hop_bound(options_.bound, options_.workers))) * full);
    }
    std::vector<double> load(static_cast<std::size_t>(options_.servers));
    for (std::size_t u = 0; u < work_.units.size(); ++u)
      load[static_cast<std::size_t>(servers_[u])] += static_cast<double>(work_.units[u].bytes);
    const double most = *std::max_element(load.begin(), load.end()) * options_.workers;
    return fabric_.serialisation(most * full * (1.0 - std::max(bound(options_.bound), 0.0)));
  }

  const Setting& setting_;
  const Workload& work_;
  const IterationOptions& options_;
  Fabric fabric_;
  std::unique_ptr<Transport> transport_;
  Completions completions_;
  Training training_;
  std::optional<Background> background_;
  std::vector<int> servers_;  ///< of each unit
  std::vector<int> pushed_;   ///< workers whose gradient of the unit has arrived
  std::vector<int> order_;
  std::optional<Schedule> schedule_;
  std::vector<std::size_t> ends_;      ///< step after each unit of each iteration
  std::vector<std::size_t> launched_;  ///< units that each worker had ready so far
  std::optional<ExchangeRun> run_;
};

}  // namespace

double hop_bound(double bound, int workers) {
  return workers < 2 ? bound : 1.0 - std::pow(1.0 - bound, 1.0 / (2.0 * (workers - 1)));
}

IterationResult run_iterations(const Setting& setting, const Workload& work, const IterationOptions& options,
                               Table& table, const std::vector<Cell>& before) {
  Iterations iterations{setting, work, options};
  IterationResult result = iterations.run();
  iterations.completions().append_to(table, before);
  return result;
}

}  // namespace gradtool::netsim
