#pragma once

#include <cstring>
#include <utility>
#include <vector>

#include "lib/reduce/ops.hpp"
#include "lib/reduce/reducer.hpp"

namespace gradtool {

/// What the generic reducers share: the codec, its footprint, the residual.
template <Space S>
class CodecReducer : public Reducer<S> {
 public:
  CodecReducer(std::shared_ptr<const Codec<S>> codec, std::size_t n, int ranks, bool error_feedback, Queue<S> queue)
      : codec_{std::move(codec)},
        n_{n},
        ranks_{ranks},
        footprint_{codec_->plan(n)},
        state_{error_feedback ? n * sizeof(float) : 0},
        residual_{state_.template take<float>(error_feedback ? n : 0)},
        encoder_{codec_->make_encoder(n, ranks, queue)} {
    fill_zero(queue, residual_);
  }

  void reset(Queue<S> queue) override {
    fill_zero(queue, residual_);
    if (encoder_) encoder_->reset(queue);
  }
  [[nodiscard]] std::uint64_t payload_bytes() const override { return payload_bytes_; }
  [[nodiscard]] std::uint64_t values_sent(Queue<S> /*queue*/) const override { return codec_->values_in(last_, n_); }
  [[nodiscard]] View<const float, S> residual() const override {
    return encoder_ && residual_.empty() ? encoder_->residual() : residual_;
  }
  [[nodiscard]] std::string note() const override { return encoder_ ? encoder_->note() : std::string{}; }
  [[nodiscard]] std::vector<Tally> tallies() const override {
    return encoder_ ? encoder_->tallies() : std::vector<Tally>{};
  }

 protected:
  /// Encodes the gradient, through the codec's own memory where it has one. With error feedback, which codecs of
  /// descriptors with `memory` do not take, encodes gradient + residual and keeps what the payload does not say.
  /// Error feedback (Seide et al. 2014; Karimireddy et al. 2019): u = g + e; send C(u); e = u - D(C(u)).
  void encode_with_memory(Queue<S> queue, View<float, S> gradient, const SideInputs<S>& side,
                          const EncodeContext& context, View<std::byte, S> payload, View<std::byte, S> scratch) {
    const auto encode = [&](View<const float, S> values) {
      if (encoder_)
        encoder_->encode(queue, values, side, context, payload, scratch);
      else
        codec_->encode(queue, values, context, payload, scratch);
    };
    if (residual_.empty()) return encode(gradient);
    add(queue, gradient, residual_);
    encode(residual_);
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

  static constexpr std::size_t padded(std::size_t bytes) { return Arena<S>::padded_size(bytes); }

  std::shared_ptr<const Codec<S>> codec_;
  std::size_t n_;
  int ranks_;
  Footprint footprint_;
  Arena<S> state_;
  View<float, S> residual_;
  std::unique_ptr<Encoder<S>> encoder_;
  View<const std::byte, S> last_;  ///< the payload of the last reduce, in the workspace
  std::uint64_t payload_bytes_ = 0;
};

/// Cuts a workspace into 256-byte aligned pieces.
template <Space S>
class Carver {
 public:
  explicit Carver(View<std::byte, S> view) : view_{view} {}
  [[nodiscard]] View<std::byte, S> take(std::size_t bytes) {
    expects(Arena<S>::padded_size(bytes) <= view_.size() - used_, "a reducer's workspace is too small");
    const auto piece = view_.part(used_, bytes);
    used_ += Arena<S>::padded_size(bytes);
    return piece;
  }

 private:
  View<std::byte, S> view_;
  std::size_t used_ = 0;
};

}  // namespace gradtool
