#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/vector.hpp"
#include "lib/codecs/reducer.hpp"

namespace gradtool {

/// The parts of a vector that each rank has or gets in a collective, in bytes.
struct RankParts {
  std::vector<std::uint64_t> sizes, offsets;

  RankParts(std::size_t n, int ranks, std::size_t value_bytes) {
    for (int rank = 0; rank < ranks; ++rank) {
      const Segment part = ring_segment(n, rank, ranks);
      sizes.push_back(value_bytes * part.count);
      offsets.push_back(value_bytes * part.first);
    }
  }
};

/// Elements that a rank hands to a collective of n.
[[nodiscard]] inline std::size_t elements_handed(std::size_t n, int ranks, Collective op) {
  const auto p = static_cast<std::size_t>(ranks);
  return op == Collective::all_gather ? (n + p - 1) / p : n;
}

/// The uncompressed collective in float32, by the library itself: in place, but for the all-to-all, which no library
/// has in place. Nothing to encode; the division by the number of ranks is the decoding of a mean.
template <Space S>
class DenseReducer : public Reducer<S> {
 public:
  DenseReducer(std::size_t n, int ranks, Collective op) : n_{n}, op_{op}, parts_{n, ranks, sizeof(float)} {}

  [[nodiscard]] std::size_t workspace_bytes() const override {
    return op_ == Collective::all_gather ? 0 : Arena<S>::padded_size(4 * n_);
  }
  void reduce(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient, const SideInputs<S>& /*side*/,
              const EncodeContext& /*context*/, View<std::byte, S> workspace, PhaseClock<S>& clock) override {
    in_phase(clock, Phase::encode, queue, [] {});
    in_phase(clock, Phase::communicate, queue, [&] { send(comm, queue, gradient, workspace); });
    in_phase(clock, Phase::decode, queue, [&] {
      if (op_ == Collective::all_gather || op_ == Collective::all_to_all) return;
      const Segment mine = ring_segment(n_, comm.rank(), comm.size());
      const auto mean = op_ == Collective::all_reduce ? gradient : gradient.part(mine.first, mine.count);
      scale(queue, mean, 1.0F / static_cast<float>(comm.size()));
    });
  }
  void reset(Queue<S> /*queue*/) override {}
  [[nodiscard]] View<float, S> result(View<float, S> gradient) const override {
    return op_ == Collective::all_to_all ? received_ : gradient;
  }
  [[nodiscard]] std::uint64_t payload_bytes() const override { return 4 * values_sent({}); }
  [[nodiscard]] std::uint64_t values_sent(Queue<S> /*queue*/) const override {
    return elements_handed(n_, static_cast<int>(parts_.sizes.size()), op_);
  }
  [[nodiscard]] typename Reducer<S>::Pattern pattern(Level /*level*/) const override {
    return {.shards = op_ != Collective::all_reduce};
  }

 private:
  void send(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient, View<std::byte, S> workspace) {
    const auto mine = static_cast<std::size_t>(comm.rank());
    const auto vector = as_writable_bytes(gradient);
    switch (op_) {
      case Collective::all_reduce:
        return comm.all_reduce_native(queue, vector, Dtype::f32, workspace);
      case Collective::reduce_scatter:
        return comm.reduce_scatter_sum(queue, vector, Dtype::f32, workspace);
      case Collective::all_gather:
        return comm.all_gather_v(queue, vector.part(parts_.offsets[mine], parts_.sizes[mine]), parts_.sizes,
                                 parts_.offsets, vector);
      case Collective::all_to_all:
        expects(n_ % parts_.sizes.size() == 0, "an all-to-all needs as many elements for each rank");
        received_ = {reinterpret_cast<float*>(workspace.data()), n_};
        return comm.all_to_all(queue, as_bytes(gradient), workspace.first(4 * n_));
    }
  }

  std::size_t n_;
  Collective op_;
  RankParts parts_;
  View<float, S> received_;
};

/// The uncompressed collective of a job whose gradients are float16 or bfloat16, by NCCL itself and over MPI, which
/// has no such types, by our ring: sums are in that type and are rounded at every hop. Such a job has its gradients in
/// the type already, divided by the number of ranks before they are added, as DDP does. So `load` and `store`, which
/// stand in for that, are not part of `reduce`. Infinite where the type overflows: gradients are taken as they were
/// captured, without the job's loss scaling.
template <Space S>
class UncompressedReducer : public Reducer<S> {
 public:
  /// `dtype`: f16 or bf16. n: elements of the unit.
  UncompressedReducer(Dtype dtype, std::size_t n, int ranks, Collective op)
      : dtype_{dtype},
        n_{n},
        each_{elements_handed(n, ranks, op)},
        op_{op},
        cast_{make_codec<S>(parse_codec(dtype == Dtype::f16 ? "fp16" : "bf16"), Layout::flat(n))},
        parts_{n, ranks, 2} {}

  /// Puts the gradient into the workspace in the job's type, the ranks' share of a mean where ranks are averaged.
  /// Untimed, before `reduce`, which works there.
  void load(Queue<S> queue, View<float, S> gradient, View<std::byte, S> workspace) {
    if (op_ == Collective::all_reduce || op_ == Collective::reduce_scatter)
      scale(queue, gradient, 1.0F / static_cast<float>(parts_.sizes.size()));
    cast_->encode(queue, gradient, {}, values(workspace), {});
  }
  /// Brings what `reduce` left in the workspace into `gradient`. Untimed.
  void store(Queue<S> queue, View<float, S> gradient, View<std::byte, S> workspace) {
    fill_zero(queue, gradient);
    const auto result = op_ == Collective::all_to_all ? behind_values(workspace) : values(workspace);
    cast_->decode_add(queue, result, 1.0F, gradient, {});
  }
  /// The bytes that `reduce` reads first.
  [[nodiscard]] View<float, S> input(View<std::byte, S> workspace) const {
    return {reinterpret_cast<float*>(workspace.data()), bytes() / sizeof(float)};
  }

  [[nodiscard]] std::size_t workspace_bytes() const override { return 2 * Arena<S>::padded_size(bytes()); }
  void reduce(Communicator<S>& comm, Queue<S> queue, View<float, S> /*gradient*/, const SideInputs<S>& /*side*/,
              const EncodeContext& /*context*/, View<std::byte, S> workspace, PhaseClock<S>& clock) override {
    in_phase(clock, Phase::encode, queue, [] {});
    in_phase(clock, Phase::communicate, queue, [&] { send(comm, queue, workspace); });
    in_phase(clock, Phase::decode, queue, [] {});
  }
  void reset(Queue<S> /*queue*/) override {}
  [[nodiscard]] std::uint64_t payload_bytes() const override { return 2 * each_; }
  [[nodiscard]] std::uint64_t values_sent(Queue<S> /*queue*/) const override { return each_; }
  [[nodiscard]] typename Reducer<S>::Pattern pattern(Level /*level*/) const override {
    return {.shards = op_ != Collective::all_reduce};
  }

 private:
  [[nodiscard]] std::size_t bytes() const { return 2 * n_; }
  /// The vector in its type; behind it what the collective receives into.
  [[nodiscard]] View<std::byte, S> values(View<std::byte, S> workspace) const { return workspace.first(bytes()); }
  [[nodiscard]] View<std::byte, S> behind_values(View<std::byte, S> workspace) const {
    return workspace.part(Arena<S>::padded_size(bytes()), bytes());
  }

  void send(Communicator<S>& comm, Queue<S> queue, View<std::byte, S> workspace) {
    const auto mine = static_cast<std::size_t>(comm.rank());
    const auto vector = values(workspace);
    const auto other = behind_values(workspace);
    switch (op_) {
      case Collective::all_reduce:
        return comm.all_reduce_native(queue, vector, dtype_, other);
      case Collective::reduce_scatter:
        return comm.reduce_scatter_sum(queue, vector, dtype_, other);
      case Collective::all_gather:
        return comm.all_gather_v(queue, vector.part(parts_.offsets[mine], parts_.sizes[mine]), parts_.sizes,
                                 parts_.offsets, vector);
      case Collective::all_to_all:
        return comm.all_to_all(queue, vector, other);
    }
  }

  Dtype dtype_;
  std::size_t n_;
  std::size_t each_;  ///< elements that a rank hands to the collective
  Collective op_;
  std::shared_ptr<const Codec<S>> cast_;
  RankParts parts_;
};

/// Part of a larger reduction, which has float32 before and after it: the changes of type are made in
/// `reduce`, outside its phases, because the job has its gradients in the type already.
template <Space S>
class UncompressedPart final : public UncompressedReducer<S> {
 public:
  using UncompressedReducer<S>::UncompressedReducer;

  void reduce(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient, const SideInputs<S>& side,
              const EncodeContext& context, View<std::byte, S> workspace, PhaseClock<S>& clock) override {
    this->load(queue, gradient, workspace);
    UncompressedReducer<S>::reduce(comm, queue, gradient, side, context, workspace, clock);
    this->store(queue, gradient, workspace);
  }
};

}  // namespace gradtool
