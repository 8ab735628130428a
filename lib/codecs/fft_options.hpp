#pragma once

#include <array>
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
  [[nodiscard]] law::FftShape shape(std::size_t n) const { return law::FftShape::of(n, chunk_); }
  /// Bins to keep among `bins`: round((1-theta) bins); of a piece that is selected alone at least one, unless theta is
  /// 1, so that what is not finite does not vanish.
  [[nodiscard]] std::size_t kept_of(double theta, std::size_t bins) const;
  /// K, the bins that a payload keeps.
  [[nodiscard]] std::size_t kept(double theta, const law::FftShape& shape) const;
  /// The most that any step of the schedule keeps.
  [[nodiscard]] std::size_t most_kept(const law::FftShape& shape) const { return kept(least_theta(), shape); }
  /// The largest payload that any step of the schedule makes for n elements.
  [[nodiscard]] std::size_t payload_bound(std::size_t n) const;
  /// Payload size does not depend on the step.
  [[nodiscard]] bool constant() const { return schedule_ == Schedule::constant; }
  [[nodiscard]] double largest_theta() const { return theta_; }
  /// What the codec promises for n elements.
  [[nodiscard]] ErrorBound bound(std::size_t n) const;

  [[nodiscard]] std::uint32_t bits() const { return bits_; }
  /// m of the first payload, and of every payload unless calibration chooses it.
  [[nodiscard]] std::uint32_t mantissa() const { return mantissa_; }
  /// The number format of mantissa(); all zero when bits() is 32.
  [[nodiscard]] const law::RangeFloat& format() const { return formats_[mantissa_].format; }
  /// The formats of this many bits by their m; not all are valid.
  static constexpr std::uint32_t kMantissas = 16;
  [[nodiscard]] const law::RangeFloat::Made& format_with(std::uint32_t mantissa) const { return formats_[mantissa]; }
  /// The formats that a payload may have.
  [[nodiscard]] law::RangeFormats formats() const {
    if (!mantissa_varies()) return law::RangeFormats::only(mantissa_, format());
    law::RangeFormats all;
    for (std::uint32_t m = 0; m < kMantissas; ++m) {
      if (formats_[m].valid) all.add(m, formats_[m].format);
    }
    return all;
  }
  /// Header and format of payloads may differ in m.
  [[nodiscard]] bool mantissa_varies() const { return calibrated() && best_mantissa_; }

  /// The format covers +-1 and a scale goes with each payload; else it covers the fixed range of the paper.
  [[nodiscard]] bool scaled() const { return range_ != Range::fixed; }
  /// The scale comes from the first steps, through an Encoder's memory; else from the payload's own largest component.
  [[nodiscard]] bool calibrated() const { return range_ == Range::calibrated && bits_ != 32; }
  [[nodiscard]] std::size_t calibration_steps() const { return calibrate_; }

  /// Every piece keeps its share of bins, instead of the strongest of all pieces.
  [[nodiscard]] bool by_piece() const { return by_piece_; }
  /// Input and output of the encoder's transforms are rounded to binary16.
  [[nodiscard]] bool half() const { return half_; }

  /// Header of a payload that keeps `kept` bins of `bins`, with m = mantissa(); its scale is left open.
  [[nodiscard]] law::FftHeader header(std::size_t bins, std::size_t kept) const;
  /// The same with another m.
  [[nodiscard]] law::FftHeader header(std::size_t bins, std::size_t kept, std::uint32_t mantissa) const;

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
  std::array<law::RangeFloat::Made, kMantissas> formats_{};
  std::size_t chunk_;
};

}  // namespace gradtool
