#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/vector.hpp"
#include "lib/codecs/codec.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/core/arena.hpp"

namespace gradtool {

/// The state of one rank that encodes the gradient of one unit, step after step: the codec's own memory where it has
/// one, or the residual of error feedback, or the sum of what EF21 has sent and the average that it sends. All memory
/// is taken on construction.
template <Space S>
class SendingSide {
 public:
  /// `feedback` must be off for a codec with a memory of its own; parse_codec sees to it.
  SendingSide(std::shared_ptr<const Codec<S>> codec, std::size_t n, int ranks, Feedback feedback, Queue<S> queue)
      : codec_{std::move(codec)},
        footprint_{codec_->plan(n)},
        eta_{feedback.eta},
        state_{((feedback == Feedback::off ? 0U : 1U) + (feedback.ef21() ? 1U : 0U) + (feedback.averages() ? 1U : 0U)) *
               Arena<S>::padded_size(n * sizeof(float))},
        residual_{state_.template take<float>(feedback == Feedback::off ? 0 : n)},
        sent_{state_.template take<float>(feedback.ef21() ? n : 0)},
        average_{state_.template take<float>(feedback.averages() ? n : 0)},
        encoder_{codec_->make_encoder(n, ranks, queue)} {
    fill_zero(queue, residual_);
    fill_zero(queue, sent_);
    fill_zero(queue, average_);
  }

  /// Encodes the gradient, through the codec's own memory where it has one. With error feedback encodes gradient +
  /// residual and keeps what the payload does not say. With EF21 encodes the difference to what the payloads so far add
  /// up to.
  /// Error feedback (Seide et al. 2014; Karimireddy et al. 2019): u = g + e; send C(u); e = u - D(C(u)).
  /// EF21 (Richtarik, Sokolov, Fatkhullin 2021), from s = 0: send C(g - s); s += D(C(g - s)). The sum is made as
  /// receivers make theirs, so that no rounding comes between what they have and what is thought that they have.
  /// EF21 with momentum (Fatkhullin, Tyurin, Richtarik 2023, Algorithm 1, EF21-SGDM): the same with the average
  /// h += eta (g - h) in the place of g, which is the first gradient in the first step.
  void encode(Queue<S> queue, View<const float, S> gradient, const SideInputs<S>& side, const EncodeContext& context,
              View<std::byte, S> payload, View<std::byte, S> scratch) {
    const auto write = [&](View<const float, S> values) {
      if (encoder_)
        encoder_->encode(queue, values, side, context, payload, scratch);
      else
        codec_->encode(queue, values, context, payload, scratch);
    };
    if (residual_.empty()) return write(gradient);
    if (!sent_.empty()) {
      View<const float, S> wanted = gradient;
      if (!average_.empty()) {
        approach(queue, gradient, started_ != 0 ? eta_ : 1.0F, average_);
        started_ = 1;
        wanted = average_;
      }
      subtract(queue, wanted, sent_, residual_);
      write(residual_);
      codec_->decode_add(queue, just_written(payload), 1.0F, sent_, scratch);
      return subtract(queue, wanted, sent_, residual_);
    }
    add(queue, gradient, residual_);
    write(residual_);
    codec_->decode_add(queue, just_written(payload), -1.0F, residual_, scratch);
  }

  /// A payload just written, as decode_add takes it: on the host as long as it says that it is, on a GPU, where only
  /// the GPU knows that yet, with all the room that it had.
  [[nodiscard]] View<const std::byte, S> just_written(View<std::byte, S> payload) const {
    std::uint64_t bytes = footprint_.payload_bytes;
    if constexpr (S == Space::host) {
      if (!footprint_.exact) std::memcpy(&bytes, payload.data(), sizeof bytes);
    }
    return payload.first(static_cast<std::size_t>(bytes));
  }

  /// Forgets all state, as if newly made.
  void reset(Queue<S> queue) {
    fill_zero(queue, residual_);
    fill_zero(queue, sent_);
    fill_zero(queue, average_);
    started_ = 0;
    if (encoder_) encoder_->reset(queue);
  }

  /// See Reducer::visit_state.
  void visit_state(StateVisitor& visitor) {
    visitor.values("residual", residual_);
    if (!sent_.empty()) visitor.values("sent", sent_);
    if (!average_.empty()) {
      visitor.values("average", average_);
      visitor.value("average begun", started_);
    }
    if (encoder_) encoder_->visit_state(visitor);
  }

  [[nodiscard]] const Codec<S>& codec() const { return *codec_; }
  [[nodiscard]] const Footprint& footprint() const { return footprint_; }
  /// The values held back for later steps; empty if there are none. With EF21 it is the last gradient, or the average,
  /// less what all payloads add up to, and is not added to the next gradient.
  [[nodiscard]] View<const float, S> residual() const {
    return encoder_ && residual_.empty() ? encoder_->residual() : residual_;
  }
  [[nodiscard]] View<const float, S> target(Queue<S> queue) {
    return encoder_ ? encoder_->target(queue) : View<const float, S>{};
  }
  [[nodiscard]] std::string note() const { return encoder_ ? encoder_->note() : std::string{}; }
  [[nodiscard]] std::vector<Tally> tallies() const { return encoder_ ? encoder_->tallies() : std::vector<Tally>{}; }

 private:
  std::shared_ptr<const Codec<S>> codec_;
  Footprint footprint_;
  float eta_;
  std::uint32_t started_ = 0;  ///< 1 once the average has its first gradient
  Arena<S> state_;
  View<float, S> residual_;
  View<float, S> sent_;     ///< EF21: what the payloads so far add up to
  View<float, S> average_;  ///< EF21 with momentum: the average of gradients over steps
  std::unique_ptr<Encoder<S>> encoder_;
};

}  // namespace gradtool
