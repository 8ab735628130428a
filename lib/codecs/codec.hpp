#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/draws.hpp"
#include "kernels/vector.hpp"
#include "lib/core/state.hpp"
#include "lib/core/view.hpp"

namespace gradtool {

/// Byte counts for a gradient of n elements: what must be allocated before the clock starts.
struct Footprint {
  std::size_t payload_bytes = 0;  ///< exact, or an upper bound when `exact` is false
  std::size_t scratch_bytes = 0;  ///< enough for encode and for decode_add
  bool exact = true;  ///< false: the payload's first 8 bytes are its own size, little-endian, written where it is
};

/// Everything that one encode may depend on besides the gradient itself.
struct EncodeContext {
  format::DrawKey key;               ///< every random draw comes from here
  std::int64_t iteration = 0;        ///< training iteration of the captured step, for schedules
  double learning_rate_ratio = 1.0;  ///< learning rate now / the highest of the training so far, for schedules
};

/// Values that a capture holds for each element besides its gradient. Empty where the file does not have it.
template <Space S>
struct SideInputs {
  View<const float, S> weight{};         ///< the parameter before the update, the same on every rank
  View<const float, S> second_moment{};  ///< sum over this rank's K micro-batches of (their mean gradient / K)^2
};

/// A share that a method reports beside its payload: delivered bytes of those sent, layers compressed of all.
/// Counted since the last reset; reports add them over units and print `what: 97.3 %`.
struct Tally {
  std::string what;
  double part = 0.0;
  double whole = 0.0;
};

/// One rank's sending side of a codec whose choice of what to send depends on earlier steps: accumulated gradients,
/// variances, thresholds. Codecs without a memory of their own have none and ride the generic error feedback.
/// All memory is taken on construction; `encode` is in the timed region.
template <Space S>
class Encoder {
 public:
  virtual ~Encoder() = default;
  Encoder(const Encoder&) = delete;
  Encoder& operator=(const Encoder&) = delete;

  /// Writes the payload of this step as Codec::encode does.
  virtual void encode(Queue<S> queue, View<const float, S> gradient, const SideInputs<S>& side,
                      const EncodeContext& context, View<std::byte, S> payload, View<std::byte, S> scratch) = 0;
  /// Forgets all state, as if newly made.
  virtual void reset(Queue<S> queue) = 0;
  /// Shows all that the steps so far have changed and that a later result, residual() or note() depends on, so that a
  /// new encoder to which it is given goes on with the same bits. Throws Fault::unavailable for an encoder on a GPU.
  virtual void visit_state(StateVisitor& visitor) = 0;
  /// The values held back for later steps.
  [[nodiscard]] virtual View<const float, S> residual() const { return {}; }
  /// For a codec whose descriptor names a target: what the last payload stands for, n values, valid until the next
  /// encode. Not timed; may compute it now. Empty: the gradient.
  [[nodiscard]] virtual View<const float, S> target(Queue<S> /*queue*/) { return {}; }
  /// A note that the reader of a row must see: a missing input, a phase that was not reached. One clause, no full stop.
  [[nodiscard]] virtual std::string note() const { return {}; }
  [[nodiscard]] virtual std::vector<Tally> tallies() const { return {}; }

 protected:
  Encoder() = default;
};

/// The codec's promise about y = decode(encode(x)) for finite x. Infinity where it promises nothing.
struct ErrorBound {
  double nmse = std::numeric_limits<double>::infinity();        ///< sum (x-y)^2 <= nmse * sum x^2
  double of_largest = std::numeric_limits<double>::infinity();  ///< max |x-y| <= of_largest * max |x| + absolute
  double absolute = 0.0;
};

/// A gradient compressor: one method with its parameters. Immutable and free of per-rank state, so that one object
/// serves every rank at once. What survives a step belongs to an Encoder (memory of one rank) or to a Reducer (memory
/// that ranks agree on).
///
/// `encode` and `decode_add` are the timed region: they allocate nothing, synchronise nothing and touch only the views.
/// `plan` must have been called for a size before encode or decode_add is.
///
/// Non-finite input: it comes out as non-finite (how far it spreads is each codec's to say), never as a crash.
template <Space S>
class Codec {
 public:
  virtual ~Codec() = default;
  Codec(const Codec&) = delete;
  Codec& operator=(const Codec&) = delete;

  /// The memory that n elements need. Builds and keeps what depends on n alone (transform plans). Thread-safe. Not
  /// timed.
  [[nodiscard]] virtual Footprint plan(std::size_t n) const = 0;

  /// Writes the payload of `gradient` into `payload` (at least plan(n).payload_bytes, 256-byte aligned). Every byte of
  /// the payload is written. Deterministic in (gradient, context).
  virtual void encode(Queue<S> queue, View<const float, S> gradient, const EncodeContext& context,
                      View<std::byte, S> payload, View<std::byte, S> scratch) const = 0;

  /// out += weight * decode(payload): aggregation, averaging and error feedback (weight -1) are one call.
  ///
  /// On the host the view is exactly as long as the payload was written, and Fault::data is thrown for a payload that
  /// this codec, with these parameters, cannot have written for out.size() elements. On CUDA nothing waits to learn a
  /// size: where the footprint is not exact the view may be longer than the payload, up to plan(n).payload_bytes, and
  /// the payload's own size is read, and not trusted, on the GPU. A damaged payload never leaves the views. Fault::data
  /// for a view that is too long, or of the wrong length where the footprint is exact.
  virtual void decode_add(Queue<S> queue, View<const std::byte, S> payload, float weight, View<float, S> out,
                          View<std::byte, S> scratch) const = 0;

  /// out := decode(payload), under the same conditions. Adding to zero loses the sign of zeros and the bits of NaNs; a
  /// codec that promises to keep every bit keeps them here.
  virtual void decode(Queue<S> queue, View<const std::byte, S> payload, View<float, S> out,
                      View<std::byte, S> scratch) const {
    fill_zero(queue, out);
    decode_add(queue, payload, 1.0F, out, scratch);
  }

  /// out += weight * sum over payloads. The default decodes them one by one; linear transforms decode the sum once.
  virtual void decode_add_all(Queue<S> queue, std::span<const View<const std::byte, S>> payloads, float weight,
                              View<float, S> out, View<std::byte, S> scratch) const {
    for (const auto& payload : payloads) decode_add(queue, payload, weight, out, scratch);
  }

  /// One payload for each gradient, as encode makes them one after the other with context.key.tensor, tensor + 1, ...
  /// For many small tensors, which a GPU encodes in few launches; the default encodes them one by one. Not for codecs
  /// by_layout: there the tensors are a layout's. `scratch` is enough for each of them.
  virtual void encode_each(Queue<S> queue, std::span<const View<const float, S>> gradients,
                           const EncodeContext& context, std::span<const View<std::byte, S>> payloads,
                           View<std::byte, S> scratch) const {
    EncodeContext own = context;
    for (std::size_t i = 0; i < gradients.size(); ++i, ++own.key.tensor)
      encode(queue, gradients[i], own, payloads[i], scratch);
  }
  /// outs[i] += weight * decode(payloads[i]), as decode_add one after the other.
  virtual void decode_add_each(Queue<S> queue, std::span<const View<const std::byte, S>> payloads, float weight,
                               std::span<const View<float, S>> outs, View<std::byte, S> scratch) const {
    for (std::size_t i = 0; i < payloads.size(); ++i) decode_add(queue, payloads[i], weight, outs[i], scratch);
  }

  /// The promise for n elements. Sharp enough that a broken codec misses it.
  [[nodiscard]] virtual ErrorBound bound(std::size_t n) const = 0;

  /// Values (of whatever kind) that are sent for n elements in the first step, at most.
  [[nodiscard]] virtual std::size_t values_sent(std::size_t n) const { return n; }
  /// Values in a payload that was just written, for the column element_ratio. Not timed.
  [[nodiscard]] virtual std::size_t values_in(View<const std::byte, S> /*payload*/, std::size_t n) const {
    return values_sent(n);
  }

  /// The memory of one rank for n elements; null where the method has none of its own. Descriptors of codecs that
  /// return one say `memory`. `ranks`: how many there are, for methods whose clipping depends on it.
  [[nodiscard]] virtual std::unique_ptr<Encoder<S>> make_encoder(std::size_t /*n*/, int /*ranks*/,
                                                                 Queue<S> /*queue*/) const {
    return nullptr;
  }

 protected:
  Codec() = default;
};

}  // namespace gradtool
