#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "lib/core/dtype.hpp"
#include "lib/core/view.hpp"

namespace gradtool {

/// What one rank has put on the wire. Counted by the communicator, so that a codec cannot flatter itself.
struct Traffic {
  std::uint64_t bytes_sent = 0;
  std::uint64_t messages_sent = 0;  ///< with NCCL one per call
  std::uint64_t collectives = 0;    ///< all-reduces, gathers and broadcasts; an exchange is a message
};

/// The collectives that gradient reduction needs, over ranks that are threads, MPI processes or GPUs.
///
/// Every call is collective: all ranks make the same calls with matching sizes, in the same order. On the host a call
/// is done on return; with Space::cuda it is enqueued on `queue` and the views must stay alive until the stream gets
/// there. When a rank fails, the calls of the others throw Fault::backend naming that rank; none hangs.
///
/// Bytes are those that one rank sends. With S the bytes of the view and p ranks, the rings here cost, per rank
/// (docs/measuring.md): all-reduce 2(p-1)/p S, reduce-scatter (p-1)/p S, all-gather of parts s the sum of the p-1 parts
/// that the rank relays, broadcast S for each rank but the last of the chain. The exact counts, also where p does not
/// divide the elements, are functions in lib/comm/ring.hpp. NCCL's calls are counted by the same formulas, whatever it
/// really does.
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
  [[nodiscard]] virtual std::string_view name() const noexcept = 0;  ///< threads, mpi, nccl, loopback

  /// Sends `out` to rank `to` while receiving `in` from rank `from`; sizes are known to both sides. An empty side has
  /// no partner: its rank is not looked at, and that rank does not take part for it. To and from itself is a copy, not
  /// counted.
  virtual void exchange(Queue<S> queue, int to, View<const std::byte, S> out, int from, View<std::byte, S> in) = 0;

  /// inout := element-wise sum over ranks. f32 sums in float32; f16 and bf16 are widened, added in float32 and rounded
  /// to nearest even at every hop. `scratch` holds at least `scratch_bytes(inout.size())` bytes. Every rank ends with
  /// the same bits. inout.size() is a multiple of size_of(dtype); inout and scratch are aligned to the element. Segment
  /// s of ring_segment is summed in the order of ranks s, s + 1, ... (NCCL: in an order of its own). The sums use
  /// queue.pool.
  virtual void all_reduce_sum(Queue<S> queue, View<std::byte, S> inout, Dtype dtype, View<std::byte, S> scratch) = 0;

  /// all.size() == size() * mine.size(); rank r's bytes land at r * mine.size(). `mine` may be that part of `all`.
  virtual void all_gather(Queue<S> queue, View<const std::byte, S> mine, View<std::byte, S> all) = 0;

  /// Parts of unequal size: rank r's `sizes[r]` bytes land at `offsets[r]` of `all`. sizes[rank()] == mine.size().
  virtual void all_gather_v(Queue<S> queue, View<const std::byte, S> mine, std::span<const std::uint64_t> sizes,
                            std::span<const std::uint64_t> offsets, View<std::byte, S> all) = 0;

  /// view := the root's view.
  virtual void broadcast(Queue<S> queue, View<std::byte, S> view, int root) = 0;

  /// Scratch that all_reduce_sum needs for a view of `bytes`: at most one ring segment; 0 where it can do without.
  [[nodiscard]] virtual std::size_t scratch_bytes(std::size_t bytes) const = 0;

  /// Waits until every rank is here. With Space::cuda, after the work on `queue`. Not counted: it is for the harness.
  virtual void barrier(Queue<S> queue) = 0;

  /// values := their maximum over ranks, element by element; no NaNs. Out of band for the harness; not counted, not
  /// timed.
  virtual void agree_max(std::span<double> values) = 0;

  [[nodiscard]] const Traffic& traffic() const noexcept { return traffic_; }
  void reset_traffic() noexcept { traffic_ = {}; }

 protected:
  Communicator() = default;
  Traffic traffic_;
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

}  // namespace gradtool
