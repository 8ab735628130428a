#pragma once

#include "lib/comm/communicator.hpp"

namespace gradtool {

/// Passes every call on to another communicator. Derived classes observe, refuse or delay calls. Traffic is counted by
/// the inner communicator alone. A send or recv arrives as an exchange.
template <Space S>
class ForwardingCommunicator : public Communicator<S> {
 public:
  using Bytes = View<std::byte, S>;
  using ConstBytes = View<const std::byte, S>;

  /// `inner` must outlive this object.
  explicit ForwardingCommunicator(Communicator<S>& inner) : inner_{inner} {}

  [[nodiscard]] int rank() const noexcept override { return inner_.rank(); }
  [[nodiscard]] int size() const noexcept override { return inner_.size(); }
  [[nodiscard]] std::string_view name() const noexcept override { return inner_.name(); }

  void exchange(Queue<S> queue, int to, ConstBytes out, int from, Bytes in) override {
    inner_.exchange(entering(queue), to, out, from, in);
  }
  void all_reduce_sum(Queue<S> queue, Bytes inout, Dtype dtype, Bytes scratch) override {
    inner_.all_reduce_sum(entering(queue), inout, dtype, scratch);
  }
  void all_reduce_native(Queue<S> queue, Bytes inout, Dtype dtype, Bytes scratch) override {
    inner_.all_reduce_native(entering(queue), inout, dtype, scratch);
  }
  void reduce_scatter_sum(Queue<S> queue, Bytes inout, Dtype dtype, Bytes scratch) override {
    inner_.reduce_scatter_sum(entering(queue), inout, dtype, scratch);
  }
  void gather(Queue<S> queue, ConstBytes mine, Bytes all, int root) override {
    inner_.gather(entering(queue), mine, all, root);
  }
  void all_gather(Queue<S> queue, ConstBytes mine, Bytes all) override {
    inner_.all_gather(entering(queue), mine, all);
  }
  void all_gather_v(Queue<S> queue, ConstBytes mine, std::span<const std::uint64_t> sizes,
                    std::span<const std::uint64_t> offsets, Bytes all) override {
    inner_.all_gather_v(entering(queue), mine, sizes, offsets, all);
  }
  void all_to_all(Queue<S> queue, ConstBytes out, Bytes in) override { inner_.all_to_all(entering(queue), out, in); }
  void all_to_all_v(Queue<S> queue, ConstBytes out, const Parts& out_parts, Bytes in, const Parts& in_parts) override {
    inner_.all_to_all_v(entering(queue), out, out_parts, in, in_parts);
  }
  void broadcast(Queue<S> queue, Bytes view, int root) override { inner_.broadcast(entering(queue), view, root); }

  [[nodiscard]] std::size_t scratch_bytes(std::size_t bytes) const override { return inner_.scratch_bytes(bytes); }
  void set_all_reduce(AllReduce algorithm) override { inner_.set_all_reduce(algorithm); }
  void set_levels(int node) override { inner_.set_levels(node); }
  [[nodiscard]] Communicator<S>& inside() const override { return inner_.inside(); }
  [[nodiscard]] Communicator<S>& across() const override { return inner_.across(); }
  [[nodiscard]] bool has_levels() const noexcept override { return inner_.has_levels(); }
  void describe(std::span<const SummedTensor> tensors) override { inner_.describe(tensors); }
  [[nodiscard]] const TransportCounts* transport() const noexcept override { return inner_.transport(); }
  void reset_transport() noexcept override { inner_.reset_transport(); }
  void register_memory(Bytes memory) override { inner_.register_memory(memory); }
  void release_memory() noexcept override { inner_.release_memory(); }
  void barrier(Queue<S> queue) override { inner_.barrier(entering(queue)); }
  void agree_max(std::span<double> values) override { inner_.agree_max(values); }

 protected:
  /// Called before every call that has a queue; returns the queue with which the call is passed on.
  virtual Queue<S> entering(Queue<S> queue) { return queue; }

  [[nodiscard]] Communicator<S>& inner() { return inner_; }

 private:
  Communicator<S>& inner_;
};

}  // namespace gradtool
