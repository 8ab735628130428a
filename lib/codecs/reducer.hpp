#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "lib/codecs/registry.hpp"
#include "lib/comm/communicator.hpp"
#include "lib/core/arena.hpp"
#include "lib/core/words.hpp"

namespace gradtool {

/// The parts of a reduction that are timed apart. Error feedback counts as encoding, zeroing the result as decoding.
enum class Phase : std::uint8_t { encode, communicate, decode };

/// Told by a reducer where its phases begin and end; the harness measures there. Phases do not nest. Every rank goes
/// through the same phases in the same order, so a clock may let ranks wait for each other between them. While it
/// communicates a reducer does not use the queue's pool itself, and outside of these phases it makes no collective:
/// that lets chunks of a unit overlap (lib/codecs/pipelined.hpp), where a communicating phase of one and another phase
/// of another one are open at once.
template <Space S>
class PhaseClock {
 public:
  virtual ~PhaseClock() = default;
  virtual void begin(Phase phase, Queue<S> queue) = 0;
  virtual void end(Phase phase, Queue<S> queue) = 0;
  /// Told by a reducer in two levels: whether the phases that follow are of its part between machines (Level::across)
  /// or of those inside them. How long decoding takes grows with the number of machines in the former alone.
  virtual void level(Level /*level*/) {}
};

/// Measures nothing.
template <Space S>
class NoClock final : public PhaseClock<S> {
 public:
  void begin(Phase /*phase*/, Queue<S> /*queue*/) override {}
  void end(Phase /*phase*/, Queue<S> /*queue*/) override {}
};

/// A phase for the length of a scope. After an exception the phase is not ended: the ranks will not meet there again.
template <Space S, class F>
void in_phase(PhaseClock<S>& clock, Phase phase, Queue<S> queue, F&& work) {
  clock.begin(phase, queue);
  work();
  clock.end(phase, queue);
}

/// One way to average a gradient over ranks, or to carry out another collective on it: the calls it makes, and what
/// survives a step (residuals, momentum, factors). One reducer for each rank and each unit (tensor, bucket or model).
/// All memory is taken on construction.
template <Space S>
class Reducer {
 public:
  virtual ~Reducer() = default;
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  /// Bytes that `reduce` works in. The workspace may be shared by the reducers of one rank, one call at a time.
  [[nodiscard]] virtual std::size_t workspace_bytes() const = 0;

  /// Ranks of a machine, for a reducer in two levels; 1: it works in one.
  [[nodiscard]] virtual int node() const { return 1; }
  /// Gives the communicator the levels that `reduce` works in. Before the first `reduce` with it, untimed; every rank
  /// calls it.
  void prepare(Communicator<S>& comm) const {
    if (node() > 1) comm.ensure_levels(node());
  }

  /// gradient := mean over ranks, up to the method's error; for another collective, what that gives (Collective), the
  /// shards that it does not name being left unspecified. gradient.size() is the n that the reducer was made for;
  /// views of `side` are empty or as long. The timed region: allocates nothing. Every rank calls it, with the same step
  /// and tensor in context.key.
  virtual void reduce(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient, const SideInputs<S>& side,
                      const EncodeContext& context, View<std::byte, S> workspace, PhaseClock<S>& clock) = 0;

  /// The place of the result of the last `reduce` of `gradient`: `gradient` itself, or the workspace for a library's
  /// collective that is not in place.
  [[nodiscard]] virtual View<float, S> result(View<float, S> gradient) const { return gradient; }

  /// For a reducer that ends by decoding payloads which all ranks have alike, and keeps nothing of what they decode to:
  /// these payloads, after a `reduce` and until the workspace is used again. Else empty.
  [[nodiscard]] virtual std::span<const View<const std::byte, S>> common_payloads() const { return {}; }
  /// Whether this rank needs the result of the reductions that follow. Without it a reducer with common_payloads() does
  /// not decode them, and the result is unspecified; all others reduce as ever. What is sent and kept is the same.
  void need_result(bool needed) { needs_result_ = needed; }

  /// Forgets all state, as if newly made.
  virtual void reset(Queue<S> queue) = 0;

  /// Shows all that the steps so far have changed and that a later result, residual(), note() or tally depends on, so
  /// that a new reducer to which it is given goes on with the same bits. Called between steps, on every rank for
  /// itself. The default is for reducers that keep nothing. Throws Fault::unavailable for what a GPU keeps.
  virtual void visit_state(StateVisitor& /*visitor*/) {
    if constexpr (S == Space::cuda)
      throw Error{Fault::unavailable, "what is kept between steps cannot be saved from the memory of a GPU"};
  }

  /// Bytes that this rank's encoder produced in the last `reduce`.
  [[nodiscard]] virtual std::uint64_t payload_bytes() const = 0;
  /// Values, of whatever kind, that this rank sent in the last `reduce`. Not timed.
  [[nodiscard]] virtual std::uint64_t values_sent(Queue<S> queue) const = 0;
  /// Brings residual() up to date with the last `reduce`, enqueued. Changes no later result. Not timed.
  virtual void settle(Queue<S> /*queue*/) {}
  /// The values held back for later steps, as the last `settle` left them; empty for a reducer without error feedback.
  [[nodiscard]] virtual View<const float, S> residual() const { return {}; }
  /// For a method whose descriptor names a target: this rank's part of it in the last `reduce`, n values, enqueued and
  /// valid until the next `reduce`. The result should have been the mean of these over ranks. Not timed, called on
  /// every rank, no collective. Empty: this rank's gradient.
  [[nodiscard]] virtual View<const float, S> target(Queue<S> /*queue*/) { return {}; }
  /// A note that the reader of a row must see, about the steps reduced so far: a missing input, a phase that was not
  /// reached. One clause, no full stop; the same on every rank.
  [[nodiscard]] virtual std::string note() const { return {}; }
  /// False while all that was reduced went another way than the method's: a warm-up, a sampling phase, a missing input.
  /// Times and errors are then not the method's, and nobody is advised by them. The same on every rank.
  [[nodiscard]] virtual bool reached() const { return true; }
  [[nodiscard]] virtual std::vector<Tally> tallies() const { return {}; }

  /// How what it sends changes with the number of ranks, for the network models.
  struct Pattern {
    bool shards = false;  ///< parts of its all_gather_v are shares of one whole, not each rank's own payload
    bool ring = false;    ///< its exchanges are hops between neighbours on a ring, not those of an all-to-all
  };
  /// `level`: of the communicator whose calls are meant, for a reducer that uses several.
  [[nodiscard]] virtual Pattern pattern(Level /*level*/ = Level::whole) const { return {}; }

 protected:
  Reducer() = default;
  [[nodiscard]] bool needs_result() const { return needs_result_; }

 private:
  bool needs_result_ = true;
};

/// The part that all hand-written reducers share: the unit's size, the number of ranks, and the counts of the last
/// step.
template <Space S>
class CountingReducer : public Reducer<S> {
 public:
  [[nodiscard]] std::uint64_t payload_bytes() const override { return payload_bytes_; }
  [[nodiscard]] std::uint64_t values_sent(Queue<S> /*queue*/) const override { return values_sent_; }

 protected:
  CountingReducer(std::size_t n, int ranks) : n_{n}, ranks_{static_cast<std::size_t>(ranks)} {}

  static constexpr std::size_t padded(std::size_t bytes) { return Arena<S>::padded_size(bytes); }

  /// values := their sum over ranks, in a phase of its own. `segment` is the all-reduce's workspace, as long as they.
  static void sum(Communicator<S>& comm, Queue<S> queue, PhaseClock<S>& clock, View<float, S> values,
                  View<std::byte, S> segment) {
    in_phase(clock, Phase::communicate, queue, [&] {
      if (!values.empty()) comm.all_reduce_sum(queue, as_writable_bytes(values), Dtype::f32, segment);
    });
  }
  /// gradient := its mean over ranks, uncompressed, which a method does in steps that are not its own.
  void reduce_plain(Communicator<S>& comm, Queue<S> queue, PhaseClock<S>& clock, View<float, S> gradient,
                    View<std::byte, S> segment) {
    sum(comm, queue, clock, gradient, segment);
    in_phase(clock, Phase::decode, queue, [&] { scale(queue, gradient, 1.0F / static_cast<float>(ranks_)); });
    payload_bytes_ = 4 * gradient.size();
    values_sent_ = gradient.size();
  }

  std::size_t n_;
  std::size_t ranks_;
  std::uint64_t payload_bytes_ = 0;
  std::uint64_t values_sent_ = 0;
};

/// The operation that the ranks do together. Shard r is ring_segment(n, r, ranks) of a vector of n elements, and
/// belongs to rank r.
enum class Collective : std::uint8_t {
  all_reduce,      ///< the mean over ranks, on every rank
  reduce_scatter,  ///< the mean over ranks of shard r, on rank r
  all_gather,      ///< the shards of all ranks, on every rank
  all_to_all,      ///< on rank r, in place of shard s: what rank s had in its shard r
};
constexpr auto spellings(Collective) {
  return words("all-reduce", "reduce-scatter", "all-gather", "all-to-all");
}
/// Every rank ends with the same values.
[[nodiscard]] constexpr bool same_everywhere(Collective op) {
  return op == Collective::all_reduce || op == Collective::all_gather;
}

/// The scheme that a codec will ride. Throws Fault::usage where codec, scheme and collective do not go together.
[[nodiscard]] Scheme resolve(Scheme scheme, const CodecSpec& spec, Collective op = Collective::all_reduce);

/// The codec of a specification for units of `layout`; null for a method that only exists between ranks. Where the
/// descriptor is not made_for_layout, the same object serves units of any layout. Throws Fault::unavailable when there
/// is no CUDA version in this build.
template <Space S>
[[nodiscard]] std::shared_ptr<const Codec<S>> make_codec(const CodecSpec& spec, const Layout& layout);

/// The arguments of a reducer's constructor. The references need not outlive the call.
template <Space S>
struct ReducerSetup {
  const CodecSpec& spec;
  std::shared_ptr<const Codec<S>> codec;  ///< null where the descriptor has none
  const Layout& layout;
  int ranks = 1;
  Queue<S> queue;
};

/// A reducer for units of `layout` on `ranks` ranks. `codec` comes from make_codec and may be shared by many reducers.
/// For another collective than all-reduce, `ranks` divides the elements: ranks pad, as PyTorch's FSDP does.
template <Space S>
[[nodiscard]] std::unique_ptr<Reducer<S>> make_reducer(const CodecSpec& spec, std::shared_ptr<const Codec<S>> codec,
                                                       Scheme scheme, const Layout& layout, int ranks, Queue<S> queue,
                                                       Collective op = Collective::all_reduce);

/// An all-reduce in two levels (lib/codecs/levelled_reducer.hpp): `between` works between machines of `node` ranks
/// each, `inside` on each of them. n: elements of the unit, `dtype` the type in which `none` sends them inside. `node`
/// divides `ranks`. Throws Fault::usage, as resolve_levels does.
template <Space S>
[[nodiscard]] std::unique_ptr<Reducer<S>> make_levelled_reducer(const CodecSpec& between, const CodecSpec& inside,
                                                                Scheme scheme, std::size_t n, Dtype dtype, int ranks,
                                                                int node, Queue<S> queue);
/// The scheme that `between` will ride. Throws Fault::usage where a codec cannot work on the shards of two levels.
Scheme resolve_levels(const CodecSpec& between, const CodecSpec& inside, Scheme scheme);

/// Bytes that a piece of a workspace takes on a GPU.
constexpr std::size_t padded(std::size_t bytes) {
  return Arena<Space::cuda>::padded_size(bytes);
}

/// The description of the vector for a communicator (Communicator::describe).
[[nodiscard]] inline std::vector<SummedTensor> summed_tensors(const Layout& layout) {
  std::vector<SummedTensor> tensors;
  tensors.reserve(layout.tensors.size());
  for (const TensorShape& tensor : layout.tensors) tensors.push_back({tensor.elements, tensor.depth});
  return tensors;
}

}  // namespace gradtool
