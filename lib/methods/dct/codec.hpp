#pragma once

#include <cstdint>
#include <string>

#include "kernels/float_bits.hpp"
#include "kernels/vector.hpp"
#include "lib/codecs/codec.hpp"
#include "lib/codecs/params.hpp"
#include "lib/core/arena.hpp"

/// The part that the CPU and the GPU version of codec dct share: its thresholds, and the state of a rank.
namespace gradtool {

namespace format {

/// Thresholds are binary32 patterns of magnitudes. Zeros are never sent, so the pattern 0 says that there is none yet.
inline constexpr std::uint32_t kNoThreshold = 0;
/// A threshold is at most infinity: what is not finite is always sent, and a threshold among the NaNs would stop
/// everything else until the next refresh.
inline constexpr std::uint32_t kInfinity = 0x7f800000u;

/// Whether a step finds the threshold anew. One that is not finite would stop everything else until the next refresh.
GT_HD inline bool refreshes(std::uint32_t threshold, bool scheduled) {
  return scheduled || threshold == kNoThreshold || threshold >= kInfinity;
}
/// The threshold that follows from the k-th largest pattern.
GT_HD inline std::uint32_t usable_threshold(std::uint32_t kth) {
  return kth < 1 ? 1 : kth < kInfinity ? kth : kInfinity;
}

}  // namespace format

/// The residual and the threshold of one rank. `DctCodec` is the codec of a processor; its function step() encodes one
/// step and updates both.
template <Space S, class DctCodec>
class DctEncoder final : public Encoder<S> {
 public:
  /// A threshold serves `refresh` steps.
  DctEncoder(const DctCodec& codec, std::int64_t refresh, std::size_t n, Queue<S> queue)
      : codec_{codec},
        refresh_{refresh},
        arena_{Arena<S>::padded_size(sizeof(float) * n) + Arena<S>::kAlignment},
        residual_{arena_.template take<float>(n)},
        threshold_{arena_.template take<std::uint32_t>(1)} {
    DctEncoder::reset(queue);
  }

  void encode(Queue<S> queue, View<const float, S> gradient, const SideInputs<S>& /*side*/,
              const EncodeContext& /*context*/, View<std::byte, S> payload, View<std::byte, S> scratch) override {
    const bool scheduled = steps_++ % refresh_ == 0;
    codec_.step(queue, gradient, scheduled, residual_, threshold_.data(), payload, scratch);
  }
  void reset(Queue<S> queue) override {
    fill_zero(queue, residual_);
    fill_zero(queue, {reinterpret_cast<float*>(threshold_.data()), 1});
    steps_ = 0;
  }
  void visit_state(StateVisitor& visitor) override {
    visitor.values("residual", residual_);
    visitor.value("steps", steps_);
    visitor.values("threshold", threshold_);
  }
  [[nodiscard]] View<const float, S> residual() const override { return residual_; }
  [[nodiscard]] std::string note() const override {
    if (steps_ < 2 || steps_ > refresh_) return "";
    return "the threshold is that of the first of " + std::to_string(steps_) + " steps";
  }

 private:
  const DctCodec& codec_;
  std::int64_t refresh_;
  Arena<S> arena_;
  View<float, S> residual_;
  View<std::uint32_t, S> threshold_;
  std::int64_t steps_ = 0;
};

}  // namespace gradtool
