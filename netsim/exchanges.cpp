#include "netsim/exchanges.hpp"

#include <algorithm>
#include <numeric>

#include "lib/comm/communicator.hpp"

namespace gradtool::netsim {

std::uint64_t Schedule::bytes_of(int rank) const {
  const auto& steps = steps_[static_cast<std::size_t>(rank)];
  return std::accumulate(steps.begin(), steps.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const Exchange& step) { return sum + step.bytes; });
}

template <class Bytes>
void Schedule::ring_step(int unit, Bytes&& bytes_of) {
  for (int r = 0; r < ranks(); ++r) {
    const std::uint64_t out = bytes_of(r), in = bytes_of(wrap(r - 1));
    steps_[static_cast<std::size_t>(r)].push_back(
        {.to = out > 0 ? wrap(r + 1) : -1, .bytes = out, .from = in > 0 ? wrap(r - 1) : -1, .unit = unit});
  }
}

void Schedule::reduce_scatter(std::size_t elements, std::size_t element_bytes, int unit) {
  const auto all = static_cast<double>(std::max<std::size_t>(1, elements));
  for (int hop = 0; hop + 1 < ranks(); ++hop) {
    const auto segment = [&](int rank) { return ring_segment(elements, wrap(rank - hop - 1), ranks()); };
    ring_step(unit, [&](int rank) { return std::uint64_t{segment(rank).count * element_bytes}; });
    for (int r = 0; r < ranks(); ++r) {
      Exchange& step = steps_[static_cast<std::size_t>(r)].back();
      step.first = static_cast<double>(segment(r).first) / all;
      step.last = static_cast<double>(segment(r).first + segment(r).count) / all;
    }
  }
}

void Schedule::relay(std::span<const std::uint64_t> sizes, int unit) {
  const auto all =
      static_cast<double>(std::max<std::uint64_t>(1, std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0})));
  std::vector<double> before(sizes.size() + 1, 0.0);
  for (std::size_t i = 0; i < sizes.size(); ++i) before[i + 1] = before[i] + static_cast<double>(sizes[i]) / all;
  for (int hop = 0; hop + 1 < ranks(); ++hop) {
    const auto part = [&](int rank) { return static_cast<std::size_t>(wrap(rank - hop)); };
    ring_step(unit, [&](int rank) { return sizes[part(rank)]; });
    for (int r = 0; r < ranks(); ++r) {
      Exchange& step = steps_[static_cast<std::size_t>(r)].back();
      step.first = before[part(r)];
      step.last = before[part(r) + 1];
    }
  }
}

void Schedule::all_reduce(std::size_t elements, std::size_t element_bytes, int unit) {
  reduce_scatter(elements, element_bytes, unit);
  std::vector<std::uint64_t> segments;
  segments.reserve(steps_.size());
  for (int r = 0; r < ranks(); ++r) segments.push_back(ring_segment(elements, r, ranks()).count * element_bytes);
  relay(segments, unit);
}

void Schedule::all_gather(std::span<const std::uint64_t> sizes, int unit) {
  relay(sizes, unit);
}

void Schedule::all_to_all(std::span<const std::uint64_t> sizes, int unit) {
  for (int k = 1; k < ranks(); ++k) {
    for (int r = 0; r < ranks(); ++r) {
      const std::uint64_t out = sizes[static_cast<std::size_t>(r)], in = sizes[static_cast<std::size_t>(wrap(r - k))];
      steps_[static_cast<std::size_t>(r)].push_back(
          {.to = out > 0 ? wrap(r + k) : -1, .bytes = out, .from = in > 0 ? wrap(r - k) : -1, .unit = unit});
    }
  }
}

void Schedule::broadcast(std::uint64_t bytes, int root, int unit) {
  constexpr std::uint64_t kChunk = 256U << 10;  // as lib/comm/ring.hpp has it for the host
  const std::uint64_t chunks = (bytes + kChunk - 1) / kChunk;
  if (ranks() == 1) return;
  for (std::uint64_t step = 0; step <= chunks; ++step) {
    const auto size = [&](std::uint64_t chunk) { return std::min(kChunk, bytes - chunk * kChunk); };
    for (int r = 0; r < ranks(); ++r) {
      Exchange exchange{.unit = unit};
      if (wrap(r + 1) != root && step > 0) {
        exchange.to = wrap(r + 1);
        exchange.bytes = size(step - 1);
        exchange.ahead = 1;
      }
      if (r != root && step < chunks) exchange.from = wrap(r - 1);
      steps_[static_cast<std::size_t>(r)].push_back(exchange);
    }
  }
}

void Schedule::hop(std::span<const std::uint64_t> sizes, int unit) {
  ring_step(unit, [&](int rank) { return sizes[static_cast<std::size_t>(rank)]; });
}

ExchangeRun::ExchangeRun(const Schedule& schedule, std::vector<int> hosts, Transport& transport, Describe describe,
                         Sent sent, StepDone done)
    : schedule_{schedule},
      hosts_{std::move(hosts)},
      transport_{transport},
      describe_{std::move(describe)},
      sent_{std::move(sent)},
      done_{std::move(done)},
      ranks_(hosts_.size()) {
  for (auto& rank : ranks_) rank.arrived.resize(schedule.length());
}

void ExchangeRun::release(int rank, std::size_t end) {
  ranks_[static_cast<std::size_t>(rank)].end = end;
  advance(rank);
}

void ExchangeRun::advance(int rank) {
  const auto index = static_cast<std::size_t>(rank);
  Rank& self = ranks_[index];
  while (self.at < self.end) {
    const std::size_t at = self.at;
    const Exchange& step = schedule_.steps()[index][at];
    if (!self.started) {
      self.started = true;
      self.sent = step.to < 0;
      if (step.to >= 0) {
        Message message = describe_(rank, step);
        message.from = hosts_[index];
        message.to = hosts_[static_cast<std::size_t>(step.to)];
        message.bytes = step.bytes;
        const std::size_t expected = at - static_cast<std::size_t>(step.ahead);
        transport_.send(message, [this, rank, message, to = step.to, expected](const Delivery& delivery) {
          sent_(message, delivery);
          ranks_[static_cast<std::size_t>(rank)].sent = true;  // it is still at this step
          ranks_[static_cast<std::size_t>(to)].arrived[expected] = true;
          advance(rank);
          advance(to);
        });
      }
    }
    if (!self.sent || (step.from >= 0 && !self.arrived[at])) return;
    ++self.at;
    self.started = false;
    done_(rank, at);
  }
}

}  // namespace gradtool::netsim
