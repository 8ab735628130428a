#pragma once

#include <memory>
#include <span>

#include "kernels/vector.hpp"
#include "lib/codecs/generic_reducers.hpp"

namespace gradtool {

/// The state that one step of a rank changes: the momentum as coefficients, chunk after chunk, and the part of it that
/// was sent.
template <Space S>
struct DemoState {
  View<float, S> momentum;  ///< without what was sent
  View<float, S> values;    ///< the coefficients that were sent, chunk after chunk
  View<std::uint16_t, S> positions;
};

/// The momentum of one rank. `DemoCodec` has sent(), step(queue, gradient, state, payload, scratch) and restore(queue,
/// state, out), which computes the momentum before what was sent was taken out.
template <Space S, class DemoCodec>
class DemoEncoder final : public Encoder<S> {
 public:
  DemoEncoder(const DemoCodec& codec, std::size_t n, Queue<S> queue)
      : codec_{codec},
        arena_{Arena<S>::padded_size(4 * n) + Arena<S>::padded_size(4 * codec.sent()) +
               Arena<S>::padded_size(2 * codec.sent())},
        state_{.momentum = arena_.template take<float>(n),
               .values = arena_.template take<float>(codec.sent()),
               .positions = arena_.template take<std::uint16_t>(codec.sent())} {
    DemoEncoder::reset(queue);
  }

  void encode(Queue<S> queue, View<const float, S> gradient, const SideInputs<S>& /*side*/,
              const EncodeContext& /*context*/, View<std::byte, S> payload, View<std::byte, S> scratch) override {
    codec_.step(queue, gradient, &state_, payload, scratch);
  }
  void reset(Queue<S> queue) override {
    fill_zero(queue, state_.momentum);
    fill_zero(queue, state_.values);
    // Two positions in each float, and padding behind the last: target() puts nothing back anywhere.
    fill_zero(queue, {reinterpret_cast<float*>(state_.positions.data()), (state_.positions.size() + 1) / 2});
  }
  void visit_state(StateVisitor& visitor) override { visitor.values("momentum", state_.momentum); }
  /// The momentum's coefficients: their norm is that of the momentum, because the transform is orthonormal.
  [[nodiscard]] View<const float, S> residual() const override { return state_.momentum; }
  [[nodiscard]] View<const float, S> target(Queue<S> queue) override {
    if (!target_) target_ = std::make_unique<Arena<S>>(2 * Arena<S>::padded_size(4 * state_.momentum.size()));
    target_->rewind();
    const auto out = target_->template take<float>(state_.momentum.size());
    codec_.restore(queue, state_, target_->template take<float>(state_.momentum.size()), out);
    return out;
  }

 private:
  const DemoCodec& codec_;
  Arena<S> arena_;
  DemoState<S> state_;
  std::unique_ptr<Arena<S>> target_;  ///< made when somebody asks
};

/// Gathers payloads, and averages coefficients before they are transformed back.
template <Space S, class DemoCodec>
class DemoReducer final : public GatherReducer<S> {
 public:
  explicit DemoReducer(const ReducerSetup<S>& setup)
      : GatherReducer<S>{setup.codec, setup.layout.elements, setup.ranks, Feedback::off, setup.queue},
        codec_{static_cast<const DemoCodec&>(*setup.codec)} {}

 protected:
  void combine(Queue<S> queue, std::span<const View<const std::byte, S>> payloads, View<float, S> result,
               View<std::byte, S> scratch) override {
    codec_.combine(queue, payloads, result, scratch);
  }

 private:
  const DemoCodec& codec_;
};

}  // namespace gradtool
