#pragma once

#include <vector>

#include "lib/comm/traffic.hpp"

namespace gradtool {

/// All collectives, built on one primitive for exchanging views, so that every backend sends, counts and rounds alike.
/// They run around a ring; sums take the way that set_all_reduce asks for.
///
/// A backend implements `transfer` (both sides of one exchange), `transfer_sum` (the same, adding what arrives) and the
/// copies and sums that stay on one rank. After a transfer has returned, or on a GPU after its queue has passed it, the
/// caller may overwrite `out`.
template <Space S>
class RingCommunicator : public Communicator<S> {
 public:
  using Bytes = View<std::byte, S>;
  using ConstBytes = View<const std::byte, S>;

  [[nodiscard]] int rank() const noexcept final { return rank_; }
  [[nodiscard]] int size() const noexcept final { return size_; }
  void exchange(Queue<S> queue, int to, ConstBytes out, int from, Bytes in) final;
  void all_reduce_sum(Queue<S> queue, Bytes inout, Dtype dtype, Bytes scratch) final;
  /// The ring, whatever set_all_reduce said, unless the backend has a library of its own.
  void all_reduce_native(Queue<S> queue, Bytes inout, Dtype dtype, Bytes scratch) override;
  void reduce_scatter_sum(Queue<S> queue, Bytes inout, Dtype dtype, Bytes scratch) final;
  void gather(Queue<S> queue, ConstBytes mine, Bytes all, int root) final;
  void all_gather(Queue<S> queue, ConstBytes mine, Bytes all) final;
  void all_gather_v(Queue<S> queue, ConstBytes mine, std::span<const std::uint64_t> sizes,
                    std::span<const std::uint64_t> offsets, Bytes all) final;
  void all_to_all(Queue<S> queue, ConstBytes out, Bytes in) final;
  void all_to_all_v(Queue<S> queue, ConstBytes out, const Parts& out_parts, Bytes in, const Parts& in_parts) final;
  void broadcast(Queue<S> queue, Bytes view, int root) final;
  [[nodiscard]] std::size_t scratch_bytes(std::size_t bytes) const final;
  /// On the levels, too.
  void set_all_reduce(AllReduce algorithm) final {
    algorithm_ = algorithm;
    for (auto* level : {this->inside_.get(), this->across_.get()}) {
      if (level != nullptr) level->set_all_reduce(algorithm);
    }
  }
  /// The levels are groups of ranks that use this communicator's transfers, unless the backend has its own.
  void set_levels(int node) override;

 protected:
  RingCommunicator(int rank, int size) : rank_{rank}, size_{size} {
    many_out_.reserve(static_cast<std::size_t>(size));
    many_in_.reserve(static_cast<std::size_t>(size));
  }

  /// One side of several transfers at once. `offset`: where the elements stand in the view that is summed, in bytes.
  struct Outgoing {
    int to = 0;
    ConstBytes bytes;
    std::size_t offset = 0;
  };
  struct Incoming {
    int from = 0;
    Bytes bytes;
    std::size_t offset = 0;
  };
  /// The kind of data in the current transfers. A backend that may lose something loses it in sums, never elsewhere.
  enum class Stage : std::uint8_t {
    exact,     ///< anything
    summands,  ///< elements of a sum over ranks, on their way to where they are added
    sums,      ///< elements of a finished sum, on their way to all ranks
  };

  /// Sends `out` to rank `to` and receives `in` from rank `from`; neither is this rank. When a view is empty, its rank
  /// is ignored.
  virtual void transfer(Queue<S> queue, int to, ConstBytes out, int from, Bytes in) = 0;
  /// Several transfers at once, at most one to and one from each other rank; all ranks call it. Unless a backend can
  /// do better, one after another: with rank() + 1 and rank() - 1, then + 2 and - 2, and so on.
  virtual void transfer_many(Queue<S> queue, std::span<const Outgoing> out, std::span<const Incoming> in);
  /// Transfers, and adds what arrives to `inout`. May use `scratch`, which has at least ring_scratch(bytes of the whole
  /// view) bytes.
  virtual void transfer_sum(Queue<S> queue, int to, ConstBytes out, int from, Bytes inout, Dtype dtype,
                            Bytes scratch) = 0;
  /// Bytes of scratch that transfer_sum needs for the segments of a view of `bytes`; at most `bytes`.
  [[nodiscard]] virtual std::size_t ring_scratch(std::size_t bytes) const = 0;
  /// to := from on this rank; nothing happens when they are the same memory.
  virtual void copy_local(Queue<S> queue, Bytes to, ConstBytes from) = 0;
  /// sum := sum + addend on this rank.
  virtual void sum_local(Queue<S> queue, Bytes sum, ConstBytes addend, Dtype dtype) = 0;

  void check_sum(Bytes inout, Dtype dtype, Bytes scratch) const;
  [[nodiscard]] AllReduce algorithm() const noexcept { return algorithm_; }

  /// The name of the collective that the current transfer belongs to, for messages.
  [[nodiscard]] const char* current_call() const noexcept { return call_; }
  [[nodiscard]] Stage stage() const noexcept { return stage_; }
  /// The view that is being summed, and its type; of no meaning in Stage::exact.
  [[nodiscard]] Bytes summed_view() const noexcept { return summed_; }
  [[nodiscard]] Dtype summed_type() const noexcept { return summed_type_; }
  /// Links that an element of the current sum crosses in this stage, at most.
  [[nodiscard]] int hops() const noexcept { return hops_; }

 private:
  class Group;

  /// Bytes that a broadcast sends at a time. Small enough that all ranks of the chain work on one view at the same
  /// time.
  static constexpr std::size_t kBroadcastChunk = S == Space::host ? std::size_t{256} << 10 : std::size_t{4} << 20;
  /// Bytes that recursive doubling sends at a time. A small view goes in one piece; a large one needs scratch for one
  /// piece only.
  static constexpr std::size_t kDoublingPiece = S == Space::host ? std::size_t{256} << 10 : std::size_t{4} << 20;
  static_assert(kDoublingMost <= kDoublingPiece, "a view that `automatic` sums by doubling goes in one piece");

  void begin_collective(const char* call) {
    call_ = call;
    stage_ = Stage::exact;
    ++this->traffic_.collectives;
  }
  void begin_sum(const char* call, Bytes view, Dtype dtype) {
    begin_collective(call);
    summed_ = view;
    summed_type_ = dtype;
  }
  void count(ConstBytes out) {
    this->traffic_.bytes_sent += out.size();
    this->traffic_.messages_sent += out.empty() ? 0 : 1;
  }
  void send_receive(Queue<S> queue, int to, ConstBytes out, int from, Bytes in) {
    count(out);
    transfer(queue, to, out, from, in);
  }
  void send_receive_many(Queue<S> queue) {
    for (const Outgoing& one : many_out_) count(one.bytes);
    transfer_many(queue, many_out_, many_in_);
  }
  [[nodiscard]] bool concentrates() const {
    return algorithm_ == AllReduce::server || algorithm_ == AllReduce::transpose;
  }
  [[nodiscard]] int wrap(int rank) const { return (rank + 2 * size_) % size_; }
  [[nodiscard]] bool doubles(std::size_t bytes) const {
    return algorithm_ == AllReduce::doubling || (algorithm_ == AllReduce::automatic && bytes <= kDoublingMost);
  }
  [[nodiscard]] Bytes segment(Bytes view, int index, Dtype dtype) const;
  template <class Part>
  void relay(Queue<S> queue, Part&& part);
  template <class Out, class In>
  void exchange_all(Queue<S> queue, Out&& out, In&& in);
  void reduce_scatter_ring(Queue<S> queue, Bytes inout, Dtype dtype, Bytes scratch);
  void all_reduce_ring(Queue<S> queue, Bytes inout, Dtype dtype, Bytes scratch);
  void all_reduce_doubling(Queue<S> queue, Bytes inout, Dtype dtype, Bytes scratch);
  void all_reduce_server(Queue<S> queue, Bytes inout, Dtype dtype, Bytes scratch);
  void all_reduce_transpose(Queue<S> queue, Bytes inout, Dtype dtype, Bytes scratch);

  int rank_;
  int size_;
  const char* call_ = "exchange";
  AllReduce algorithm_ = AllReduce::ring;
  Stage stage_ = Stage::exact;
  int hops_ = 1;
  Bytes summed_;
  Dtype summed_type_ = Dtype::f32;
  std::vector<Outgoing> many_out_;  ///< of transfer_many's callers; kept, so that calls do not allocate
  std::vector<Incoming> many_in_;
};

extern template class RingCommunicator<Space::host>;
extern template class RingCommunicator<Space::cuda>;

}  // namespace gradtool
