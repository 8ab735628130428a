#include "lib/probe/pattern.hpp"

#include <array>

namespace gradtool {
namespace {

constexpr std::array<PatternInfo, 8> kPatterns{
    {{Pattern::pair, "pair", "two neighbours at a time, all others silent, one way"},
     {Pattern::sendrecv, "sendrecv", "every rank to the next one, all at once"},
     {Pattern::all_reduce, "all_reduce", "the library's own, which none rides in bench"},
     {Pattern::all_reduce_ring, "all_reduce_ring", "gradtool's, which codecs that sum ride"},
     {Pattern::reduce_scatter, "reduce_scatter", "gradtool's with MPI, NCCL's own"},
     {Pattern::all_gather, "all_gather", "gradtool's with MPI, NCCL's own"},
     {Pattern::all_to_all, "all_to_all", "every rank to every other one"},
     {Pattern::broadcast, "broadcast", "roots in turn; gradtool's chain with MPI, NCCL's own"}}};

CollectiveUse use_of(Pattern pattern, double bytes, double p) {
  using Kind = CollectiveUse::Kind;
  switch (pattern) {
    case Pattern::pair:
    case Pattern::sendrecv:
      return {Kind::ring_hop, 1.0, bytes};
    case Pattern::all_reduce:
    case Pattern::all_reduce_ring:
      return {Kind::all_reduce, 1.0, bytes};
    case Pattern::reduce_scatter:
      return {Kind::reduce_scatter, 1.0, bytes};
    case Pattern::all_gather:
      return {Kind::all_gather, 1.0, bytes / p};
    case Pattern::all_to_all:
      return {Kind::all_to_all, 1.0, bytes * (p - 1.0) / p};
    case Pattern::broadcast:
      return {Kind::broadcast, 1.0, bytes};
  }
  return {};
}

}  // namespace

std::span<const PatternInfo> patterns() {
  return kPatterns;
}

std::string_view name_of(Pattern pattern) {
  return kPatterns[static_cast<std::size_t>(pattern)].name;
}

std::uint64_t size_for(Pattern pattern, std::uint64_t bytes, int ranks) {
  if (pattern == Pattern::pair || pattern == Pattern::sendrecv) return bytes;
  const std::uint64_t whole = sizeof(float) * static_cast<std::uint64_t>(ranks);
  return (bytes + whole - 1) / whole * whole;
}

double bus_factor(Pattern pattern, int ranks) {
  const double p = ranks;
  switch (pattern) {
    case Pattern::pair:
    case Pattern::sendrecv:
    case Pattern::broadcast:
      return 1.0;
    case Pattern::all_reduce:
    case Pattern::all_reduce_ring:
      return 2.0 * (p - 1.0) / p;
    case Pattern::reduce_scatter:
    case Pattern::all_gather:
    case Pattern::all_to_all:
      return (p - 1.0) / p;
  }
  return 1.0;
}

double modelled_seconds(Pattern pattern, double bytes, int ranks, const Link& link) {
  const int among = pattern == Pattern::pair ? 2 : ranks;
  const CollectiveUse use = use_of(pattern, bytes, among);
  Network network;
  network.link = link;
  return model_step({&use, 1}, network, among, among).seconds;
}

}  // namespace gradtool
