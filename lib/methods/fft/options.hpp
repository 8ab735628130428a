#pragma once

#include <cstddef>
#include <cstdint>

#include "lib/codecs/codec.hpp"
#include "lib/codecs/params.hpp"
#include "lib/methods/fft/format.hpp"

namespace gradtool {

/// The parameters of the fft codec and what follows from them. CPU and GPU share it.
class FftOptions {
 public:
  /// Throws Fault::usage when bits, mantissa and range do not make a number format.
  explicit FftOptions(const Params& params);

  /// How n elements are cut into transforms.
  [[nodiscard]] format::FftShape shape(std::size_t n) const { return format::FftShape::of(n, chunk_); }

  /// The share of bins that this step drops, by the parameter `schedule`.
  [[nodiscard]] double theta(const EncodeContext& context) const;
  /// Bins to keep among `bins` that are selected together: round((1-theta) bins). With select=chunk it is at least one
  /// unless theta is 1, so that a piece with numbers that are not finite cannot vanish.
  [[nodiscard]] std::size_t kept_of(double theta, std::size_t bins) const;
  /// Bins that a payload keeps, K.
  [[nodiscard]] std::size_t kept(double theta, const format::FftShape& shape) const;
  /// The most bins that any step of the schedule keeps.
  [[nodiscard]] std::size_t most_kept(const format::FftShape& shape) const { return kept(least_theta(), shape); }
  /// Bytes of the largest payload that any step of the schedule makes for n elements.
  [[nodiscard]] std::size_t payload_bound(std::size_t n) const;
  /// True when the size of a payload does not depend on the step.
  [[nodiscard]] bool constant() const { return schedule_ == Schedule::constant; }
  [[nodiscard]] double largest_theta() const { return theta_; }
  /// The error that the codec promises for n elements.
  [[nodiscard]] ErrorBound bound(std::size_t n) const;

  /// Bits of a code; 32 when components are sent as float32.
  [[nodiscard]] std::uint32_t bits() const { return bits_; }
  /// m of the first payload, and of every payload unless calibration chooses it.
  [[nodiscard]] std::uint32_t mantissa() const { return mantissa_; }
  /// True when calibration chooses m, so that a payload's header says which m it has.
  [[nodiscard]] bool mantissa_varies() const { return calibrated() && best_mantissa_; }
  /// The number formats that payloads of these parameters may have.
  [[nodiscard]] const format::RangeFormats& formats() const { return formats_; }

  /// True when each payload is scaled to its own largest component. Otherwise the range is fixed or calibrated.
  [[nodiscard]] bool scaled_to_peak() const { return range_ != Range::fixed && bits_ != 32; }
  /// True when the range is learnt from the first steps, which needs an Encoder's memory.
  [[nodiscard]] bool calibrated() const { return range_ == Range::calibrated && bits_ != 32; }
  [[nodiscard]] std::size_t calibration_steps() const { return calibrate_; }

  /// True when every piece keeps its own strongest bins, instead of the strongest of all pieces.
  [[nodiscard]] bool by_piece() const { return by_piece_; }
  /// True when input and output of the encoder's transforms are rounded to binary16.
  [[nodiscard]] bool half() const { return half_; }

  /// Header of a payload that keeps `kept` of `bins` bins with `mantissa` mantissa bits; its scale is left open.
  [[nodiscard]] format::FftHeader header(std::size_t bins, std::size_t kept, std::uint32_t mantissa) const;
  /// Makes the header with m = mantissa().
  [[nodiscard]] format::FftHeader header(std::size_t bins, std::size_t kept) const {
    return header(bins, kept, mantissa_);
  }

 private:
  enum class Schedule : std::uint8_t { constant, sqrt_lr, drop };
  enum class Range : std::uint8_t { own, fixed, calibrated };

  [[nodiscard]] double least_theta() const;

  double theta_, theta_end_;
  Schedule schedule_;
  std::int64_t drop_at_;
  std::uint32_t bits_, mantissa_ = 0;
  bool best_mantissa_;
  Range range_;
  std::size_t calibrate_;
  bool by_piece_;
  bool half_;
  format::RangeFormats formats_;
  std::size_t chunk_;
};

}  // namespace gradtool
