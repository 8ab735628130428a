#include "lib/comm/ring.hpp"

#include <algorithm>

namespace gradtool {

template <Space S>
void RingCommunicator<S>::exchange(Queue<S> queue, int to, ConstBytes out, int from, Bytes in) {
  const auto valid = [this](int other, bool used) { return !used || (other >= 0 && other < size_); };
  expects(valid(to, !out.empty()) && valid(from, !in.empty()), "an exchange names ranks from 0 to size - 1");
  // A rank that exchanges with itself does so on both sides, and nothing goes over the wire.
  const bool out_stays = !out.empty() && to == rank_;
  const bool in_stays = !in.empty() && from == rank_;
  if (out_stays || in_stays) {
    expects(out_stays && in_stays, "a rank that sends to itself also receives from itself");
    expects(out.size() == in.size(), "a rank that sends to itself receives as much as it sends");
    copy_local(queue, in, out);
    return;
  }
  call_ = "exchange";
  send_receive(queue, to, out, from, in);
}

template <Space S>
void RingCommunicator<S>::check_sum(Bytes inout, Dtype dtype, Bytes scratch) const {
  expects(inout.size() % size_of(dtype) == 0, "a sum over ranks needs a whole number of elements");
  expects(scratch.size() >= scratch_bytes(inout.size()), "a sum over ranks got less scratch than scratch_bytes() says");
}

template <Space S>
std::size_t RingCommunicator<S>::scratch_bytes(std::size_t bytes) const {
  if (size_ == 1) return 0;
  return std::max(ring_scratch(bytes), doubles(bytes) ? std::min(bytes, kDoublingPiece) : 0);
}

template <Space S>
auto RingCommunicator<S>::segment(Bytes view, int index, Dtype dtype) const -> Bytes {
  const std::size_t element = size_of(dtype);
  const Segment segment = ring_segment(view.size() / element, index, size_);
  return view.part(segment.first * element, segment.count * element);
}

/// p - 1 hops around the ring: sends part(rank - k), receives part(rank - k - 1) at hop k.
template <Space S>
template <class Part>
void RingCommunicator<S>::relay(Queue<S> queue, Part&& part) {
  for (int hop = 0; hop + 1 < size_; ++hop) {
    send_receive(queue, wrap(rank_ + 1), part(wrap(rank_ - hop)), wrap(rank_ - 1), part(wrap(rank_ - hop - 1)));
  }
}

/// Each segment travels once around the ring and is summed on the way; it ends at the rank of its index.
template <Space S>
void RingCommunicator<S>::reduce_scatter_ring(Queue<S> queue, Bytes inout, Dtype dtype, Bytes scratch) {
  for (int hop = 0; hop + 1 < size_; ++hop) {
    const ConstBytes out = segment(inout, wrap(rank_ - hop - 1), dtype);
    count(out);
    transfer_sum(queue, wrap(rank_ + 1), out, wrap(rank_ - 1), segment(inout, wrap(rank_ - hop - 2), dtype), dtype,
                 scratch);
  }
}

/// Ring reduce-scatter, then ring all-gather (Patarasuk and Yuan, 2009). A finished segment is copied, so every rank
/// ends with the same bits.
template <Space S>
void RingCommunicator<S>::all_reduce_ring(Queue<S> queue, Bytes inout, Dtype dtype, Bytes scratch) {
  reduce_scatter_ring(queue, inout, dtype, scratch);
  relay(queue, [&](int index) { return segment(inout, index, dtype); });
}

/// Recursive doubling among the first q ranks, a power of two; the others are folded in before and told after (Thakur
/// et al. 2005, section 4.4). Both ranks of a pair add the lower rank's sum first, so that they agree in every bit,
/// also in those of a NaN. Works piece by piece, so that the scratch holds one piece.
template <Space S>
void RingCommunicator<S>::all_reduce_doubling(Queue<S> queue, Bytes inout, Dtype dtype, Bytes scratch) {
  const int q = doubling_ranks(size_);
  const bool extra = rank_ >= q;
  const int folded = rank_ + q;  // the rank whose values this one adds before the first round, when it exists
  for (std::size_t first = 0; first < inout.size() && size_ > 1; first += kDoublingPiece) {
    const Bytes piece = inout.part(first, std::min(kDoublingPiece, inout.size() - first));
    if (extra) {
      send_receive(queue, rank_ - q, piece, rank_, {});
      send_receive(queue, rank_, {}, rank_ - q, piece);
      continue;
    }
    const Bytes theirs = scratch.first(piece.size());
    if (folded < size_) {
      send_receive(queue, rank_, {}, folded, theirs);
      sum_local(queue, piece, theirs, dtype);
    }
    for (int distance = 1; distance < q; distance *= 2) {
      const int other = rank_ ^ distance;
      send_receive(queue, other, piece, other, theirs);
      if (rank_ < other) {
        sum_local(queue, piece, theirs, dtype);
      } else {
        sum_local(queue, theirs, piece, dtype);
        copy_local(queue, piece, theirs);
      }
    }
    if (folded < size_) send_receive(queue, folded, piece, rank_, {});
  }
}

template <Space S>
void RingCommunicator<S>::all_reduce_sum(Queue<S> queue, Bytes inout, Dtype dtype, Bytes scratch) {
  check_sum(inout, dtype, scratch);
  begin_collective("all_reduce_sum");
  if (doubles(inout.size())) return all_reduce_doubling(queue, inout, dtype, scratch);
  all_reduce_ring(queue, inout, dtype, scratch);
}

template <Space S>
void RingCommunicator<S>::all_reduce_native(Queue<S> queue, Bytes inout, Dtype dtype, Bytes scratch) {
  check_sum(inout, dtype, scratch);
  begin_collective("all_reduce_native");
  all_reduce_ring(queue, inout, dtype, scratch);
}

template <Space S>
void RingCommunicator<S>::reduce_scatter_sum(Queue<S> queue, Bytes inout, Dtype dtype, Bytes scratch) {
  check_sum(inout, dtype, scratch);
  begin_collective("reduce_scatter_sum");
  reduce_scatter_ring(queue, inout, dtype, scratch);
}

template <Space S>
void RingCommunicator<S>::all_gather(Queue<S> queue, ConstBytes mine, Bytes all) {
  expects(all.size() == mine.size() * static_cast<std::size_t>(size_), "all_gather: `all` is not size() times `mine`");
  begin_collective("all_gather");
  const auto part = [&](int index) { return all.part(static_cast<std::size_t>(index) * mine.size(), mine.size()); };
  copy_local(queue, part(rank_), mine);
  relay(queue, part);
}

template <Space S>
void RingCommunicator<S>::all_gather_v(Queue<S> queue, ConstBytes mine, std::span<const std::uint64_t> sizes,
                                       std::span<const std::uint64_t> offsets, Bytes all) {
  check_parts(mine.size(), {sizes, offsets}, all.size(), rank_, size_);
  begin_collective("all_gather_v");
  const auto part = [&](int index) {
    const auto i = static_cast<std::size_t>(index);
    return all.part(offsets[i], sizes[i]);
  };
  copy_local(queue, part(rank_), mine);
  relay(queue, part);
}

/// p - 1 exchanges. Exchange k sends out(rank + k) to that rank and receives in(rank - k) from that rank.
template <Space S>
template <class Out, class In>
void RingCommunicator<S>::exchange_all(Queue<S> queue, Out&& out, In&& in) {
  copy_local(queue, in(rank_), out(rank_));
  for (int k = 1; k < size_; ++k) {
    const int to = wrap(rank_ + k);
    const int from = wrap(rank_ - k);
    send_receive(queue, to, out(to), from, in(from));
  }
}

template <Space S>
void RingCommunicator<S>::all_to_all(Queue<S> queue, ConstBytes out, Bytes in) {
  const auto ranks = static_cast<std::size_t>(size_);
  expects(out.size() == in.size() && out.size() % ranks == 0,
          "all_to_all: both views hold one part for every rank, all of one size");
  begin_collective("all_to_all");
  const std::size_t part = out.size() / ranks;
  exchange_all(
      queue, [&](int r) { return out.part(static_cast<std::size_t>(r) * part, part); },
      [&](int r) { return in.part(static_cast<std::size_t>(r) * part, part); });
}

template <Space S>
void RingCommunicator<S>::all_to_all_v(Queue<S> queue, ConstBytes out, const Parts& out_parts, Bytes in,
                                       const Parts& in_parts) {
  check_all_to_all(out.size(), out_parts, in.size(), in_parts, rank_, size_);
  begin_collective("all_to_all_v");
  const auto part = [](auto view, const Parts& parts, int rank) {
    const auto r = static_cast<std::size_t>(rank);
    return view.part(parts.offsets[r], parts.sizes[r]);
  };
  exchange_all(
      queue, [&](int r) { return part(out, out_parts, r); }, [&](int r) { return part(in, in_parts, r); });
}

/// The ranks root, root + 1, ... form a chain; each passes on what it has received, one chunk behind its predecessor.
template <Space S>
void RingCommunicator<S>::broadcast(Queue<S> queue, Bytes view, int root) {
  expects(root >= 0 && root < size_, "broadcast: the root is a rank from 0 to size - 1");
  begin_collective("broadcast");
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

template class RingCommunicator<Space::host>;
template class RingCommunicator<Space::cuda>;

}  // namespace gradtool
