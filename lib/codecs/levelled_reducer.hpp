#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lib/codecs/shard_reducers.hpp"
#include "lib/codecs/uncompressed_reducer.hpp"

namespace gradtool {

/// An all-reduce in two levels, for machines whose ranks are joined by a faster network than the machines are: a
/// reduce-scatter inside each machine, an all-reduce of each shard between the ranks that own it, one on every machine,
/// and an all-gather inside. With n values, g ranks on a machine and m machines a rank sends (g-1)/g n twice inside and
/// 2(m-1)/m n/g between, so that a machine's link carries 2(m-1)/m n instead of g times that. One codec works inside
/// and one between (Collective says what shards are); inside, `none` sends and adds in the type of the job's gradients,
/// as its libraries do. Every rank ends with the same bits: the machines encode equal
/// shards with equal draws.
///
/// The communicator must have these levels (Reducer::prepare).
template <Space S>
class LevelledReducer final : public Reducer<S> {
 public:
  /// `scheme`: of the codec between machines. `node` divides `ranks`. Throws Fault::usage, as resolve_levels does.
  LevelledReducer(const CodecSpec& between, const CodecSpec& inside, Scheme scheme, std::size_t n, Dtype dtype,
                  int ranks, int node, Queue<S> queue)
      : n_{n}, node_{node} {
    resolve_levels(between, inside, scheme);
    const Layout whole = Layout::flat(n);
    const auto inner = make_codec<S>(inside, whole);
    const auto make_inside = [&](Collective op) -> std::unique_ptr<Reducer<S>> {
      if (inside.name() == "none" && dtype != Dtype::f32) {
        casts_ = "concurrent times include casts to the job's type and back, which the job does not make";
        if (dtype == Dtype::f16) casts_ += "; float16 without its loss scaling";
        return std::make_unique<UncompressedPart<S>>(dtype, n, node, op);
      }
      return make_reducer<S>(inside, inner, Scheme::automatic, whole, node, queue, op);
    };
    scatter_ = make_inside(Collective::reduce_scatter);
    gather_ = make_inside(Collective::all_gather);
    // A shard has one of two lengths. Which one this rank's has is known when it reduces.
    for (const int i : {0, node - 1}) {
      const Layout shard = Layout::flat(ring_segment(n, i, node).count);
      if (i > 0 && shard.elements == ring_segment(n, 0, node).count) continue;
      between_.push_back(make_reducer<S>(between, make_codec<S>(between, shard), scheme, shard, ranks / node, queue));
    }
  }

  [[nodiscard]] int node() const override { return node_; }
  [[nodiscard]] std::size_t workspace_bytes() const override { return planned<Workspace>(*this); }

  void reduce(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient, const SideInputs<S>& side,
              const EncodeContext& context, View<std::byte, S> workspace, PhaseClock<S>& clock) override {
    Communicator<S>& inside = comm.inside();
    const Segment s = ring_segment(n_, inside.rank(), node_);
    between_used_ = between_[s.count == ring_segment(n_, 0, node_).count ? 0 : 1].get();
    const Workspace work{*this, Scratch<S>{workspace}};
    scatter_->reduce(inside, queue, gradient, side, context, work.scatter, clock);
    EncodeContext own = context;
    own.key.seed ^= kBetween;
    clock.level(Level::across);
    between_used_->reduce(comm.across(), queue, gradient.part(s.first, s.count), side_of(side, s), own, work.between,
                          clock);
    clock.level(Level::inside);
    own.key.seed ^= kGather;
    own.key.rank = static_cast<std::uint32_t>(inside.rank());  // the same draws on every machine
    gather_->reduce(inside, queue, gradient, side, own, work.gather, clock);
  }

  void reset(Queue<S> queue) override {
    each([queue](Reducer<S>& reducer) { reducer.reset(queue); });
  }
  void visit_state(StateVisitor& visitor) override {
    each([&visitor](Reducer<S>& reducer) { reducer.visit_state(visitor); });
  }
  /// Bytes of both levels.
  [[nodiscard]] std::uint64_t payload_bytes() const override {
    return scatter_->payload_bytes() + used().payload_bytes() + gather_->payload_bytes();
  }
  [[nodiscard]] std::uint64_t values_sent(Queue<S> queue) const override {
    return scatter_->values_sent(queue) + used().values_sent(queue) + gather_->values_sent(queue);
  }
  void settle(Queue<S> queue) override { used().settle(queue); }
  /// Residual of the shard that is reduced between machines.
  [[nodiscard]] View<const float, S> residual() const override { return used().residual(); }
  [[nodiscard]] std::string note() const override {
    const std::string own = used().note();
    return own.empty() || casts_.empty() ? own + casts_ : own + "; " + casts_;
  }
  [[nodiscard]] bool reached() const override { return used().reached(); }
  [[nodiscard]] std::vector<Tally> tallies() const override { return used().tallies(); }
  [[nodiscard]] typename Reducer<S>::Pattern pattern(Level level) const override {
    return level == Level::inside ? gather_->pattern(Level::whole) : used().pattern(Level::whole);
  }

 private:
  /// Draws of the three parts must not repeat.
  static constexpr std::uint64_t kBetween = 0xA0761D6478BD642FULL;
  static constexpr std::uint64_t kGather = 0xE7037ED1A0B428DBULL;

  /// Each part has a piece of its own, because values_sent() reads payloads of all of them when all have reduced.
  struct Workspace {
    Workspace(const LevelledReducer& reducer, Scratch<S> pieces)
        : scatter{pieces.take_bytes(reducer.scatter_->workspace_bytes())},
          between{pieces.take_bytes(reducer.between_bytes())},
          gather{pieces.take_bytes(reducer.gather_->workspace_bytes())} {}
    View<std::byte, S> scatter, between, gather;
  };
  [[nodiscard]] std::size_t between_bytes() const {
    std::size_t bytes = 0;
    for (const auto& reducer : between_) bytes = std::max(bytes, reducer->workspace_bytes());
    return bytes;
  }

  template <class F>
  void each(F&& call) {
    call(*scatter_);
    for (auto& reducer : between_) call(*reducer);
    call(*gather_);
  }
  [[nodiscard]] Reducer<S>& used() const { return between_used_ == nullptr ? *between_.front() : *between_used_; }

  std::size_t n_;
  int node_;
  std::unique_ptr<Reducer<S>> scatter_, gather_;
  std::vector<std::unique_ptr<Reducer<S>>> between_;  ///< for each length that a shard may have
  std::string casts_;                                 ///< note of what the replay does and the job does not
  Reducer<S>* between_used_ = nullptr;                ///< that of this rank's, once it has reduced
};

}  // namespace gradtool
