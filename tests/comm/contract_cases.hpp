#pragma once

#include <fmt/format.h>

#include "tests/comm/all_to_all_cases.hpp"

/// Counted bytes, held to the formulas of docs/measuring.md, and calls that break a precondition.
namespace gradtool::test {

/// The bytes that one rank sent while `call` ran.
template <Space S, class Call>
std::uint64_t bytes_of(Communicator<S>& comm, Call&& call) {
  comm.reset_traffic();
  call();
  return comm.traffic().bytes_sent;
}

/// Sum over ranks, by the backend's own gather (after the counter was read).
template <Space S>
std::uint64_t over_ranks(Rank<S>& rank, std::uint64_t mine) {
  const auto all = rank.all_gather(std::vector<std::uint64_t>{mine});
  return std::accumulate(all.begin(), all.end(), std::uint64_t{0});
}

inline void require_bytes(const std::string& what, std::uint64_t counted, std::uint64_t formula) {
  require(counted == formula, fmt::format("{}: {} bytes counted, the formula says {}", what, counted, formula));
}

template <Space S>
void counts_bytes_by_the_formulas(Communicator<S>& comm, Queue<S> queue) {
  Rank<S> rank{comm, queue};
  const auto p = static_cast<std::uint64_t>(rank.size());
  for (const std::uint64_t n : {std::uint64_t{0}, p, 840 * p, 840 * p + 1, 840 * p + p - 1, std::uint64_t{1}}) {
    for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
      const std::uint64_t bytes = n * size_of(dtype);
      const std::uint64_t sent = bytes_of(comm, [&] {
        if (dtype == Dtype::f32)
          rank.all_reduce(std::vector<float>(n), dtype);
        else
          rank.all_reduce(std::vector<std::uint16_t>(n), dtype);
      });
      const std::string what = fmt::format("all-reduce of {} bytes on {} ranks", bytes, p);
      require(comm.traffic().collectives == 1, what + " is not one collective");
      if (n % p == 0) require_bytes(what, sent, 2 * (p - 1) * bytes / p);
      // Not divisible: no rank is more than two elements off, and the ranks together send exactly 2(p-1)S.
      const std::uint64_t share = 2 * (p - 1) * bytes / p;
      require(sent + 2 * size_of(dtype) >= share && sent <= share + 2 * size_of(dtype),
              what + ": more than two elements off");
      require_bytes(what + ", all together", over_ranks(rank, sent), 2 * (p - 1) * bytes);
    }
  }
  const std::uint64_t sent = bytes_of(comm, [&] { rank.all_gather(Bytes(1003)); });
  require_bytes("all-gather", sent, (p - 1) * 1003);
  require(comm.traffic().collectives == 1, "an all-gather is not one collective");
  for (int root = 0; root < rank.size(); ++root) {
    RankMemory<S> memory{600'001};
    const std::uint64_t passed = bytes_of(comm, [&] { comm.broadcast(queue, memory.view(), root); });
    require_bytes("broadcast", passed, (rank.rank() + 1) % rank.size() == root ? 0 : 600'001);
  }
}

/// The ranks of a machine, and those with the same number on every machine, are communicators of their own, whose bytes
/// count as those of the whole.
template <Space S>
void works_on_levels(Communicator<S>& comm, Queue<S> queue) {
  const int p = comm.size();
  const int me = comm.rank();
  for (int node = 1; node <= p; ++node) {
    if (p % node != 0) continue;
    comm.set_levels(node);
    Communicator<S>& inside = comm.inside();
    Communicator<S>& across = comm.across();
    const std::string what = fmt::format("machines of {} of {} ranks", node, p);
    require(inside.size() == node && inside.rank() == me % node, what + ": inside is somebody else");
    require(across.size() == p / node && across.rank() == me / node, what + ": across is somebody else");
    comm.reset_traffic();
    Rank<S> machine{inside, queue}, others{across, queue};
    const std::vector<std::uint64_t> mine(100, static_cast<std::uint64_t>(me));
    const auto neighbours = machine.all_gather(mine);
    const auto peers = others.all_gather(mine);
    for (std::size_t i = 0; i < neighbours.size(); ++i)
      require(neighbours[i] == static_cast<std::uint64_t>(me / node * node) + i / 100, what + ": not who is inside");
    for (std::size_t i = 0; i < peers.size(); ++i)
      require(peers[i] == i / 100 * static_cast<std::uint64_t>(node) + static_cast<std::uint64_t>(me % node),
              what + ": not who is across");
    const auto sums = machine.all_reduce(std::vector<float>(1000, static_cast<float>(me)), Dtype::f32);
    const int first = me / node * node;
    for (const float sum : sums)
      require(sum == static_cast<float>(node * first + node * (node - 1) / 2), what + ": another sum inside");
    const auto total = others.all_reduce(std::vector<float>(1000, static_cast<float>(me)), Dtype::f32);
    const int machines = p / node;
    for (const float sum : total) {
      require(sum == static_cast<float>(machines * (me % node) + node * machines * (machines - 1) / 2),
              what + ": another sum across");
    }
    require(comm.traffic().bytes_sent == inside.traffic().bytes_sent + across.traffic().bytes_sent,
            what + ": the whole counts otherwise than its levels");
    const auto g = static_cast<std::uint64_t>(node), m = static_cast<std::uint64_t>(machines);
    if (1000 % g == 0)
      require_bytes(what + ", inside", inside.traffic().bytes_sent, (g - 1) * 800 + 2 * (g - 1) * 4000 / g);
    if (1000 % m == 0)
      require_bytes(what + ", across", across.traffic().bytes_sent, (m - 1) * 800 + 2 * (m - 1) * 4000 / m);
  }
}

template <Space S>
void counts_unequal_gathers_and_exchanges(Communicator<S>& comm, Queue<S> queue) {
  Rank<S> rank{comm, queue};
  const auto p = static_cast<std::size_t>(rank.size());
  std::vector<std::uint64_t> sizes(p);
  std::vector<std::uint64_t> offsets(p);
  std::uint64_t total = 0;
  for (std::size_t r = 0; r < p; ++r) {
    sizes[r] = 100 * r + 7;
    offsets[r] = total;
    total += sizes[r];
  }
  RankMemory<S> mine{sizes[static_cast<std::size_t>(rank.rank())]};
  RankMemory<S> all{total};
  const std::uint64_t sent = bytes_of(comm, [&] { comm.all_gather_v(queue, mine.view(), sizes, offsets, all.view()); });
  require_bytes("unequal all-gather", sent, total - sizes[(static_cast<std::size_t>(rank.rank()) + 1) % p]);
  require_bytes("unequal all-gather, all together", over_ranks(rank, sent), (p - 1) * total);

  const int next = (rank.rank() + 1) % rank.size();
  const int previous = (rank.rank() + rank.size() - 1) % rank.size();
  const std::uint64_t passed = bytes_of(comm, [&] { rank.exchange(next, Bytes(55), previous, 55); });
  require_bytes("exchange", passed, p == 1 ? 0 : 55);
  require(comm.traffic().messages_sent == (p == 1 ? 0u : 1u), "an exchange is not one message");

  double values[2] = {1, 2};
  const std::uint64_t harness = bytes_of(comm, [&] {
    comm.barrier(queue);
    comm.agree_max(values);
  });
  require_bytes("barrier and agree_max", harness, 0);
  require(comm.traffic().collectives == 0, "the harness's own calls were counted");
}

/// All ranks break the same rule before anything is sent, so all of them can go on.
template <Space S>
void refuses_what_breaks_the_contract(Communicator<S>& comm, Queue<S> queue) {
  const auto refused_as = [&](Fault fault, const char* what, auto&& call) {
    bool refused = false;
    try {
      call();
    } catch (const Error& error) {
      refused = error.fault() == fault;
    }
    require(refused, fmt::format("{} was not refused with fault {}", what, static_cast<int>(fault)));
  };
  const auto refused = [&](const char* what, auto&& call) { refused_as(Fault::internal, what, call); };
  RankMemory<S> memory{4096};
  RankMemory<S> scratch{4096};
  const auto view = memory.view();
  const auto p = static_cast<std::size_t>(comm.size());
  refused("half an element", [&] { comm.all_reduce_sum(queue, view.first(7), Dtype::f32, scratch.view()); });
  refused("a gather that does not fit",
          [&] { comm.all_gather(queue, scratch.view().first(8), view.first(8 * p + 1)); });
  refused("a gather at nobody", [&] { comm.gather(queue, view.first(8), view.first(8 * p), comm.size()); });
  refused("a broadcast from nobody", [&] { comm.broadcast(queue, view, comm.size()); });
  std::vector<std::uint64_t> sizes(p, 8);
  std::vector<std::uint64_t> offsets(p, 0);
  refused("a part of another size", [&] { comm.all_gather_v(queue, scratch.view().first(9), sizes, offsets, view); });
  offsets.back() = 4090;
  refused("a part outside", [&] { comm.all_gather_v(queue, scratch.view().first(8), sizes, offsets, view); });
  refused("a missing offset",
          [&] { comm.all_gather_v(queue, scratch.view().first(8), sizes, std::span{offsets}.first(p - 1), view); });
  refused("half an element to scatter",
          [&] { comm.reduce_scatter_sum(queue, view.first(7), Dtype::f32, scratch.view()); });
  refused("half an element for the library",
          [&] { comm.all_reduce_native(queue, view.first(7), Dtype::f32, scratch.view()); });
  const auto refuses_scratch = [&](std::size_t bytes) {
    if (comm.scratch_bytes(4096) <= bytes) return;
    const auto little = scratch.view().first(bytes);
    refused("too little scratch", [&] { comm.all_reduce_sum(queue, view, Dtype::f32, little); });
    refused("too little scratch to scatter", [&] { comm.reduce_scatter_sum(queue, view, Dtype::f32, little); });
  };
  refuses_scratch(1);
  if (comm.name() != "nccl") {
    comm.set_all_reduce(AllReduce::doubling);
    refuses_scratch(4095);
    require(p == 1 || comm.scratch_bytes(4096) == 4096, "doubling needs no scratch");
    comm.set_all_reduce(AllReduce::server);
    require(p == 1 || comm.scratch_bytes(4096) == 4096, "a server needs no scratch");
    comm.set_all_reduce(AllReduce::ring);
  } else {
    refused_as(Fault::usage, "an algorithm that the library does not let one choose",
               [&] { comm.set_all_reduce(AllReduce::doubling); });
  }
  refuses_all_to_alls(comm, queue, refused);
  comm.barrier(queue);
}

}  // namespace gradtool::test
