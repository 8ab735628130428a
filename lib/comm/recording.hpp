#pragma once

#include <functional>
#include <string>
#include <utility>

#include "lib/comm/communicator.hpp"

namespace gradtool {

/// Passes every call on and shows what this rank puts in, before it does: for writing down, or testing, what a reducer
/// of several collectives says. Traffic is counted by the inner communicator alone.
class RecordingCommunicator final : public Communicator<Space::host> {
 public:
  /// `call` names the collective; an all-reduce also its type: all_reduce_f32. On broadcast only the root puts in.
  using Sink = std::function<void(std::string_view call, HostView<const std::byte> bytes)>;

  RecordingCommunicator(Communicator<Space::host>& inner, Sink sink) : inner_{inner}, sink_{std::move(sink)} {}

  [[nodiscard]] int rank() const noexcept override { return inner_.rank(); }
  [[nodiscard]] int size() const noexcept override { return inner_.size(); }
  [[nodiscard]] std::string_view name() const noexcept override { return inner_.name(); }

  void exchange(Queue<Space::host> queue, int to, HostView<const std::byte> out, int from,
                HostView<std::byte> in) override {
    sink_("exchange", out);
    inner_.exchange(queue, to, out, from, in);
  }
  void all_reduce_sum(Queue<Space::host> queue, HostView<std::byte> inout, Dtype dtype,
                      HostView<std::byte> scratch) override {
    sink_("all_reduce_" + std::string{name_of(dtype)}, inout);
    inner_.all_reduce_sum(queue, inout, dtype, scratch);
  }
  void all_gather(Queue<Space::host> queue, HostView<const std::byte> mine, HostView<std::byte> all) override {
    sink_("all_gather", mine);
    inner_.all_gather(queue, mine, all);
  }
  void all_gather_v(Queue<Space::host> queue, HostView<const std::byte> mine, std::span<const std::uint64_t> sizes,
                    std::span<const std::uint64_t> offsets, HostView<std::byte> all) override {
    sink_("all_gather_v", mine);
    inner_.all_gather_v(queue, mine, sizes, offsets, all);
  }
  void broadcast(Queue<Space::host> queue, HostView<std::byte> view, int root) override {
    sink_("broadcast", root == rank() ? HostView<const std::byte>{view} : HostView<const std::byte>{});
    inner_.broadcast(queue, view, root);
  }
  [[nodiscard]] std::size_t scratch_bytes(std::size_t bytes) const override { return inner_.scratch_bytes(bytes); }
  void barrier(Queue<Space::host> queue) override { inner_.barrier(queue); }
  void agree_max(std::span<double> values) override { inner_.agree_max(values); }

 private:
  Communicator<Space::host>& inner_;
  Sink sink_;
};

}  // namespace gradtool
