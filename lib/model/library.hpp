#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lib/core/words.hpp"

namespace gradtool {

struct Link;
struct Network;

/// The library that carries a job's collectives. It decides which algorithm a collective takes, and with it how many
/// messages wait for each other; bytes differ little.
enum class Library : std::uint8_t {
  best,  ///< the best known algorithms, whatever the library
  nccl,  ///< all-reduces by rings and double trees, everything else by rings
  gloo,  ///< PyTorch's library for CPUs: rings of chunks of which two are under way
  mpi,   ///< Open MPI: recursive doubling for small vectors, rings for large ones
  hook,  ///< gradtool's own rings and recursive doubling over send and receive, as ddp_hook sends them
};
constexpr auto spellings(Library) {
  return words("best", "nccl", "gloo", "mpi", "hook");
}

/// The words of the column `library`: the name, and for the hook what its messages ride, as "hook over gloo".
[[nodiscard]] std::string library_text(const Network& network);
/// Sets what library_text() said. Throws Fault::data for any other text.
void set_library(Network& network, std::string_view text);

/// The cost of one collective. `messages`: those that a rank sends, of the rank that sends most. `vectors`: of an
/// all-reduce that sends whole vectors, so many; 0: it sends shards, as a ring does.
struct CollectiveCost {
  double seconds = 0.0, messages = 0.0, vectors = 0.0;
  CollectiveCost operator+(const CollectiveCost& other) const {
    return {seconds + other.seconds, messages + other.messages, vectors + other.vectors};
  }
  CollectiveCost operator*(double times) const { return {times * seconds, times * messages, times * vectors}; }
};

/// Latencies that a message takes between two ranks that have just come to it. gloo's sender waits until the receiver
/// has told it that its buffer is there (Pair::send and Pair::recv in gloo/transport/tcp/pair.cc): one there, one back.
[[nodiscard]] double latencies_of_message(const Network& network);

// One collective among p >= 1 ranks by a library that is not `best`. S: bytes of the vector, or of the view; s: bytes
// of one rank's part; a: the latency and b the rate of a link; h: latencies_of_message(). Only NCCL knows machines.
// Around the rings of the others neighbours are consecutive ranks, so that the slowest link decides and carries one
// rank's messages.
//
// nccl (Jeaugey 2019, "Scale your deep learning training with NCCL 2.4"; Hu et al. 2025, "Demystifying NCCL"):
//   all-reduce: reduce-scatter and all-gather inside machines; across the smaller of ring, 2(p-1) a + 2(p-1)/p S/b, and
//   double tree, 2 ceil(log2 p) a + 2 S/b; the others go round a ring, (p-1) a and (p-1) s/b, (p-1)/p S/b or S/b.
// gloo (gloo/allreduce.cc, allgather.cc, broadcast.cc; gloo::allreduce takes the ring unless told otherwise):
//   all-reduce: S is cut into n = max(ceil(S / 1 MiB), 2p) segments, n rounded up to a multiple of p. Reduce-scatter
//   and all-gather send m = (p-1) n/p of them each, two under way, so that a phase takes the longer of 2a + m t, where
//   the link never rests, and ceil(m/2) (2a + t) + (t where m is even), where every pair waits for the receiver's note;
//   t = S/(n b). A reduce-scatter is one such phase. all-gather: m = 2(p-1) halves of parts, likewise. broadcast: a
//   binomial tree whose inner ranks send to all of their children at once, with d = ceil(log2 p): (d+1) a + d(d+1)/2
//   S/b.
// mpi (Open MPI up to 4.0, coll_tuned_decision_fixed.c; later versions choose from tables):
//   all-reduce: recursive doubling below 10,000 bytes, else a ring, its first half in segments of 1 MiB at most;
//   all-gather: ceil(log2 p) messages where all parts are below 50,000 bytes, else p/2 (p even: neighbour exchange) or
//   p-1; reduce-scatter: recursive halving up to 12 KiB, up to 256 KiB where p is a power of two, else a ring;
//   broadcast: as the best known.
// hook (lib/comm/ring.hpp, AllReduce::automatic):
//   all-reduce: recursive doubling up to kDoublingMost bytes, else the ring; all-gather and reduce-scatter: rings;
//   broadcast: a chain, chunk by chunk.
[[nodiscard]] CollectiveCost library_all_reduce(const Network& network, double p, double bytes);
[[nodiscard]] CollectiveCost library_reduce_scatter(const Network& network, double p, double bytes);
[[nodiscard]] CollectiveCost library_all_gather(const Network& network, double p, double part);
[[nodiscard]] CollectiveCost library_broadcast(const Network& network, double p, double bytes);

/// ceil(log2 p), also where p is a fraction; 0 up to 1.
[[nodiscard]] double steps_of_doubling(double p);
/// Recursive doubling of the whole vector, first inside machines. Ranks beyond the largest power of two are folded in
/// before and told after.
[[nodiscard]] CollectiveCost doubling(const Network& network, double p, double bytes);
/// The smallest one, on one link, of recursive halving and doubling, 2 ceil(log2 p) a + 2(p-1)/p S/b (Thakur et al.
/// 2005); recursive doubling of the whole vector, ceil(log2 p) (a + S/b), where p is no power of two with one step
/// more; and an all-gather of all vectors, which every rank adds, ceil(log2 p) a + (p-1) S/b.
[[nodiscard]] CollectiveCost best_all_reduce(const Link& link, double p, double bytes);
/// The smaller one of ring and pipelined double tree, on one link.
[[nodiscard]] CollectiveCost ring_or_tree(const Link& link, double p, double bytes);

}  // namespace gradtool
