#include "lib/model/cost_model.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace gradtool {
namespace {

constexpr std::size_t kKinds = 8;  ///< of CollectiveUse

/// One all-gather, or one reduce-scatter, among p, of `part` bytes each, by the best known algorithm.
CollectiveCost all_gather(const Link& link, double p, double part) {
  const double steps = steps_of_doubling(p);
  return {steps * link.alpha + (p - 1.0) * part / link.beta, steps};
}

/// Parts of `part` bytes: across, each machine hands on those of its ranks; inside, each rank hands on what it got for
/// all machines.
CollectiveCost gather(const Network& net, double machines, double on_each, double part) {
  return all_gather(net.link, machines, on_each * part) +
         (on_each > 1.0 ? all_gather(net.inner, on_each, machines * part) : CollectiveCost{});
}

CollectiveCost tree(const Link& link, double p, double bytes) {
  if (p <= 1.0) return {};
  return {steps_of_doubling(p) * link.alpha + bytes / link.beta, steps_of_doubling(p)};
}

CollectiveCost cost_of_call(const CollectiveUse& use, const Network& net, double measured, double p) {
  const double bytes = use.bytes / use.calls;
  const double g = std::min<double>(net.node, p);  // ranks of a machine
  const double m = std::ceil(p / g);               // machines
  const bool best = net.library == Library::best;
  switch (use.kind) {
    case CollectiveUse::Kind::all_reduce: {
      if (!best) return library_all_reduce(net, p, bytes);
      if (g <= 1.0) return best_all_reduce(net.link, m, bytes);
      // The g shares of bytes / g cross the machine's link together, so it carries all of the bytes.
      CollectiveCost shares = all_gather(net.inner, g, bytes / g) * 2.0 + best_all_reduce(net.link, m, bytes);
      if (shares.vectors > 0.0) shares.vectors = (2.0 * (g - 1.0) + shares.vectors) / g;
      CollectiveCost wholes = gather(net, m, g, bytes);
      wholes.vectors = p - 1.0;
      return std::min({shares, doubling(net, p, bytes), wholes},
                      [](auto& a, auto& b) { return a.seconds < b.seconds; });
    }
    case CollectiveUse::Kind::all_gather:
      return best ? gather(net, m, g, bytes) : library_all_gather(net, p, bytes);
    case CollectiveUse::Kind::shard_gather:
      return best ? gather(net, m, g, bytes * measured / p) : library_all_gather(net, p, bytes * measured / p);
    case CollectiveUse::Kind::broadcast:
      if (!best) return library_broadcast(net, p, bytes);
      return tree(net.link, m, bytes) + tree(net.inner, g, bytes);
    case CollectiveUse::Kind::reduce_scatter:
      if (!best) return library_reduce_scatter(net, p, bytes);
      // Inside, each rank takes a share of its machine's sum; the shares cross the machine's link together.
      return (g > 1.0 ? all_gather(net.inner, g, bytes / g) : CollectiveCost{}) + all_gather(net.link, m, bytes / m);
    case CollectiveUse::Kind::exchange:
    case CollectiveUse::Kind::all_to_all: {
      if (p <= 1.0 || measured <= 1.0) return {};
      const bool all = use.kind == CollectiveUse::Kind::all_to_all;
      const double messages = all ? p - 1.0 : (p - 1.0) / (measured - 1.0);
      // gloo has all messages of an all-to-all under way at once (gloo/alltoall.cc), and so has the best.
      const double waits = latencies_of_message(net) * (all && (best || net.library == Library::gloo) ? 1.0 : messages);
      const double sent = bytes * (p - 1.0) / p / ((measured - 1.0) / measured);
      const double across = (p - g) / (p - 1.0);  // share of a rank's partners on other machines
      return {waits * (across * net.link.alpha + (1.0 - across) * net.inner.alpha) + g * sent * across / net.link.beta +
                  (g > 1.0 ? sent * (1.0 - across) / net.inner.beta : 0.0),
              messages};
    }
    case CollectiveUse::Kind::ring_hop: {
      if (p <= 1.0 || measured <= 1.0) return {};
      // Every hop is as slow as its slowest link, and a machine's link carries one rank's message at a time.
      const Link& slowest = m > 1.0 ? net.link : net.inner;
      const double messages = (p - 1.0) / (measured - 1.0);
      return {messages * latencies_of_message(net) * slowest.alpha +
                  bytes * (p - 1.0) / p / ((measured - 1.0) / measured) / slowest.beta,
              messages};
    }
  }
  return {};
}

/// The ranks among which something is used, and what joins them.
struct Group {
  Network network;
  double measured = 1.0, ranks = 1.0;
};
Group group_of(const CollectiveUse& use, const Network& network, double measured, double ranks) {
  Group group{.network = network, .measured = measured, .ranks = ranks};
  if (use.level == Level::whole) return group;
  const bool inside = use.level == Level::inside;
  // The network's machines, of g ranks, need not be those of the reducer, of n.
  const int n = use.node;
  const int g = network.node;
  const bool parts = g > 1 && g % n == 0;  // several of the reducer's machines are one of the network's
  const bool wholes = g > 1 && n % g == 0;
  if (inside && parts) {
    group.network.link = network.inner;
    group.network.node = 1;
  } else if (!inside && parts) {  // g/n of these ranks are on a machine, whose link n such groups share
    group.network.node = g / n;
    group.network.link.beta /= n;
  } else if (!(inside && wholes)) {  // every rank is taken to be alone, with its share of the machine's link
    group.network.node = 1;
    group.network.link.beta /= g;
  }
  if (inside) {
    group.measured = use.node;
    group.ranks = std::min<double>(use.node, ranks);
  } else {
    group.measured = measured / use.node;
    group.ranks = std::max(1.0, ranks / use.node);
  }
  return group;
}

double wire_of(const CollectiveUse& use, double measured, double p) {
  if (p <= 1.0) return 0.0;
  switch (use.kind) {
    case CollectiveUse::Kind::all_reduce:
      return 2.0 * (p - 1.0) / p * use.bytes;
    case CollectiveUse::Kind::all_gather:
      return (p - 1.0) * use.bytes;
    case CollectiveUse::Kind::shard_gather:
      return (p - 1.0) / p * measured * use.bytes;
    case CollectiveUse::Kind::broadcast:
      return use.bytes;
    case CollectiveUse::Kind::reduce_scatter:
      return (p - 1.0) / p * use.bytes;
    case CollectiveUse::Kind::exchange:
    case CollectiveUse::Kind::all_to_all:
    case CollectiveUse::Kind::ring_hop:
      return measured <= 1.0 ? 0.0 : use.bytes * (p - 1.0) / p / ((measured - 1.0) / measured);
  }
  return 0.0;
}

}  // namespace

CollectiveUses no_uses() {
  CollectiveUses uses;
  for (std::size_t i = 0; i < uses.size(); ++i) {
    uses[i].kind = static_cast<CollectiveUse::Kind>(i % kKinds);
    uses[i].level = static_cast<Level>(i / kKinds);
  }
  return uses;
}

void add_use(CollectiveUses& uses, std::string_view call, double bytes, bool shards, bool ring, Level level, int node) {
  using Kind = CollectiveUse::Kind;
  const Kind kind = call.starts_with("all_reduce")       ? Kind::all_reduce
                    : call == "all_gather_v" && shards   ? Kind::shard_gather
                    : call.starts_with("all_gather")     ? Kind::all_gather
                    : call.starts_with("reduce_scatter") ? Kind::reduce_scatter
                    : call.starts_with("all_to_all")     ? Kind::all_to_all
                    : call == "broadcast"                ? Kind::broadcast
                    : ring                               ? Kind::ring_hop
                                                         : Kind::exchange;
  if ((kind == Kind::exchange || kind == Kind::ring_hop) && bytes == 0.0) return;
  auto& use = uses[kKinds * static_cast<std::size_t>(level) + static_cast<std::size_t>(kind)];
  use.node = node;
  use.calls += 1.0;
  use.bytes += bytes;
}

ModelledStep model_step(std::span<const CollectiveUse> uses, const Network& network, int measured_ranks, int ranks) {
  ModelledStep step;
  for (const auto& use : uses) {
    if (use.calls <= 0.0) continue;
    const Group group = group_of(use, network, measured_ranks, ranks);
    const CollectiveCost cost = cost_of_call(use, group.network, group.measured, group.ranks);
    step.seconds += use.calls * cost.seconds;
    step.messages += use.calls * cost.messages;
    const double wire = cost.vectors > 0.0 ? cost.vectors * use.bytes : wire_of(use, group.measured, group.ranks);
    step.wire_bytes += wire;
    if (use.level == Level::inside) step.wire_inside += wire;
    if (use.level == Level::across) step.wire_across += wire;
  }
  return step;
}

double iteration_seconds(std::span<const UnitCost> units, double compute, Overlap overlap, double backward_share) {
  if (overlap == Overlap::none) {
    return std::accumulate(units.begin(), units.end(), compute, [](double sum, const UnitCost& unit) {
      return sum + unit.encode + unit.communicate + unit.decode;
    });
  }
  std::vector<UnitCost> order{units.begin(), units.end()};
  std::stable_sort(order.begin(), order.end(), [](const UnitCost& a, const UnitCost& b) { return a.ready < b.ready; });
  const double backward = backward_share * compute;
  double encoding = 0.0;  // so far
  double link = 0.0;      // when it is free
  std::vector<double> arrival;
  for (const auto& unit : order) {
    encoding += unit.encode;
    link = std::max(link, compute - backward + unit.ready * backward + encoding) + unit.communicate;
    arrival.push_back(link);
  }
  double processor = compute + encoding;
  for (std::size_t u = 0; u < order.size(); ++u) processor = std::max(processor, arrival[u]) + order[u].decode;
  return processor;
}

std::vector<double> ready_shares(const std::vector<Unit>& units, const std::vector<TensorInfo>& tensors) {
  std::vector<double> from(tensors.size() + 1, 0.0);  // elements of a tensor and all behind it
  for (std::size_t t = tensors.size(); t-- > 0;) from[t] = from[t + 1] + static_cast<double>(tensors[t].elements);
  std::vector<double> shares;
  for (const auto& unit : units) {
    std::size_t first = tensors.size();
    for (const auto& piece : unit.pieces) first = std::min(first, piece.tensor);
    shares.push_back(from.front() > 0.0 ? from[first] / from.front() : 1.0);
  }
  return shares;
}

}  // namespace gradtool
