#pragma once

#include <functional>
#include <utility>

#include "lib/comm/communicator.hpp"

namespace gradtool {

/// Passes every call on and shows what this rank puts in, before it does: for writing down, or testing, what a reducer
/// of several collectives says. Traffic is counted by the inner communicator alone.
class RecordingCommunicator final : public Communicator<Space::host> {
 public:
  struct Call {
    std::string_view name;            ///< of the collective; an all-reduce also its type: all_reduce_f32
    HostView<const std::byte> bytes;  ///< what this rank puts in; on broadcast only the root does
    double mean_bytes = 0.0;          ///< what a rank puts in on average; of a broadcast, the view; own for exchange
  };
  using Sink = std::function<void(const Call&)>;

  RecordingCommunicator(Communicator<Space::host>& inner, Sink sink) : inner_{inner}, sink_{std::move(sink)} {}

  [[nodiscard]] int rank() const noexcept override { return inner_.rank(); }
  [[nodiscard]] int size() const noexcept override { return inner_.size(); }
  [[nodiscard]] std::string_view name() const noexcept override { return inner_.name(); }

  void exchange(Queue<Space::host> queue, int to, HostView<const std::byte> out, int from,
                HostView<std::byte> in) override {
    sink_({"exchange", out, static_cast<double>(to == rank() ? 0 : out.size())});
    inner_.exchange(queue, to, out, from, in);
  }
  void all_reduce_sum(Queue<Space::host> queue, HostView<std::byte> inout, Dtype dtype,
                      HostView<std::byte> scratch) override {
    const std::string_view name = dtype == Dtype::f32   ? "all_reduce_f32"
                                  : dtype == Dtype::f16 ? "all_reduce_f16"
                                                        : "all_reduce_bf16";
    sink_({name, inout, static_cast<double>(inout.size())});
    inner_.all_reduce_sum(queue, inout, dtype, scratch);
  }
  void all_gather(Queue<Space::host> queue, HostView<const std::byte> mine, HostView<std::byte> all) override {
    sink_({"all_gather", mine, static_cast<double>(mine.size())});
    inner_.all_gather(queue, mine, all);
  }
  void all_gather_v(Queue<Space::host> queue, HostView<const std::byte> mine, std::span<const std::uint64_t> sizes,
                    std::span<const std::uint64_t> offsets, HostView<std::byte> all) override {
    double sum = 0.0;
    for (const std::uint64_t bytes : sizes) sum += static_cast<double>(bytes);
    sink_({"all_gather_v", mine, sum / static_cast<double>(size())});
    inner_.all_gather_v(queue, mine, sizes, offsets, all);
  }
  void broadcast(Queue<Space::host> queue, HostView<std::byte> view, int root) override {
    sink_({"broadcast", root == rank() ? HostView<const std::byte>{view} : HostView<const std::byte>{},
           static_cast<double>(view.size())});
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
