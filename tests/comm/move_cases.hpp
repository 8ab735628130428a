#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "tests/comm/rank_memory.hpp"

/// Cases of operations that move bytes without arithmetic: gathers, broadcast, exchange, and the harness's own calls.
namespace gradtool::test {

using Bytes = std::vector<std::byte>;

/// `size` bytes that tell who wrote them, and when.
inline Bytes stamped(std::size_t size, int rank, int round) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<std::byte>(i * 3 + static_cast<std::size_t>(rank * 37 + round * 101));
  return bytes;
}

template <Space S>
void gathers_equal_parts(Communicator<S>& comm, Queue<S> queue) {
  Rank<S> rank{comm, queue};
  for (const bool in_place : {false, true}) {
    for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{5}, std::size_t{70'001}}) {
      const Bytes all = rank.all_gather(stamped(size, rank.rank(), 0), in_place);
      for (int r = 0; r < rank.size(); ++r) {
        const Bytes part = stamped(size, r, 0);
        require(std::equal(part.begin(), part.end(), all.begin() + static_cast<std::ptrdiff_t>(size) * r),
                fmt::format("part {} of {} bytes is not what rank {} gave", r, size, r));
      }
    }
  }
}

/// At the root alone, for every root; what the others pass as `all` is not looked at.
template <Space S>
void gathers_at_every_root(Communicator<S>& comm, Queue<S> queue) {
  Rank<S> rank{comm, queue};
  const auto p = static_cast<std::size_t>(rank.size());
  for (int root = 0; root < rank.size(); ++root) {
    for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{70'001}}) {
      const bool here = rank.rank() == root;
      RankMemory<S> mine{size};
      RankMemory<S> all{here ? p * size : 0};
      mine.write(queue, stamped(size, rank.rank(), root));
      comm.reset_traffic();
      comm.gather(queue, mine.view(), all.view(), root);
      require(comm.traffic().bytes_sent == (here ? 0 : size) && comm.traffic().collectives == 1,
              "a gather is counted as something else");
      if (!here) continue;
      Bytes found(p * size);
      all.read(queue, found);
      for (int r = 0; r < rank.size(); ++r) {
        const Bytes part = stamped(size, r, root);
        require(std::equal(part.begin(), part.end(), found.begin() + static_cast<std::ptrdiff_t>(size) * r),
                fmt::format("part {} of {} bytes is not what rank {} sent to {}", r, size, r, root));
      }
    }
  }
}

template <Space S>
void gathers_unequal_parts(Communicator<S>& comm, Queue<S> queue) {
  Rank<S> rank{comm, queue};
  const auto p = static_cast<std::size_t>(rank.size());
  for (int round = 0; round < 4; ++round) {
    // Parts of 0 to some thousand bytes, with gaps of 3 bytes between them that must stay as they are.
    std::vector<std::uint64_t> sizes(p);
    std::vector<std::uint64_t> offsets(p);
    std::uint64_t end = 3;
    for (std::size_t r = 0; r < p; ++r) {
      sizes[r] = (r * 1711 + static_cast<std::size_t>(round) * 577) % 4001 * (r % 3 == 1 && round % 2 == 0 ? 0 : 1);
      offsets[r] = end;
      end += sizes[r] + 3;
    }
    const auto self = static_cast<std::size_t>(rank.rank());
    const Bytes mine = stamped(sizes[self], rank.rank(), round);
    Bytes expected(end, std::byte{0xee});
    RankMemory<S> apart{mine.size()};
    RankMemory<S> all{end};
    apart.write(queue, mine);
    all.write(queue, expected);
    comm.all_gather_v(queue, apart.view(), sizes, offsets, all.view());
    for (std::size_t r = 0; r < p; ++r) {
      const Bytes part = stamped(sizes[r], static_cast<int>(r), round);
      std::copy(part.begin(), part.end(), expected.begin() + static_cast<std::ptrdiff_t>(offsets[r]));
    }
    Bytes found(end);
    all.read(queue, found);
    require(found == expected, fmt::format("unequal gather, round {}: wrong bytes", round));
  }
}

template <Space S>
void broadcasts_from_every_root(Communicator<S>& comm, Queue<S> queue) {
  Rank<S> rank{comm, queue};
  for (int root = 0; root < rank.size(); ++root) {
    for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{600'001}}) {
      RankMemory<S> memory{size};
      memory.write(queue, stamped(size, rank.rank(), 1));
      comm.broadcast(queue, memory.view(), root);
      Bytes found(size);
      memory.read(queue, found);
      require(found == stamped(size, root, 1), fmt::format("{} bytes of root {} did not arrive", size, root));
    }
  }
}

template <Space S>
void exchanges_one_sided_and_with_itself(Communicator<S>& comm, Queue<S> queue) {
  Rank<S> rank{comm, queue};
  const Bytes mine = stamped(300, rank.rank(), 2);
  require(rank.exchange(rank.rank(), mine, rank.rank(), 300) == mine, "an exchange with itself lost bytes");
  require(comm.traffic().bytes_sent == 0, "an exchange with itself was counted");
  // A chain: rank 0 only sends, the last rank only receives; unused partners are not looked at.
  const bool first = rank.rank() == 0;
  const bool last = rank.rank() == rank.size() - 1;
  const Bytes came =
      rank.exchange(last ? -5 : rank.rank() + 1, last ? Bytes{} : mine, first ? 99 : rank.rank() - 1, first ? 0 : 300);
  require(first || came == stamped(300, rank.rank() - 1, 2), "a chain of exchanges lost bytes");
}

/// Random permutations, sizes and interleaved collectives, the same on every rank because the generator is.
template <Space S>
void survives_random_patterns(Communicator<S>& comm, Queue<S> queue) {
  Rank<S> rank{comm, queue};
  const auto p = static_cast<std::size_t>(rank.size());
  std::mt19937 random{20240607};
  std::vector<int> to(p);
  std::iota(to.begin(), to.end(), 0);
  for (int round = 0; round < 150; ++round) {
    std::shuffle(to.begin(), to.end(), random);
    std::vector<std::size_t> sizes(p);
    for (auto& size : sizes) size = random() % 4 == 0 ? 0 : random() % 5000;
    const auto self = static_cast<std::size_t>(rank.rank());
    const auto from = static_cast<std::size_t>(std::find(to.begin(), to.end(), rank.rank()) - to.begin());
    if (to[self] != rank.rank()) {
      const Bytes came =
          rank.exchange(to[self], stamped(sizes[self], rank.rank(), round), static_cast<int>(from), sizes[from]);
      require(came == stamped(sizes[from], static_cast<int>(from), round), fmt::format("round {}: wrong bytes", round));
    }
    if (random() % 5 == 0) comm.barrier(queue);
    if (random() % 5 == 0) {
      const auto sums = rank.all_reduce(std::vector<float>(random() % 3000, 1.0f), Dtype::f32);
      require(std::all_of(sums.begin(), sums.end(), [&](float x) { return x == static_cast<float>(p); }), "wrong sum");
    }
  }
}

template <Space S>
void agrees_on_maxima(Communicator<S>& comm, Queue<S> queue) {
  const int p = comm.size();
  for (int round = 0; round < 20; ++round) {
    double values[3] = {static_cast<double>(comm.rank()), static_cast<double>(-comm.rank()),
                        round + 0.5 * (comm.rank() == p / 2)};
    comm.agree_max(values);
    require(values[0] == p - 1 && values[1] == 0 && values[2] == round + 0.5, "the maximum over ranks is wrong");
    comm.agree_max({});
    comm.barrier(queue);
  }
}

}  // namespace gradtool::test
