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
  stage_ = Stage::exact;
  send_receive(queue, to, out, from, in);
}

template <Space S>
void RingCommunicator<S>::transfer_many(Queue<S> queue, std::span<const Outgoing> out, std::span<const Incoming> in) {
  for (int k = 1; k < size_; ++k) {
    const int to = wrap(rank_ + k);
    const int from = wrap(rank_ - k);
    ConstBytes ours;
    Bytes theirs;
    for (const Outgoing& one : out) {
      if (one.to == to) ours = one.bytes;
    }
    for (const Incoming& one : in) {
      if (one.from == from) theirs = one.bytes;
    }
    if (!(ours.empty() && theirs.empty())) transfer(queue, to, ours, from, theirs);
  }
}

template <Space S>
void RingCommunicator<S>::check_sum(Bytes inout, Dtype dtype, Bytes scratch) const {
  expects(inout.size() % size_of(dtype) == 0, "a sum over ranks needs a whole number of elements");
  expects(scratch.size() >= scratch_bytes(inout.size()), "a sum over ranks got less scratch than scratch_bytes() says");
}

template <Space S>
std::size_t RingCommunicator<S>::scratch_bytes(std::size_t bytes) const {
  if (size_ == 1) return 0;
  if (concentrates()) return bytes;  // the parts of the other ranks, each of a rank's share of the elements
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
  stage_ = Stage::summands;
  hops_ = size_ - 1;
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
  stage_ = Stage::sums;
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

/// Everything goes to rank 0, which adds in the order of ranks and sends the sum to everybody, in pieces of a rank's
/// share, so that the other ranks' pieces fit a scratch of the view's size.
template <Space S>
void RingCommunicator<S>::all_reduce_server(Queue<S> queue, Bytes inout, Dtype dtype, Bytes scratch) {
  const std::size_t element = size_of(dtype);
  const std::size_t each = inout.size() / element / static_cast<std::size_t>(size_) * element;
  hops_ = 1;
  for (std::size_t first = 0; first < inout.size() && size_ > 1; first += each) {
    const Bytes piece = inout.part(first, std::min(each, inout.size() - first));
    stage_ = Stage::summands;
    many_out_.clear();
    many_in_.clear();
    for (int r = 1; r < size_ && rank_ == 0; ++r)
      many_in_.push_back({r, scratch.part(static_cast<std::size_t>(r - 1) * piece.size(), piece.size()), first});
    if (rank_ != 0) many_out_.push_back({0, piece, first});
    send_receive_many(queue);
    for (const Incoming& one : many_in_) sum_local(queue, piece, one.bytes, dtype);

    stage_ = Stage::sums;
    many_out_.clear();
    many_in_.clear();
    for (int r = 1; r < size_ && rank_ == 0; ++r) many_out_.push_back({r, piece, first});
    if (rank_ != 0) many_in_.push_back({0, piece, first});
    send_receive_many(queue);
  }
}

/// Every rank gets its segment from all others at once, adds, and sends the sum to all others at once. Adds in the
/// order of ranks, beginning with its own.
template <Space S>
void RingCommunicator<S>::all_reduce_transpose(Queue<S> queue, Bytes inout, Dtype dtype, Bytes scratch) {
  const auto offset = [&](Bytes part) { return static_cast<std::size_t>(part.data() - inout.data()); };
  const Bytes mine = segment(inout, rank_, dtype);
  stage_ = Stage::summands;
  hops_ = 1;
  many_out_.clear();
  many_in_.clear();
  for (int k = 1; k < size_; ++k) {
    const int to = wrap(rank_ + k);
    many_out_.push_back({to, segment(inout, to, dtype), offset(segment(inout, to, dtype))});
    many_in_.push_back({to, scratch.part(static_cast<std::size_t>(k - 1) * mine.size(), mine.size()), offset(mine)});
  }
  send_receive_many(queue);
  for (const Incoming& one : many_in_) sum_local(queue, mine, one.bytes, dtype);

  stage_ = Stage::sums;
  many_out_.clear();
  many_in_.clear();
  for (int k = 1; k < size_; ++k) {
    const int other = wrap(rank_ + k);
    many_out_.push_back({other, mine, offset(mine)});
    many_in_.push_back({other, segment(inout, other, dtype), offset(segment(inout, other, dtype))});
  }
  send_receive_many(queue);
}

template <Space S>
void RingCommunicator<S>::all_reduce_sum(Queue<S> queue, Bytes inout, Dtype dtype, Bytes scratch) {
  check_sum(inout, dtype, scratch);
  begin_sum("all_reduce_sum", inout, dtype);
  if (concentrates() && concentrates_elements(inout.size() / size_of(dtype), size_)) {
    if (algorithm_ == AllReduce::server) return all_reduce_server(queue, inout, dtype, scratch);
    return all_reduce_transpose(queue, inout, dtype, scratch);
  }
  if (doubles(inout.size())) return all_reduce_doubling(queue, inout, dtype, scratch);
  all_reduce_ring(queue, inout, dtype, scratch);
}

template <Space S>
void RingCommunicator<S>::all_reduce_native(Queue<S> queue, Bytes inout, Dtype dtype, Bytes scratch) {
  check_sum(inout, dtype, scratch);
  begin_sum("all_reduce_native", inout, dtype);
  all_reduce_ring(queue, inout, dtype, scratch);
}

template <Space S>
void RingCommunicator<S>::reduce_scatter_sum(Queue<S> queue, Bytes inout, Dtype dtype, Bytes scratch) {
  check_sum(inout, dtype, scratch);
  begin_sum("reduce_scatter_sum", inout, dtype);
  reduce_scatter_ring(queue, inout, dtype, scratch);
}

template <Space S>
void RingCommunicator<S>::gather(Queue<S> queue, ConstBytes mine, Bytes all, int root) {
  expects(root >= 0 && root < size_, "gather: the root is a rank from 0 to size - 1");
  expects(rank_ != root || all.size() == mine.size() * static_cast<std::size_t>(size_),
          "gather: the root's `all` is not size() times `mine`");
  begin_collective("gather");
  many_out_.clear();
  many_in_.clear();
  if (rank_ != root) many_out_.push_back({root, mine});
  for (int r = 0; r < size_ && rank_ == root; ++r) {
    const Bytes part = all.part(static_cast<std::size_t>(r) * mine.size(), mine.size());
    if (r == root) {
      copy_local(queue, part, mine);
    } else {
      many_in_.push_back({r, part});
    }
  }
  send_receive_many(queue);
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
  many_out_.clear();
  many_in_.clear();
  for (int k = 1; k < size_; ++k) {
    const int to = wrap(rank_ + k);
    const int from = wrap(rank_ - k);
    if (const ConstBytes bytes = out(to); !bytes.empty()) many_out_.push_back({.to = to, .bytes = bytes, .offset = 0});
    if (const Bytes bytes = in(from); !bytes.empty()) many_in_.push_back({.from = from, .bytes = bytes, .offset = 0});
  }
  send_receive_many(queue);
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

/// Ranks of another communicator among themselves, over its transfers: first, first + stride, and so on.
template <Space S>
class RingCommunicator<S>::Group final : public RingCommunicator<S> {
 public:
  Group(RingCommunicator& all, int first, int stride, int size)
      : RingCommunicator{(all.rank_ - first) / stride, size}, all_{all}, first_{first}, stride_{stride} {}

  [[nodiscard]] std::string_view name() const noexcept override { return all_.name(); }
  void barrier(Queue<S> queue) override { all_.barrier(queue); }
  void agree_max(std::span<double> values) override { all_.agree_max(values); }

 protected:
  void transfer(Queue<S> queue, int to, ConstBytes out, int from, Bytes in) override {
    speak();
    all_.transfer(queue, rank_in_all(to), out, rank_in_all(from), in);
  }
  void transfer_sum(Queue<S> queue, int to, ConstBytes out, int from, Bytes inout, Dtype dtype,
                    Bytes scratch) override {
    speak();
    all_.transfer_sum(queue, rank_in_all(to), out, rank_in_all(from), inout, dtype, scratch);
  }
  /// One segment of this group's, where the backend needs any.
  [[nodiscard]] std::size_t ring_scratch(std::size_t bytes) const override {
    if (all_.ring_scratch(bytes) == 0) return 0;
    return std::min(bytes, bytes / static_cast<std::size_t>(this->size()) + sizeof(float));
  }
  void copy_local(Queue<S> queue, Bytes to, ConstBytes from) override { all_.copy_local(queue, to, from); }
  void sum_local(Queue<S> queue, Bytes sum, ConstBytes addend, Dtype dtype) override {
    all_.sum_local(queue, sum, addend, dtype);
  }

 private:
  /// Copies this group's current transfer to `all_`, so that the backend's questions about it are answered for this
  /// group.
  void speak() {
    all_.call_ = this->call_;
    all_.stage_ = this->stage_;
    all_.summed_ = this->summed_;
    all_.summed_type_ = this->summed_type_;
    all_.hops_ = this->hops_;
  }
  [[nodiscard]] int rank_in_all(int rank) const { return first_ + rank * stride_; }

  RingCommunicator& all_;
  int first_, stride_;
};

template <Space S>
void RingCommunicator<S>::set_levels(int node) {
  expects(node >= 1 && size_ % node == 0, "machines share the ranks evenly");
  const int machine = rank_ / node;
  this->inside_ = std::make_unique<Group>(*this, machine * node, 1, node);
  this->across_ = std::make_unique<Group>(*this, rank_ % node, node, size_ / node);
  set_all_reduce(algorithm_);
}

template class RingCommunicator<Space::host>;
template class RingCommunicator<Space::cuda>;

}  // namespace gradtool
