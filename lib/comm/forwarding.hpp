#pragma once

#include "lib/comm/communicator.hpp"

namespace gradtool {

/// Passes every call on, for communicators that do something beside: see, refuse, or slow it. Traffic is counted by the
/// inner communicator alone.
class ForwardingCommunicator : public Communicator<Space::host> {
 public:
  /// `inner` outlives it.
  explicit ForwardingCommunicator(Communicator<Space::host>& inner) : inner_{inner} {}

  [[nodiscard]] int rank() const noexcept override { return inner_.rank(); }
  [[nodiscard]] int size() const noexcept override { return inner_.size(); }
  [[nodiscard]] std::string_view name() const noexcept override { return inner_.name(); }

  void exchange(Queue<Space::host> queue, int to, HostView<const std::byte> out, int from,
                HostView<std::byte> in) override {
    inner_.exchange(entering(queue), to, out, from, in);
  }
  void all_reduce_sum(Queue<Space::host> queue, HostView<std::byte> inout, Dtype dtype,
                      HostView<std::byte> scratch) override {
    inner_.all_reduce_sum(entering(queue), inout, dtype, scratch);
  }
  void all_gather(Queue<Space::host> queue, HostView<const std::byte> mine, HostView<std::byte> all) override {
    inner_.all_gather(entering(queue), mine, all);
  }
  void all_gather_v(Queue<Space::host> queue, HostView<const std::byte> mine, std::span<const std::uint64_t> sizes,
                    std::span<const std::uint64_t> offsets, HostView<std::byte> all) override {
    inner_.all_gather_v(entering(queue), mine, sizes, offsets, all);
  }
  void broadcast(Queue<Space::host> queue, HostView<std::byte> view, int root) override {
    inner_.broadcast(entering(queue), view, root);
  }
  [[nodiscard]] std::size_t scratch_bytes(std::size_t bytes) const override { return inner_.scratch_bytes(bytes); }
  void barrier(Queue<Space::host> queue) override { inner_.barrier(entering(queue)); }
  void agree_max(std::span<double> values) override { inner_.agree_max(values); }

 protected:
  /// Before every call that is passed on with a queue; returns the queue that it is passed on with.
  virtual Queue<Space::host> entering(Queue<Space::host> queue) { return queue; }

  [[nodiscard]] Communicator<Space::host>& inner() { return inner_; }

 private:
  Communicator<Space::host>& inner_;
};

}  // namespace gradtool
