// Messages and seconds of the collectives of each library; library.hpp has the formulas and their sources.
#include "lib/model/library.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "lib/comm/communicator.hpp"
#include "lib/core/throw_error.hpp"
#include "lib/model/network.hpp"

namespace gradtool {
namespace {

constexpr double kGlooSegment = 1024.0 * 1024.0;  ///< bytes at most, AllreduceOptions::kMaxSegmentSize
constexpr double kMpiDoubling = 10'000.0;         ///< bytes from which MPI's all-reduce is a ring
constexpr double kMpiSegment = 1024.0 * 1024.0;   ///< bytes of a segment of MPI's ring at most
constexpr double kMpiGather = 50'000.0;           ///< bytes of all parts from which MPI's all-gather is linear in p
constexpr double kMpiHalving = 12.0 * 1024.0;     ///< bytes up to which MPI's reduce-scatter halves
constexpr double kMpiHalvingOfPowers = 256.0 * 1024.0;  ///< the same where the ranks are a power of two
constexpr double kHookBroadcast = 256.0 * 1024.0;       ///< bytes of a chunk, RingCommunicator's on the host

/// How the ranks lie on machines: `p` ranks, `on_each` on a machine, `machines` of them.
struct Places {
  Places(const Network& network, double ranks)
      : p{ranks}, on_each{std::min<double>(network.node, ranks)}, machines{std::ceil(ranks / on_each)} {}
  double p, on_each, machines;
  [[nodiscard]] const Link& slowest(const Network& network) const {
    return machines > 1.0 || on_each <= 1.0 ? network.link : network.inner;
  }
};

double largest_power_of_two(double p) {
  return std::exp2(std::floor(std::log2(p) + 1e-9));
}
bool is_power_of_two(double p) {
  return largest_power_of_two(p) == p;
}

/// Messages that wait for each other, each rank sending one to its neighbour, `bytes` in all.
CollectiveCost around(const Network& network, double p, double messages, double bytes) {
  const Link& link = Places{network, p}.slowest(network);
  return {messages * latencies_of_message(network) * link.alpha + bytes / link.beta, messages};
}

/// `messages` to the neighbour of `bytes` each, two of them under way.
CollectiveCost two_under_way(const Link& link, double messages, double bytes) {
  const double transfer = bytes / link.beta;
  const double pairs = std::ceil(messages / 2.0);
  const bool even = 2.0 * pairs == messages;
  const double busy = 2.0 * link.alpha + messages * transfer;
  const double waiting = pairs * (2.0 * link.alpha + transfer) + (even ? transfer : 0.0);
  return {std::max(busy, waiting), messages};
}

/// One of the two phases of gloo's all-reduce.
CollectiveCost gloo_phase(const Network& network, double p, double bytes) {
  const double segments = std::ceil(std::max(std::ceil(bytes / kGlooSegment), 2.0 * p) / p) * p;
  return two_under_way(Places{network, p}.slowest(network), (p - 1.0) * segments / p, bytes / segments);
}

/// NCCL's rings pass a piece on as soon as it is there, and go through every machine once.
CollectiveCost nccl_ring(const Network& network, double p, double bytes) {
  const Places places{network, p};
  const double inside = places.on_each > 1.0 ? (p - places.machines) * network.inner.alpha : 0.0;
  return {(places.machines - 1.0) * network.link.alpha + inside + bytes / places.slowest(network).beta, p - 1.0};
}

/// Whether the library adds vectors of so many bytes by recursive doubling.
bool sums_by_doubling(const Network& network, double bytes) {
  if (network.library == Library::mpi) return bytes < kMpiDoubling;
  return network.library == Library::hook && bytes <= static_cast<double>(kDoublingMost);
}

}  // namespace

std::string library_text(const Network& network) {
  const std::string name{name_of(network.library)};
  return network.library == Library::hook ? fmt::format("{} over {}", name, name_of(network.under_hook)) : name;
}

void set_library(Network& network, std::string_view text) {
  constexpr std::string_view kOver = "hook over ";
  const bool hook = text.starts_with(kOver);
  const auto library = named<Library>(hook ? text.substr(kOver.size()) : text);
  const bool carries_hook = library == Library::gloo || library == Library::nccl;
  if (!library || (hook ? !carries_hook : library == Library::hook)) {
    throw_error(Fault::data,
                "the library '{}' is not valid; valid are best, nccl, gloo, mpi, hook over gloo and hook over nccl",
                text);
  }
  network.library = hook ? Library::hook : *library;
  if (hook) network.under_hook = *library;
}

double latencies_of_message(const Network& network) {
  const Library carrier = network.library == Library::hook ? network.under_hook : network.library;
  return carrier == Library::gloo ? 2.0 : 1.0;
}

double steps_of_doubling(double p) {
  return p <= 1.0 ? 0.0 : std::ceil(std::log2(p) - 1e-9);
}

CollectiveCost doubling(const Network& network, double p, double bytes) {
  const Places places{network, p};
  const double q = largest_power_of_two(p);
  const double inside = std::min(std::log2(q), std::floor(std::log2(places.on_each) + 1e-9));
  const double waits = latencies_of_message(network);
  // All ranks of a machine send across at the same time.
  const double across = waits * network.link.alpha + places.on_each * bytes / network.link.beta;
  const double near = inside > 0.0 ? waits * network.inner.alpha + bytes / network.inner.beta : 0.0;
  const double folded = q < p ? 2.0 * (places.machines > 1.0 ? across : near) : 0.0;
  const double messages = std::log2(q) + (q < p ? 1.0 : 0.0);
  return {inside * near + (std::log2(q) - inside) * across + folded, messages, messages};
}

CollectiveCost best_all_reduce(const Link& link, double p, double bytes) {
  if (p <= 1.0) return {};
  const double steps = steps_of_doubling(p), whole = steps + (is_power_of_two(p) ? 0.0 : 1.0);
  const CollectiveCost halving{2.0 * steps * link.alpha + 2.0 * (p - 1.0) / p * bytes / link.beta, 2.0 * steps};
  const CollectiveCost wholes{whole * (link.alpha + bytes / link.beta), whole, whole};
  const CollectiveCost gathering{steps * link.alpha + (p - 1.0) * bytes / link.beta, steps, p - 1.0};
  return std::min({halving, wholes, gathering}, [](auto& a, auto& b) { return a.seconds < b.seconds; });
}

CollectiveCost ring_or_tree(const Link& link, double p, double bytes) {
  if (p <= 1.0) return {};
  const CollectiveCost ring{2.0 * (p - 1.0) * link.alpha + 2.0 * (p - 1.0) / p * bytes / link.beta, 2.0 * (p - 1.0)};
  const double steps = 2.0 * steps_of_doubling(p);
  const CollectiveCost tree{steps * link.alpha + 2.0 * bytes / link.beta, steps};
  return tree.seconds < ring.seconds ? tree : ring;
}

CollectiveCost library_all_reduce(const Network& network, double p, double bytes) {
  if (p <= 1.0) return {};
  const double sent = 2.0 * (p - 1.0) / p * bytes;
  switch (network.library) {
    case Library::gloo:
      return gloo_phase(network, p, bytes) * 2.0;
    case Library::mpi: {
      if (sums_by_doubling(network, bytes)) return doubling(network, p, bytes);
      const double segments = std::max(1.0, std::ceil(bytes / p / kMpiSegment));
      return around(network, p, (segments + 1.0) * (p - 1.0), sent);
    }
    case Library::hook:
      if (sums_by_doubling(network, bytes)) return doubling(network, p, bytes);
      return around(network, p, 2.0 * (p - 1.0), sent);
    default: {
      const Places places{network, p};
      const double g = places.on_each;
      Network inside = network;
      inside.link = network.inner;
      inside.node = 1;
      const CollectiveCost near = g > 1.0 ? nccl_ring(inside, g, (g - 1.0) / g * bytes) * 2.0 : CollectiveCost{};
      return near + ring_or_tree(network.link, places.machines, bytes);
    }
  }
}

CollectiveCost library_reduce_scatter(const Network& network, double p, double bytes) {
  if (p <= 1.0) return {};
  const double sent = (p - 1.0) / p * bytes;
  switch (network.library) {
    case Library::gloo:
      return gloo_phase(network, p, bytes);
    case Library::mpi: {
      const bool halves = bytes <= kMpiHalving || (bytes <= kMpiHalvingOfPowers && is_power_of_two(p));
      return around(network, p, halves ? steps_of_doubling(p) : p - 1.0, sent);
    }
    case Library::hook:
      return around(network, p, p - 1.0, sent);
    default:
      return nccl_ring(network, p, sent);
  }
}

CollectiveCost library_all_gather(const Network& network, double p, double part) {
  if (p <= 1.0) return {};
  const double sent = (p - 1.0) * part;
  switch (network.library) {
    case Library::gloo:
      return two_under_way(Places{network, p}.slowest(network), 2.0 * (p - 1.0), part / 2.0);
    case Library::mpi: {
      const bool even = std::fmod(p, 2.0) == 0.0;
      return around(network, p, p * part < kMpiGather ? steps_of_doubling(p) : even ? p / 2.0 : p - 1.0, sent);
    }
    case Library::hook:
      return around(network, p, p - 1.0, sent);
    default:
      return nccl_ring(network, p, sent);
  }
}

CollectiveCost library_broadcast(const Network& network, double p, double bytes) {
  if (p <= 1.0) return {};
  const double steps = steps_of_doubling(p);
  switch (network.library) {
    case Library::gloo:
      // All receivers tell that they are ready at the same time, so that the first step alone waits for it.
      return {(steps + 1.0) * Places{network, p}.slowest(network).alpha +
                  steps * (steps + 1.0) / 2.0 * bytes / Places{network, p}.slowest(network).beta,
              steps};
    case Library::mpi:
      return around(network, p, steps, bytes);
    case Library::hook: {
      const double chunks = std::max(1.0, std::ceil(bytes / kHookBroadcast));
      const CollectiveCost chain = around(network, p, chunks + p - 2.0, (chunks + p - 2.0) * bytes / chunks);
      return {chain.seconds, chunks};
    }
    default:
      return nccl_ring(network, p, bytes);
  }
}

}  // namespace gradtool
