#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "lib/codecs/registry.hpp"
#include "lib/comm/communicator.hpp"
#include "lib/core/arena.hpp"
#include "lib/reduce/phase.hpp"

namespace gradtool {

/// One way to average a gradient over ranks: the collectives it drives, and what survives a step (residuals, momentum,
/// factors). One reducer for each rank and each unit (tensor, bucket or model). All memory is taken on construction.
template <Space S>
class Reducer {
 public:
  virtual ~Reducer() = default;
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  /// Bytes that `reduce` works in. The workspace may be shared by the reducers of one rank, one call at a time.
  [[nodiscard]] virtual std::size_t workspace_bytes() const = 0;

  /// gradient := mean over ranks, up to the method's error. gradient.size() is the n that the reducer was made for;
  /// views of `side` are empty or as long. The timed region: allocates nothing. Every rank calls it, with the same step
  /// and tensor in context.key.
  virtual void reduce(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient, const SideInputs<S>& side,
                      const EncodeContext& context, View<std::byte, S> workspace, PhaseClock<S>& clock) = 0;

  /// Forgets all state, as if newly made.
  virtual void reset(Queue<S> queue) = 0;

  /// Bytes that this rank's encoder produced in the last `reduce`.
  [[nodiscard]] virtual std::uint64_t payload_bytes() const = 0;
  /// Values, of whatever kind, that this rank sent in the last `reduce`. Not timed.
  [[nodiscard]] virtual std::uint64_t values_sent(Queue<S> queue) const = 0;
  /// Brings residual() up to date with the last `reduce`, enqueued. Changes no later result. Not timed.
  virtual void settle(Queue<S> /*queue*/) {}
  /// What is held back for later steps, as of the last `settle`; empty for a reducer without error feedback.
  [[nodiscard]] virtual View<const float, S> residual() const { return {}; }
  /// What the reader of a row must know, for the steps reduced so far: a missing input, a phase that was not reached.
  /// One clause, no full stop; the same on every rank.
  [[nodiscard]] virtual std::string note() const { return {}; }
  [[nodiscard]] virtual std::vector<Tally> tallies() const { return {}; }

  /// How what it sends changes with the number of ranks, for the network models.
  struct Pattern {
    bool shards = false;  ///< parts of its all_gather_v are shares of one whole, not each rank's own payload
    bool ring = false;    ///< its exchanges are hops between neighbours on a ring, not those of an all-to-all
  };
  [[nodiscard]] virtual Pattern pattern() const { return {}; }

 protected:
  Reducer() = default;
};

/// Which collective a plain codec rides on.
enum class Scheme : std::uint8_t {
  automatic,  ///< what the codec's descriptor says
  sum,        ///< add the payloads on a ring
  gather,     ///< all-gather the payloads, decode each
  hop,        ///< ring reduce-scatter that decodes, adds and encodes again at every hop, then all-gather
  own,        ///< the codec's own reducer; not to be asked for
};
[[nodiscard]] std::string_view name_of(Scheme scheme);
/// The scheme that a codec will ride. Throws Fault::usage where codec and scheme do not go together.
[[nodiscard]] Scheme resolve(Scheme scheme, const CodecSpec& spec);

/// The codec of a specification for units of `layout`; null for a method that only exists between ranks. Where the
/// descriptor does not say by_layout, the same object serves units of any layout. Throws Fault::unavailable when there
/// is no CUDA version in this build.
template <Space S>
[[nodiscard]] std::shared_ptr<const Codec<S>> make_codec(const CodecSpec& spec, const Layout& layout);

/// A reducer for units of `layout` on `ranks` ranks. `codec` comes from make_codec and may be shared by many reducers.
template <Space S>
[[nodiscard]] std::unique_ptr<Reducer<S>> make_reducer(const CodecSpec& spec, std::shared_ptr<const Codec<S>> codec,
                                                       Scheme scheme, const Layout& layout, int ranks, Queue<S> queue);

}  // namespace gradtool
