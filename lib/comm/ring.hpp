#pragma once

#include <algorithm>
#include <numeric>

#include "lib/comm/communicator.hpp"
#include "lib/core/error.hpp"

namespace gradtool {

/// Bytes that `rank` of `size` sends in the ring all-reduce of `elements` elements: every segment but one in each half.
/// 2(p-1)/p S when p divides the elements; otherwise within one element per half of that.
[[nodiscard]] constexpr std::uint64_t ring_all_reduce_bytes(std::size_t elements, std::size_t element_bytes, int rank,
                                                            int size) {
  if (size == 1) return 0;
  const auto left_out =
      ring_segment(elements, (rank + 1) % size, size).count + ring_segment(elements, (rank + 2) % size, size).count;
  return std::uint64_t{2 * elements - left_out} * element_bytes;
}

/// Bytes that `rank` sends in the ring all-gather of parts of these sizes: it relays every part but its successor's.
[[nodiscard]] inline std::uint64_t ring_all_gather_bytes(std::span<const std::uint64_t> sizes, int rank) {
  const auto next = (static_cast<std::size_t>(rank) + 1) % sizes.size();
  return std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0}) - sizes[next];
}

/// Bytes that `rank` sends in the chain broadcast: all of it, unless it is the last of the chain, the root's
/// predecessor.
[[nodiscard]] constexpr std::uint64_t chain_broadcast_bytes(std::size_t bytes, int root, int rank, int size) {
  return (rank + 1) % size == root ? 0 : bytes;
}

/// Throws Fault::usage unless the parts of an all-gather fit: one size and offset per rank, every part inside `all`.
void check_parts(std::size_t mine, std::span<const std::uint64_t> sizes, std::span<const std::uint64_t> offsets,
                 std::size_t all, int rank, int size);

/// The collectives as rings over one exchange primitive, so that every backend sends, counts and rounds alike.
///
/// A backend gives `transfer` (both sides of one exchange) and `transfer_sum` (the same, adding what arrives). A
/// transfer is done with `out` when it returns, or when its queue gets there: the caller may then overwrite it.
template <Space S>
class RingCommunicator : public Communicator<S> {
 public:
  using Bytes = View<std::byte, S>;
  using ConstBytes = View<const std::byte, S>;

  [[nodiscard]] int rank() const noexcept final { return rank_; }
  [[nodiscard]] int size() const noexcept final { return size_; }
  void exchange(Queue<S> queue, int to, ConstBytes out, int from, Bytes in) final;
  void all_reduce_sum(Queue<S> queue, Bytes inout, Dtype dtype, Bytes scratch) final;
  void all_gather(Queue<S> queue, ConstBytes mine, Bytes all) final;
  void all_gather_v(Queue<S> queue, ConstBytes mine, std::span<const std::uint64_t> sizes,
                    std::span<const std::uint64_t> offsets, Bytes all) final;
  void broadcast(Queue<S> queue, Bytes view, int root) final;

 protected:
  RingCommunicator(int rank, int size) : rank_{rank}, size_{size} {}

  /// out -> rank `to`, and in <- rank `from`; neither is this rank. An empty side has no partner.
  virtual void transfer(Queue<S> queue, int to, ConstBytes out, int from, Bytes in) = 0;
  /// The same, but inout := inout + what arrives. May use `scratch`, of at least scratch_bytes.
  virtual void transfer_sum(Queue<S> queue, int to, ConstBytes out, int from, Bytes inout, Dtype dtype,
                            Bytes scratch) = 0;
  /// to := from on this rank; nothing happens when they are the same memory.
  virtual void copy_local(Queue<S> queue, Bytes to, ConstBytes from) = 0;

 private:
  /// What a broadcast sends at a time: small enough that a chain of ranks works on one view at once.
  static constexpr std::size_t kBroadcastChunk = S == Space::host ? std::size_t{256} << 10 : std::size_t{4} << 20;

  void count(ConstBytes out) {
    this->traffic_.bytes_sent += out.size();
    this->traffic_.messages_sent += out.empty() ? 0 : 1;
  }
  void send_receive(Queue<S> queue, int to, ConstBytes out, int from, Bytes in) {
    count(out);
    transfer(queue, to, out, from, in);
  }
  [[nodiscard]] int wrap(int rank) const { return (rank + 2 * size_) % size_; }
  template <class Part>
  void relay(Queue<S> queue, int first, Part&& part);

  int rank_;
  int size_;
};

template <Space S>
void RingCommunicator<S>::exchange(Queue<S> queue, int to, ConstBytes out, int from, Bytes in) {
  const auto valid = [this](int other, bool used) { return !used || (other >= 0 && other < size_); };
  expects(valid(to, !out.empty()) && valid(from, !in.empty()), "an exchange names ranks from 0 to size - 1");
  // To itself: both sides or none, and nothing of it is on a wire.
  const bool out_stays = !out.empty() && to == rank_;
  const bool in_stays = !in.empty() && from == rank_;
  if (out_stays || in_stays) {
    expects(out_stays && in_stays, "a rank that sends to itself also receives from itself");
    expects(out.size() == in.size(), "a rank that sends to itself receives as much as it sends");
    copy_local(queue, in, out);
    return;
  }
  send_receive(queue, to, out, from, in);
}

/// p - 1 hops around the ring: sends part(first - k), receives part(first - k - 1) at hop k.
template <Space S>
template <class Part>
void RingCommunicator<S>::relay(Queue<S> queue, int first, Part&& part) {
  for (int hop = 0; hop + 1 < size_; ++hop) {
    send_receive(queue, wrap(rank_ + 1), part(wrap(first - hop)), wrap(rank_ - 1), part(wrap(first - hop - 1)));
  }
}

/// Ring reduce-scatter, then ring all-gather (Patarasuk and Yuan, 2009). Each segment is summed along one path that
/// starts at the rank of its index, and the finished segment is copied, so every rank ends with the same bits.
template <Space S>
void RingCommunicator<S>::all_reduce_sum(Queue<S> queue, Bytes inout, Dtype dtype, Bytes scratch) {
  const std::size_t element = size_of(dtype);
  expects(inout.size() % element == 0, "all_reduce_sum: the view holds no whole number of elements");
  expects(scratch.size() >= this->scratch_bytes(inout.size()), "all_reduce_sum: scratch is smaller than scratch_bytes");
  ++this->traffic_.collectives;
  const auto part = [&](int index) {
    const Segment segment = ring_segment(inout.size() / element, index, size_);
    return inout.part(segment.first * element, segment.count * element);
  };
  for (int hop = 0; hop + 1 < size_; ++hop) {
    const ConstBytes out = part(wrap(rank_ - hop));
    count(out);
    transfer_sum(queue, wrap(rank_ + 1), out, wrap(rank_ - 1), part(wrap(rank_ - hop - 1)), dtype, scratch);
  }
  relay(queue, wrap(rank_ + 1), part);
}

template <Space S>
void RingCommunicator<S>::all_gather(Queue<S> queue, ConstBytes mine, Bytes all) {
  expects(all.size() == mine.size() * static_cast<std::size_t>(size_), "all_gather: `all` is not size() times `mine`");
  ++this->traffic_.collectives;
  const auto part = [&](int index) { return all.part(static_cast<std::size_t>(index) * mine.size(), mine.size()); };
  copy_local(queue, part(rank_), mine);
  relay(queue, rank_, part);
}

template <Space S>
void RingCommunicator<S>::all_gather_v(Queue<S> queue, ConstBytes mine, std::span<const std::uint64_t> sizes,
                                       std::span<const std::uint64_t> offsets, Bytes all) {
  check_parts(mine.size(), sizes, offsets, all.size(), rank_, size_);
  ++this->traffic_.collectives;
  const auto part = [&](int index) {
    const auto i = static_cast<std::size_t>(index);
    return all.part(offsets[i], sizes[i]);
  };
  copy_local(queue, part(rank_), mine);
  relay(queue, rank_, part);
}

/// Root, root + 1, ... each pass on what they have received, one chunk behind.
template <Space S>
void RingCommunicator<S>::broadcast(Queue<S> queue, Bytes view, int root) {
  expects(root >= 0 && root < size_, "broadcast: the root is a rank from 0 to size - 1");
  ++this->traffic_.collectives;
  if (size_ == 1 || view.empty()) return;
  const bool sends = wrap(rank_ + 1) != root;
  const bool receives = rank_ != root;
  const std::size_t chunks = (view.size() + kBroadcastChunk - 1) / kBroadcastChunk;
  const auto part = [&](std::size_t chunk) {
    const std::size_t first = chunk * kBroadcastChunk;
    return view.part(first, std::min(kBroadcastChunk, view.size() - first));
  };
  for (std::size_t step = 0; step <= chunks; ++step) {
    const ConstBytes out = sends && step > 0 ? part(step - 1) : ConstBytes{};
    const Bytes in = receives && step < chunks ? part(step) : Bytes{};
    send_receive(queue, wrap(rank_ + 1), out, wrap(rank_ - 1), in);
  }
}

}  // namespace gradtool
