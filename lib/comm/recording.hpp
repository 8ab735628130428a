#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "lib/comm/forwarding.hpp"
#include "lib/comm/traffic.hpp"

namespace gradtool {

/// Reports every collective to a callback, with the bytes that this rank contributes, and then passes the call on. Used
/// to record and to test which collectives a reducer calls. Traffic is counted by the inner communicator alone. On a
/// GPU the work that fills the reported bytes is enqueued on the call's queue and may not be done yet.
template <Space S>
class RecordingCommunicator final : public ForwardingCommunicator<S> {
 public:
  using Bytes = View<std::byte, S>;
  using ConstBytes = View<const std::byte, S>;

  struct Call {
    /// The name of the collective. Sums name their type too: all_reduce_f32 (for every algorithm), reduce_scatter_f16.
    std::string_view name;
    ConstBytes bytes;  ///< what this rank contributes; empty on the ranks of a broadcast that are not the root
    Parts parts{};     ///< of an all_to_all_v: where in `bytes` that is; else empty, and all of `bytes` is
    /// Bytes that a rank contributes on average. For a broadcast it is the size of the view, for an exchange or an
    /// all-to-all what this rank sends to others.
    double mean_bytes = 0.0;
    Level level = Level::whole;  ///< whose call it is
    int node = 1;                ///< on the other levels: ranks of a machine
  };
  using Sink = std::function<void(const Call&)>;

  /// Calls of the inner communicator's levels are reported too.
  RecordingCommunicator(Communicator<S>& inner, Sink sink, Level level = Level::whole, int node = 1)
      : ForwardingCommunicator<S>{inner}, sink_{std::move(sink)}, level_{level}, node_{node} {
    if (!inner.has_levels()) return;
    const int ranks = inner.inside().size();
    this->inside_ = std::make_unique<RecordingCommunicator>(inner.inside(), sink_, Level::inside, ranks);
    this->across_ = std::make_unique<RecordingCommunicator>(inner.across(), sink_, Level::across, ranks);
  }

  // NOLINTNEXTLINE(bugprone-parent-virtual-call): the forwarding one would pass its inner level on
  [[nodiscard]] Communicator<S>& inside() const override { return Communicator<S>::inside(); }
  // NOLINTNEXTLINE(bugprone-parent-virtual-call): the forwarding one would pass its inner level on
  [[nodiscard]] Communicator<S>& across() const override { return Communicator<S>::across(); }

  void exchange(Queue<S> queue, int to, ConstBytes out, int from, Bytes in) override {
    report({.name = "exchange", .bytes = out, .mean_bytes = static_cast<double>(to == this->rank() ? 0 : out.size())});
    this->inner().exchange(queue, to, out, from, in);
  }
  void all_reduce_sum(Queue<S> queue, Bytes inout, Dtype dtype, Bytes scratch) override {
    report({.name = all_reduce_name(dtype), .bytes = inout, .mean_bytes = static_cast<double>(inout.size())});
    this->inner().all_reduce_sum(queue, inout, dtype, scratch);
  }
  void all_reduce_native(Queue<S> queue, Bytes inout, Dtype dtype, Bytes scratch) override {
    report({.name = all_reduce_name(dtype), .bytes = inout, .mean_bytes = static_cast<double>(inout.size())});
    this->inner().all_reduce_native(queue, inout, dtype, scratch);
  }
  void reduce_scatter_sum(Queue<S> queue, Bytes inout, Dtype dtype, Bytes scratch) override {
    const std::string_view name = dtype == Dtype::f32   ? "reduce_scatter_f32"
                                  : dtype == Dtype::f16 ? "reduce_scatter_f16"
                                                        : "reduce_scatter_bf16";
    report({.name = name, .bytes = inout, .mean_bytes = static_cast<double>(inout.size())});
    this->inner().reduce_scatter_sum(queue, inout, dtype, scratch);
  }
  void gather(Queue<S> queue, ConstBytes mine, Bytes all, int root) override {
    report({.name = "gather", .bytes = mine, .mean_bytes = static_cast<double>(mine.size())});
    this->inner().gather(queue, mine, all, root);
  }
  void all_gather(Queue<S> queue, ConstBytes mine, Bytes all) override {
    report({.name = "all_gather", .bytes = mine, .mean_bytes = static_cast<double>(mine.size())});
    this->inner().all_gather(queue, mine, all);
  }
  void all_gather_v(Queue<S> queue, ConstBytes mine, std::span<const std::uint64_t> sizes,
                    std::span<const std::uint64_t> offsets, Bytes all) override {
    double sum = 0.0;
    for (const std::uint64_t bytes : sizes) sum += static_cast<double>(bytes);
    report({.name = "all_gather_v", .bytes = mine, .mean_bytes = sum / static_cast<double>(this->size())});
    this->inner().all_gather_v(queue, mine, sizes, offsets, all);
  }
  void all_to_all(Queue<S> queue, ConstBytes out, Bytes in) override {
    const double part = static_cast<double>(out.size()) / static_cast<double>(this->size());
    report({.name = "all_to_all", .bytes = out, .mean_bytes = static_cast<double>(out.size()) - part});
    this->inner().all_to_all(queue, out, in);
  }
  void all_to_all_v(Queue<S> queue, ConstBytes out, const Parts& out_parts, Bytes in, const Parts& in_parts) override {
    check_all_to_all(out.size(), out_parts, in.size(), in_parts, this->rank(), this->size());
    report({.name = "all_to_all_v",
            .bytes = out,
            .parts = out_parts,
            .mean_bytes = static_cast<double>(all_to_all_bytes(out_parts.sizes, this->rank()))});
    this->inner().all_to_all_v(queue, out, out_parts, in, in_parts);
  }
  void broadcast(Queue<S> queue, Bytes view, int root) override {
    report({.name = "broadcast",
            .bytes = root == this->rank() ? ConstBytes{view} : ConstBytes{},
            .mean_bytes = static_cast<double>(view.size())});
    this->inner().broadcast(queue, view, root);
  }

 private:
  void report(Call call) const {
    call.level = level_;
    call.node = node_;
    sink_(call);
  }
  static std::string_view all_reduce_name(Dtype dtype) {
    return dtype == Dtype::f32 ? "all_reduce_f32" : dtype == Dtype::f16 ? "all_reduce_f16" : "all_reduce_bf16";
  }

  Sink sink_;
  Level level_;
  int node_;
};

}  // namespace gradtool
