#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/law/fft_payload.hpp"
#include "kernels/law/range_float.hpp"
#include "lib/codecs/codec.hpp"
#include "lib/codecs/params.hpp"

namespace gradtool {

/// What the fft codec's parameters come to; shared by its CPU and its CUDA side.
class FftOptions {
 public:
  /// Throws Fault::usage when bits, mantissa and range do not make a format.
  explicit FftOptions(const Params& params);

  /// theta of this step: the share of bins that is dropped (schedules: docs/codecs.md).
  [[nodiscard]] double theta(const EncodeContext& context) const;
  /// K = round((1-theta) bins).
  [[nodiscard]] static std::size_t kept(double theta, std::size_t bins);

  [[nodiscard]] law::FftShape shape(std::size_t n) const { return law::FftShape::of(n, chunk_); }
  /// The largest payload that any step of the schedule makes for n elements.
  [[nodiscard]] std::size_t payload_bound(std::size_t n) const;
  /// Payload size does not depend on the step.
  [[nodiscard]] bool constant() const { return schedule_ == Schedule::constant; }
  [[nodiscard]] double largest_theta() const { return theta_; }

  [[nodiscard]] std::uint32_t bits() const { return bits_; }
  [[nodiscard]] std::uint32_t mantissa() const { return mantissa_; }
  /// The number format; all zero when bits() is 32.
  [[nodiscard]] const law::RangeFloat& format() const { return format_; }
  /// Per-payload scale (the largest kept component becomes 1), or the fixed range of the paper.
  [[nodiscard]] bool scaled() const { return scaled_; }

  /// Header of a payload with `kept` bins and this scale.
  [[nodiscard]] law::FftHeader header(std::size_t bins, std::size_t kept, float scale) const;

 private:
  enum class Schedule : std::uint8_t { constant, sqrt_lr, drop };
  double theta_, theta_end_;
  Schedule schedule_;
  std::int64_t drop_at_;
  std::uint32_t bits_, mantissa_ = 0;
  bool scaled_;
  law::RangeFloat format_{};
  std::size_t chunk_;
};

}  // namespace gradtool
