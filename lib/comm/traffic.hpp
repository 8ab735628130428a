#pragma once

#include <bit>
#include <numeric>

#include "lib/comm/communicator.hpp"
#include "lib/core/error.hpp"

/// Bytes that one rank sends in each collective, exactly: what the tests hold the counters to, and what stands in where
/// a library does not say what it sent.
namespace gradtool {

/// The ring reduce-scatter of `elements` elements: every segment but the rank's own. (p-1)/p S when p divides the
/// elements; otherwise within one element of that.
[[nodiscard]] constexpr std::uint64_t ring_reduce_scatter_bytes(std::size_t elements, std::size_t element_bytes,
                                                                int rank, int size) {
  return std::uint64_t{elements - ring_segment(elements, rank, size).count} * element_bytes;
}

/// The ring all-reduce: the reduce-scatter, then every segment but the successor's. 2(p-1)/p S when p divides the
/// elements; otherwise within one element per half of that.
[[nodiscard]] constexpr std::uint64_t ring_all_reduce_bytes(std::size_t elements, std::size_t element_bytes, int rank,
                                                            int size) {
  return ring_reduce_scatter_bytes(elements, element_bytes, rank, size) +
         ring_reduce_scatter_bytes(elements, element_bytes, (rank + 1) % size, size);
}

/// The largest power of two that is at most `size`: the ranks among which recursive doubling goes on.
[[nodiscard]] constexpr int doubling_ranks(int size) {
  return static_cast<int>(std::bit_floor(static_cast<unsigned>(size)));
}

/// Recursive doubling: the view once for each round, and once more to hand the result to a rank that was folded in. A
/// rank that is folded in sends the view once.
[[nodiscard]] constexpr std::uint64_t doubling_all_reduce_bytes(std::size_t bytes, int rank, int size) {
  const int ranks = doubling_ranks(size);
  if (rank >= ranks) return bytes;
  const int rounds = std::countr_zero(static_cast<unsigned>(ranks));
  return std::uint64_t{bytes} * static_cast<std::uint64_t>(rounds + (rank + ranks < size ? 1 : 0));
}

/// The ring all-gather of parts of these sizes: the rank relays every part but its successor's.
[[nodiscard]] inline std::uint64_t ring_all_gather_bytes(std::span<const std::uint64_t> sizes, int rank) {
  const auto next = (static_cast<std::size_t>(rank) + 1) % sizes.size();
  return std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0}) - sizes[next];
}

/// The all-to-all of parts of these sizes: every part but the rank's own.
[[nodiscard]] inline std::uint64_t all_to_all_bytes(std::span<const std::uint64_t> sizes, int rank) {
  return std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0}) - sizes[static_cast<std::size_t>(rank)];
}

/// The chain broadcast: all of it, unless the rank is the last of the chain, the root's predecessor.
[[nodiscard]] constexpr std::uint64_t chain_broadcast_bytes(std::size_t bytes, int root, int rank, int size) {
  return (rank + 1) % size == root ? 0 : bytes;
}

/// Throws Fault::usage unless the parts of an all-gather fit: one size and offset per rank, every part inside `all`.
void check_parts(std::size_t mine, const Parts& parts, std::size_t all, int rank, int size);

/// Throws Fault::usage unless the parts of an all-to-all fit: one size and offset per rank on both sides, every part
/// inside its view, and the rank's own part of one size.
void check_all_to_all(std::size_t out, const Parts& out_parts, std::size_t in, const Parts& in_parts, int rank,
                      int size);

}  // namespace gradtool
