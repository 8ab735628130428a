#pragma once

#include "lib/comm/traffic.hpp"
#include "tests/comm/move_cases.hpp"

/// All-to-alls, and the halves of an exchange.
namespace gradtool::test {

/// The bytes that rank `from` has for rank `to`.
inline Bytes stamped_pair(std::size_t size, int from, int to) {
  return stamped(size, from, 3 * to + 1);
}

template <Space S>
void exchanges_all_to_all(Communicator<S>& comm, Queue<S> queue) {
  Rank<S> rank{comm, queue};
  const auto p = static_cast<std::size_t>(rank.size());
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{5}, std::size_t{20'011}}) {
    Bytes given;
    Bytes expected;
    for (int r = 0; r < rank.size(); ++r) {
      for (const std::byte b : stamped_pair(size, rank.rank(), r)) given.push_back(b);
      for (const std::byte b : stamped_pair(size, r, rank.rank())) expected.push_back(b);
    }
    RankMemory<S> out{given.size()};
    RankMemory<S> in{given.size()};
    out.write(queue, given);
    comm.reset_traffic();
    comm.all_to_all(queue, out.view(), in.view());
    require(comm.traffic().bytes_sent == (p - 1) * size && comm.traffic().collectives == 1,
            "an all-to-all is counted as something else");
    Bytes found(given.size());
    in.read(queue, found);
    require(found == expected, fmt::format("all-to-all of {} bytes: wrong bytes", size));
  }
}

/// Sizes of all pairs, some empty; parts in falling order of ranks with gaps of 3 bytes, which stay as they are.
struct PairSizes {
  [[nodiscard]] static std::size_t of(int from, int to) {
    const auto a = static_cast<std::size_t>(from);
    const auto b = static_cast<std::size_t>(to);
    return (a + 2 * b) % 3 == 1 ? 0 : (a * 1013 + b * 331 + 1) % 3001;
  }
  PairSizes(int rank, int ranks, bool out) : sizes(static_cast<std::size_t>(ranks)), offsets(sizes.size()) {
    for (int r = ranks - 1; r >= 0; --r) {
      const auto other = static_cast<std::size_t>(r);
      sizes[other] = out ? of(rank, r) : of(r, rank);
      offsets[other] = end;
      end += sizes[other] + 3;
    }
  }
  [[nodiscard]] Parts parts() const { return {sizes, offsets}; }
  std::vector<std::uint64_t> sizes, offsets;
  std::uint64_t end = 3;
};

template <Space S>
void exchanges_unequal_parts_all_to_all(Communicator<S>& comm, Queue<S> queue) {
  Rank<S> rank{comm, queue};
  const PairSizes out_sizes{rank.rank(), rank.size(), true};
  const PairSizes in_sizes{rank.rank(), rank.size(), false};
  Bytes given(out_sizes.end, std::byte{0xdd});
  Bytes expected(in_sizes.end, std::byte{0xee});
  RankMemory<S> out{given.size()};
  RankMemory<S> in{expected.size()};
  in.write(queue, expected);
  const auto put = [](Bytes& bytes, const PairSizes& sizes, int r, const Bytes& part) {
    std::copy(part.begin(), part.end(),
              bytes.begin() + static_cast<std::ptrdiff_t>(sizes.offsets[static_cast<std::size_t>(r)]));
  };
  for (int r = 0; r < rank.size(); ++r) {
    put(given, out_sizes, r, stamped_pair(PairSizes::of(rank.rank(), r), rank.rank(), r));
    put(expected, in_sizes, r, stamped_pair(PairSizes::of(r, rank.rank()), r, rank.rank()));
  }
  out.write(queue, given);
  comm.reset_traffic();
  comm.all_to_all_v(queue, out.view(), out_sizes.parts(), in.view(), in_sizes.parts());
  const std::uint64_t sent = comm.traffic().bytes_sent;
  require(sent == all_to_all_bytes(out_sizes.sizes, rank.rank()) && comm.traffic().collectives == 1,
          "an unequal all-to-all is counted as something else");
  Bytes found(expected.size());
  in.read(queue, found);
  require(found == expected, "unequal all-to-all: wrong bytes");
}

/// Every rank to every other one, one pair at a time; empty ones and partners that are not looked at in between.
template <Space S>
void sends_to_every_other_rank(Communicator<S>& comm, Queue<S> queue) {
  Rank<S> rank{comm, queue};
  comm.reset_traffic();
  for (int from = 0; from < rank.size(); ++from) {
    for (int to = 0; to < rank.size(); ++to) {
      if (from == to) continue;
      const std::size_t size = PairSizes::of(from, to);
      RankMemory<S> memory{size};
      if (rank.rank() == from) {
        memory.write(queue, stamped_pair(size, from, to));
        comm.send(queue, to, memory.view());
      }
      if (rank.rank() == to) {
        comm.recv(queue, from, memory.view());
        Bytes found(size);
        memory.read(queue, found);
        require(found == stamped_pair(size, from, to), fmt::format("rank {} did not get what {} sent", to, from));
      }
    }
  }
  comm.send(queue, -7, RankMemory<S>{0}.view());
  comm.recv(queue, rank.size(), RankMemory<S>{0}.view());
  std::uint64_t sent = 0;
  for (int to = 0; to < rank.size(); ++to) sent += to == rank.rank() ? 0 : PairSizes::of(rank.rank(), to);
  require(comm.traffic().bytes_sent == sent && comm.traffic().collectives == 0, "sends are counted as something else");
}

/// Calls that break a precondition on every rank. `refused` takes what it is and the call.
template <Space S, class Refused>
void refuses_all_to_alls(Communicator<S>& comm, Queue<S> queue, Refused&& refused) {
  const auto p = static_cast<std::size_t>(comm.size());
  const auto self = static_cast<std::size_t>(comm.rank());
  RankMemory<S> memory{64 * p};
  RankMemory<S> other{64 * p};
  const auto out = memory.view();
  const auto in = other.view();
  refused("an all-to-all of two sizes", [&] { comm.all_to_all(queue, out, in.first(32 * p)); });
  if (p > 1) refused("an all-to-all of uneven parts", [&] { comm.all_to_all(queue, out.first(1), in.first(1)); });
  std::vector<std::uint64_t> sizes(p, 8);
  std::vector<std::uint64_t> offsets(p, 8);
  const Parts good{sizes, offsets};
  const auto refused_v = [&](const char* what, const Parts& bad) {
    refused(what, [&] { comm.all_to_all_v(queue, out, bad, in, good); });
    refused(what, [&] { comm.all_to_all_v(queue, out, good, in, bad); });
  };
  auto larger = sizes;
  larger[self] = 9;
  refused_v("an own part of two sizes", {larger, offsets});
  auto outside = offsets;
  outside.back() = 64 * p - 7;
  refused_v("a part outside", {sizes, outside});
  outside.back() = ~std::uint64_t{0} - 3;
  refused_v("a part that wraps around", {sizes, outside});
  refused_v("a missing size", {good.sizes.first(p - 1), offsets});
  refused_v("a missing offset", {sizes, good.offsets.first(p - 1)});
  refused("a send to itself", [&] { comm.send(queue, comm.rank(), out); });
  refused("a receive from itself", [&] { comm.recv(queue, comm.rank(), in); });
  refused("a send to nobody", [&] { comm.send(queue, comm.size(), out); });
  refused("a receive from nobody", [&] { comm.recv(queue, -1, in); });
}

}  // namespace gradtool::test
