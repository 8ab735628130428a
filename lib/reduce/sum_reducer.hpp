#pragma once

#include "lib/reduce/codec_reducer.hpp"

namespace gradtool {

/// Payloads are arrays that add: encode, ring all-reduce of the payload, decode once.
template <Space S>
class SumReducer final : public CodecReducer<S> {
 public:
  SumReducer(std::shared_ptr<const Codec<S>> codec, Dtype dtype, std::size_t n, int ranks, bool error_feedback,
             Queue<S> queue)
      : CodecReducer<S>{std::move(codec), n, ranks, error_feedback, queue}, dtype_{dtype} {}

  /// Payload, codec scratch, and the segment that an all-reduce receives into (at most the payload).
  [[nodiscard]] std::size_t workspace_bytes() const override {
    return 2 * this->padded(this->footprint_.payload_bytes) + this->padded(this->footprint_.scratch_bytes) + 256;
  }

  void reduce(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient, const SideInputs<S>& side,
              const EncodeContext& context, View<std::byte, S> workspace, PhaseClock<S>& clock) override {
    Carver<S> carve{workspace};
    const auto payload = carve.take(this->footprint_.payload_bytes);
    const auto scratch = carve.take(this->footprint_.scratch_bytes);
    const auto segment = carve.take(comm.scratch_bytes(payload.size()));
    in_phase(clock, Phase::encode, queue,
             [&] { this->encode_with_memory(queue, gradient, side, context, payload, scratch); });
    in_phase(clock, Phase::communicate, queue, [&] { comm.all_reduce_sum(queue, payload, dtype_, segment); });
    in_phase(clock, Phase::decode, queue, [&] {
      fill_zero(queue, gradient);
      this->codec_->decode_add(queue, payload, 1.0F / static_cast<float>(comm.size()), gradient, scratch);
    });
    this->payload_bytes_ = payload.size();
    this->last_ = payload;  // the sum by now, of payloads of one size
  }

 private:
  Dtype dtype_;
};

/// The uncompressed all-reduce, by the library itself: in place, nothing to encode; the division by the number of ranks
/// is its decoding.
template <Space S>
class DenseReducer final : public Reducer<S> {
 public:
  explicit DenseReducer(std::size_t n) : n_{n} {}

  [[nodiscard]] std::size_t workspace_bytes() const override { return Arena<S>::padded_size(4 * n_) + 256; }
  void reduce(Communicator<S>& comm, Queue<S> queue, View<float, S> gradient, const SideInputs<S>& /*side*/,
              const EncodeContext& /*context*/, View<std::byte, S> workspace, PhaseClock<S>& clock) override {
    in_phase(clock, Phase::encode, queue, [] {});
    in_phase(clock, Phase::communicate, queue,
             [&] { comm.all_reduce_native(queue, as_writable_bytes(gradient), Dtype::f32, workspace); });
    in_phase(clock, Phase::decode, queue, [&] { scale(queue, gradient, 1.0F / static_cast<float>(comm.size())); });
  }
  void reset(Queue<S> /*queue*/) override {}
  [[nodiscard]] std::uint64_t payload_bytes() const override { return 4 * n_; }
  [[nodiscard]] std::uint64_t values_sent(Queue<S> /*queue*/) const override { return n_; }

 private:
  std::size_t n_;
};

/// Sends nothing; the result is zero.
template <Space S>
class SilentReducer final : public Reducer<S> {
 public:
  [[nodiscard]] std::size_t workspace_bytes() const override { return 0; }
  void reduce(Communicator<S>& /*comm*/, Queue<S> queue, View<float, S> gradient, const SideInputs<S>& /*side*/,
              const EncodeContext& /*context*/, View<std::byte, S> /*workspace*/, PhaseClock<S>& clock) override {
    in_phase(clock, Phase::encode, queue, [] {});
    in_phase(clock, Phase::communicate, queue, [] {});
    in_phase(clock, Phase::decode, queue, [&] { fill_zero(queue, gradient); });
  }
  void reset(Queue<S> /*queue*/) override {}
  [[nodiscard]] std::uint64_t payload_bytes() const override { return 0; }
  [[nodiscard]] std::uint64_t values_sent(Queue<S> /*queue*/) const override { return 0; }
};

}  // namespace gradtool
