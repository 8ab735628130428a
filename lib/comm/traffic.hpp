#pragma once

#include <bit>
#include <numeric>

#include "lib/comm/communicator.hpp"
#include "lib/core/error.hpp"

/// The exact number of bytes that one rank sends in each collective. Tests compare the counters of the communicators
/// with these functions, and communicators whose library does not say what it sent (NCCL, MPI_Allreduce) count by them.
/// `rank` is the rank that sends, `size` the number of ranks p, S the bytes of the view.
namespace gradtool {

/// Ring reduce-scatter of `elements` elements: a rank sends every segment but its own. That is (p-1)/p S when p divides
/// the elements, and within one element of it otherwise.
[[nodiscard]] constexpr std::uint64_t ring_reduce_scatter_bytes(std::size_t elements, std::size_t element_bytes,
                                                                int rank, int size) {
  return std::uint64_t{elements - ring_segment(elements, rank, size).count} * element_bytes;
}

/// Ring all-reduce: the reduce-scatter above, then an all-gather in which a rank sends every segment but that of the
/// next rank. That is 2(p-1)/p S when p divides the elements, and within two elements of it otherwise.
[[nodiscard]] constexpr std::uint64_t ring_all_reduce_bytes(std::size_t elements, std::size_t element_bytes, int rank,
                                                            int size) {
  return ring_reduce_scatter_bytes(elements, element_bytes, rank, size) +
         ring_reduce_scatter_bytes(elements, element_bytes, (rank + 1) % size, size);
}

/// The largest power of two that is at most `size`. Recursive doubling runs among that many ranks; the remaining ones
/// send their view to one of them first and receive the result from it last.
[[nodiscard]] constexpr int doubling_ranks(int size) {
  return static_cast<int>(std::bit_floor(static_cast<unsigned>(size)));
}

/// All-reduce by recursive doubling: a rank sends the view once in each round, and once more when it hands the result
/// to one of the remaining ranks. A remaining rank sends its view once.
[[nodiscard]] constexpr std::uint64_t doubling_all_reduce_bytes(std::size_t bytes, int rank, int size) {
  const int ranks = doubling_ranks(size);
  if (rank >= ranks) return bytes;
  const int rounds = std::countr_zero(static_cast<unsigned>(ranks));
  return std::uint64_t{bytes} * static_cast<std::uint64_t>(rounds + (rank + ranks < size ? 1 : 0));
}

/// All-reduce through rank 0: the other ranks send the view once, rank 0 sends the sum to each of them.
[[nodiscard]] constexpr std::uint64_t server_all_reduce_bytes(std::size_t bytes, int rank, int size) {
  return size == 1 ? 0 : rank == 0 ? std::uint64_t{bytes} * static_cast<std::uint64_t>(size - 1) : bytes;
}

/// All-reduce by segments: a rank sends every segment but its own, and the sum of its own to all others.
[[nodiscard]] constexpr std::uint64_t transpose_all_reduce_bytes(std::size_t elements, std::size_t element_bytes,
                                                                 int rank, int size) {
  return ring_reduce_scatter_bytes(elements, element_bytes, rank, size) +
         std::uint64_t{ring_segment(elements, rank, size).count} * element_bytes * static_cast<std::uint64_t>(size - 1);
}

/// Ring all-gather of parts of these sizes: a rank passes on every part but that of the next rank, which has it.
[[nodiscard]] inline std::uint64_t ring_all_gather_bytes(std::span<const std::uint64_t> sizes, int rank) {
  const auto next = (static_cast<std::size_t>(rank) + 1) % sizes.size();
  return std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0}) - sizes[next];
}

/// All-to-all of parts of these sizes: a rank sends every part but its own.
[[nodiscard]] inline std::uint64_t all_to_all_bytes(std::span<const std::uint64_t> sizes, int rank) {
  return std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0}) - sizes[static_cast<std::size_t>(rank)];
}

/// Broadcast along the chain root, root + 1, ...: every rank passes the view on, except the last one, whose next rank
/// is the root.
[[nodiscard]] constexpr std::uint64_t chain_broadcast_bytes(std::size_t bytes, int root, int rank, int size) {
  return (rank + 1) % size == root ? 0 : bytes;
}

/// Throws Fault::internal unless `parts` names one size and one offset for each of `size` ranks and every part lies
/// inside a buffer of `bytes` bytes.
inline void check_parts_inside(const Parts& parts, std::size_t bytes, int size) {
  const auto ranks = static_cast<std::size_t>(size);
  expects(parts.sizes.size() == ranks && parts.offsets.size() == ranks,
          "parts of a buffer need one size and one offset for every rank");
  for (std::size_t r = 0; r < ranks; ++r) {
    expects(parts.offsets[r] <= bytes && parts.sizes[r] <= bytes - parts.offsets[r],
            "a rank's part lies outside of its buffer");
  }
}

/// Throws Fault::internal unless the arguments of all_gather_v fit together: `parts` lie inside the `all` bytes of the
/// result, and this rank's part has the `mine` bytes that it contributes.
inline void check_parts(std::size_t mine, const Parts& parts, std::size_t all, int rank, int size) {
  check_parts_inside(parts, all, size);
  expects(parts.sizes[static_cast<std::size_t>(rank)] == mine,
          "all_gather_v: this rank's size is not that of its view");
}

/// Throws Fault::internal unless the arguments of all_to_all_v fit together: both sets of parts lie inside their views
/// of `out` and `in` bytes, and the part that a rank keeps for itself has the same size on both sides.
inline void check_all_to_all(std::size_t out, const Parts& out_parts, std::size_t in, const Parts& in_parts, int rank,
                             int size) {
  check_parts_inside(out_parts, out, size);
  check_parts_inside(in_parts, in, size);
  const auto self = static_cast<std::size_t>(rank);
  expects(out_parts.sizes[self] == in_parts.sizes[self],
          "all_to_all_v: a rank's part for itself has one size on both sides");
}

}  // namespace gradtool
