#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "lib/comm/transport_counts.hpp"
#include "lib/core/dtype.hpp"
#include "lib/core/error.hpp"
#include "lib/core/view.hpp"
#include "lib/core/words.hpp"

namespace gradtool {

/// The bytes and messages that one rank has sent. The communicator counts them, not the codec, so that the figures are
/// independent of what a codec claims about itself.
struct Traffic {
  std::uint64_t bytes_sent = 0;
  std::uint64_t messages_sent = 0;  ///< NCCL's messages are not visible, so there it is one for each call
  std::uint64_t collectives = 0;    ///< calls of collectives; exchange, send and recv count as messages only

  Traffic& operator+=(const Traffic& other) {
    bytes_sent += other.bytes_sent;
    messages_sent += other.messages_sent;
    collectives += other.collectives;
    return *this;
  }
};

/// Which ranks a call is among, where ranks share machines (Communicator::set_levels).
enum class Level : std::uint8_t {
  whole,   ///< all ranks
  inside,  ///< the ranks of one machine
  across,  ///< one rank of every machine
};
constexpr auto spellings(Level) {
  return words("whole", "inside", "across");
}

/// Parts of a buffer, one for each rank: the part of rank r is the `sizes[r]` bytes from byte `offsets[r]` on.
struct Parts {
  std::span<const std::uint64_t> sizes;
  std::span<const std::uint64_t> offsets;
};

/// How all_reduce_sum adds. With S bytes and p ranks, ring: 2(p-1) messages and 2(p-1)/p S bytes a rank; doubling:
/// ceil(log2 p) messages of S bytes. A message of b bytes takes alpha + b / beta, so that doubling is faster below
///   alpha beta (2(p-1) - log2 p) / (log2 p - 2(p-1)/p)  bytes:
/// 47 to 180 kB for 4 to 64 ranks on 1 Gbit/s Ethernet (alpha = 50 us), more on faster networks; with 2 ranks always.
enum class AllReduce : std::uint8_t {
  ring,       ///< reduce-scatter, then all-gather, around a ring (Patarasuk and Yuan, 2009)
  doubling,   ///< recursive doubling (Thakur, Rabenseifner and Gropp, 2005)
  automatic,  ///< doubling up to kDoublingMost bytes, ring above
  server,     ///< to rank 0, which adds and sends the sum to all: 2 S a rank, 2(p-1) S at rank 0 (a parameter server)
  transpose,  ///< to the rank of each segment, which adds and sends the sum to all: 2(p-1)/p S, all pairs at once
};
constexpr auto spellings(AllReduce) {
  return words("ring", "doubling", "auto", "server", "transpose");
}
inline constexpr std::size_t kDoublingMost = std::size_t{64} << 10;
/// `server` and `transpose` are for views of p^2 elements and more, so that what comes in at once fits a scratch of the
/// view's size. Smaller views go around the ring.
[[nodiscard]] constexpr bool concentrates_elements(std::size_t elements, int ranks) {
  return elements >= static_cast<std::size_t>(ranks) * static_cast<std::size_t>(ranks);
}

/// A tensor in a view that is summed.
struct SummedTensor {
  std::size_t elements = 0;
  double depth = 0.0;  ///< share of the model's elements in tensors before it, from the input side, 0 to 1
};

/// The collectives that gradient reduction needs, over ranks that are threads, MPI processes or GPUs.
///
/// Every call is collective: all ranks make the same calls with matching sizes, in the same order. On the host a call
/// has finished its work when it returns; with Space::cuda the work is enqueued on `queue`, and the views must stay
/// alive until the stream has done it. When a rank fails, the calls of the others throw Fault::backend naming that
/// rank; no call waits for ever. Views and sizes that break a precondition throw Fault::internal.
///
/// Bytes are those that one rank sends. With S the bytes of the view and p ranks, a call costs, per rank
/// (docs/measuring.md): all-reduce on the ring 2(p-1)/p S, reduce-scatter (p-1)/p S, all-gather of parts s the sum of
/// the p-1 parts that the rank relays, gather S for each rank but the root, all-to-all the p-1 parts for others,
/// broadcast S for each rank but the last of the chain. The exact counts, also where p does not divide the elements,
/// are functions in lib/comm/traffic.hpp. What a library does by itself (NCCL's calls, all_reduce_native) is counted by
/// the same formulas, whatever it really does.
///
/// One thread at a time uses a communicator. Nothing is allocated by a call on the host that does not throw. The views
/// of one call do not overlap unless it says so.
template <Space S>
class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  [[nodiscard]] virtual int rank() const noexcept = 0;
  [[nodiscard]] virtual int size() const noexcept = 0;
  [[nodiscard]] virtual std::string_view name() const noexcept = 0;  ///< threads, mpi, udp, nccl, loopback

  /// Sends `out` to rank `to` while receiving `in` from rank `from`; both sides of a message know its size. When a view
  /// is empty, nothing is sent or received on that side and its rank is ignored. A rank that exchanges with itself
  /// copies, which is not counted.
  virtual void exchange(Queue<S> queue, int to, View<const std::byte, S> out, int from, View<std::byte, S> in) = 0;

  /// The two halves of an exchange: what one rank sends, the other must receive, and both know the size. A send may
  /// return only once the other rank receives, so two ranks that both send first would wait for each other for ever;
  /// they call exchange instead. Nothing happens for an empty view. A rank does not send to itself.
  void send(Queue<S> queue, int to, View<const std::byte, S> out) { exchange(queue, to, out, to, {}); }
  void recv(Queue<S> queue, int from, View<std::byte, S> in) { exchange(queue, from, {}, from, in); }

  /// inout := element-wise sum over ranks. f32 sums in float32; f16 and bf16 are widened, added in float32 and rounded
  /// to nearest even at every addition. `scratch` holds at least `scratch_bytes(inout.size())` bytes. Every rank ends
  /// with the same bits. inout.size() is a multiple of size_of(dtype); inout and scratch are aligned to the element.
  /// The sums use queue.pool. The order of additions (NCCL has one of its own):
  ///   ring: segment s of ring_segment in the order of ranks s + 1, s + 2, ..., s, as reduce_scatter_sum;
  ///   doubling: q is the largest power of two up to p. Rank q + i is added to rank i, then ranks i and i XOR 2^k add
  ///     each other's sums for k = 0, 1, ..., the lower rank's first, and rank i hands the result back to q + i.
  ///   server: 0, 1, ..., p - 1.   transpose: segment s in the order of ranks s, s + 1, ..., s - 1.
  virtual void all_reduce_sum(Queue<S> queue, View<std::byte, S> inout, Dtype dtype, View<std::byte, S> scratch) = 0;

  /// Sums by the library's own all-reduce, for the uncompressed baseline: MPI_Allreduce (for f32, the only one of our
  /// types that MPI has) or ncclAllReduce. Threads and loopback have no such library and use the ring. The order of
  /// additions is the library's; every rank ends with the same bits. Bytes are counted by the ring's formula, as one
  /// message when the library sends.
  virtual void all_reduce_native(Queue<S> queue, View<std::byte, S> inout, Dtype dtype, View<std::byte, S> scratch) = 0;

  /// Segment ring_segment(elements, rank(), size()) of inout := its sum over ranks; the other segments are left
  /// unspecified. On the ring, segment s is summed in the order of ranks s + 1, s + 2, ..., s: an all_gather_v of the
  /// segments afterwards gives the bits of all_reduce_sum. Views as for all_reduce_sum.
  virtual void reduce_scatter_sum(Queue<S> queue, View<std::byte, S> inout, Dtype dtype,
                                  View<std::byte, S> scratch) = 0;

  /// all.size() == size() * mine.size() on rank `root`, where rank r's bytes land at r * mine.size(); the other ranks'
  /// `all` is ignored. All ranks send at once, where the library can.
  virtual void gather(Queue<S> queue, View<const std::byte, S> mine, View<std::byte, S> all, int root) = 0;

  /// all.size() == size() * mine.size(); rank r's bytes land at r * mine.size(). `mine` may be that part of `all`.
  virtual void all_gather(Queue<S> queue, View<const std::byte, S> mine, View<std::byte, S> all) = 0;

  /// Parts of unequal size: rank r's `sizes[r]` bytes land at `offsets[r]` of `all`. sizes[rank()] == mine.size().
  virtual void all_gather_v(Queue<S> queue, View<const std::byte, S> mine, std::span<const std::uint64_t> sizes,
                            std::span<const std::uint64_t> offsets, View<std::byte, S> all) = 0;

  /// Part r of `out` goes to rank r, which finds it as part rank() of its `in`. Both views hold size() equal parts. All
  /// messages are on their way at once, where the library can; else there are p - 1 exchanges, with rank() + 1 and
  /// rank() - 1, then + 2 and - 2, and so on. The own part is copied, not counted.
  virtual void all_to_all(Queue<S> queue, View<const std::byte, S> out, View<std::byte, S> in) = 0;

  /// Exchanges parts of unequal size, which may be empty. The part of rank a's `out` for rank b has the size of the
  /// part of rank b's `in` from rank a.
  virtual void all_to_all_v(Queue<S> queue, View<const std::byte, S> out, const Parts& out_parts, View<std::byte, S> in,
                            const Parts& in_parts) = 0;

  /// view := the view of rank `root`.
  virtual void broadcast(Queue<S> queue, View<std::byte, S> view, int root) = 0;

  /// Bytes of scratch that a sum over ranks needs for a view of `bytes`; at most `bytes`, and 0 when no scratch is
  /// needed. The ring needs one segment, the others more.
  [[nodiscard]] virtual std::size_t scratch_bytes(std::size_t bytes) const = 0;

  /// Chooses how all_reduce_sum adds; the ring until this is called. Every rank makes the same choice. Throws
  /// Fault::usage for all others when the library chooses by itself (NCCL).
  virtual void set_all_reduce(AllReduce algorithm) = 0;

  /// Takes `node` ranks for a machine: rank r is number r % node on machine r / node. `node` divides size(). Afterwards
  /// inside() and across() are there, until the next such call. Every rank makes the same call, which is not timed.
  virtual void set_levels(int node) = 0;
  /// Calls set_levels unless it has these levels already.
  void ensure_levels(int node) {
    if (!has_levels() || inside().size() != node) set_levels(node);
  }
  /// The ranks of this rank's machine, in their order; and those that have this rank's number on their machines, in the
  /// order of machines. They are communicators of their own, which make calls at the same time as others of their kind,
  /// except for barrier and agree_max, which stay those of all ranks. Fault::internal before set_levels.
  [[nodiscard]] virtual Communicator& inside() const {
    expects(inside_ != nullptr, "a communicator has levels once set_levels has made them");
    return *inside_;
  }
  [[nodiscard]] virtual Communicator& across() const {
    expects(across_ != nullptr, "a communicator has levels once set_levels has made them");
    return *across_;
  }
  [[nodiscard]] virtual bool has_levels() const noexcept { return inside_ != nullptr; }

  /// Says what the elements of the views are that the following sums add, as far as they have as many elements as
  /// `tensors` have together; others are of no tensor. Empty: nothing is known. For transports that treat layers
  /// differently; no other looks at it. Every rank makes the same calls.
  virtual void describe(std::span<const SummedTensor> tensors) { static_cast<void>(tensors); }

  /// Announces that collectives will work in `memory` until it is released, so that a library can prepare it (NCCL
  /// registers it). At most one memory at a time is registered, and it is released before it is freed. Every rank makes
  /// the same calls.
  virtual void register_memory(View<std::byte, S> memory) { static_cast<void>(memory); }
  virtual void release_memory() noexcept {}

  /// Waits until every rank has called it; with Space::cuda, until the work on `queue` is done as well. It serves the
  /// harness and is not counted.
  virtual void barrier(Queue<S> queue) = 0;

  /// values := their maximum over ranks, element by element; the values must not be NaN. It serves the harness, outside
  /// of what is measured, and is not counted.
  virtual void agree_max(std::span<double> values) = 0;

  /// The counts of this rank's packets, if the backend sends packets itself; otherwise null.
  [[nodiscard]] virtual const TransportCounts* transport() const noexcept { return nullptr; }
  virtual void reset_transport() noexcept {}

  /// Since the last reset, on all levels.
  [[nodiscard]] Traffic traffic() const noexcept {
    Traffic all = traffic_;
    for (const auto* level : {inside_.get(), across_.get()}) {
      if (level != nullptr) all += level->traffic();
    }
    return all;
  }
  void reset_traffic() noexcept {
    traffic_ = {};
    for (auto* level : {inside_.get(), across_.get()}) {
      if (level != nullptr) level->reset_traffic();
    }
  }

 protected:
  Communicator() = default;
  Traffic traffic_;  ///< without that of the levels
  std::unique_ptr<Communicator> inside_, across_;
};

/// Element range of ring segment `index` of `count` in a view of `elements`: segments differ by at most one element.
struct Segment {
  std::size_t first = 0;
  std::size_t count = 0;
};
[[nodiscard]] constexpr Segment ring_segment(std::size_t elements, int index, int count) {
  const auto i = static_cast<std::size_t>(index);
  const auto p = static_cast<std::size_t>(count);
  const std::size_t first = elements * i / p;
  return {first, elements * (i + 1) / p - first};
}

/// Registers memory with a communicator for as long as this object lives. Declare it after the owner of the memory, so
/// that the memory is released before it is freed.
template <Space S>
class RegisteredMemory {
 public:
  RegisteredMemory() = default;
  RegisteredMemory(Communicator<S>& comm, View<std::byte, S> memory) : comm_{&comm} { comm.register_memory(memory); }
  RegisteredMemory(RegisteredMemory&& other) noexcept : comm_{std::exchange(other.comm_, nullptr)} {}
  RegisteredMemory& operator=(RegisteredMemory&& other) noexcept {
    std::swap(comm_, other.comm_);
    return *this;
  }
  ~RegisteredMemory() {
    if (comm_ != nullptr) comm_->release_memory();
  }

 private:
  Communicator<S>* comm_ = nullptr;
};

}  // namespace gradtool
