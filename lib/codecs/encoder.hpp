#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lib/core/view.hpp"

namespace gradtool {

struct EncodeContext;

/// What a capture knows beside the gradient, element by element. Empty where the file does not have it.
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
  /// What is held back for later steps.
  [[nodiscard]] virtual View<const float, S> residual() const { return {}; }
  /// What the reader of a row must know: a missing input, a phase that was not reached. One clause, no full stop.
  [[nodiscard]] virtual std::string note() const { return {}; }
  [[nodiscard]] virtual std::vector<Tally> tallies() const { return {}; }

 protected:
  Encoder() = default;
};

}  // namespace gradtool
