#include "lib/methods/fft/options.hpp"

#include <algorithm>
#include <cmath>

#include "lib/core/throw_error.hpp"

namespace gradtool {

FftOptions::FftOptions(const Params& params)
    : theta_{params.real("theta")},
      theta_end_{params.real("theta_end")},
      schedule_{params.is("schedule", "constant") ? Schedule::constant
                : params.is("schedule", "drop")   ? Schedule::drop
                                                  : Schedule::sqrt_lr},
      drop_at_{params.integer("drop_at")},
      bits_{static_cast<std::uint32_t>(params.integer("bits"))},
      best_mantissa_{params.is("mantissa", "auto")},
      range_{params.is("range", "auto")         ? Range::own
             : params.is("range", "calibrated") ? Range::calibrated
                                                : Range::fixed},
      calibrate_{static_cast<std::size_t>(params.integer("calibrate"))},
      by_piece_{params.is("select", "chunk")},
      half_{params.is("precision", "fp16")},
      chunk_{params.is("chunk", "whole") ? std::size_t{0x7fffffff}
                                         : static_cast<std::size_t>(params.integer("chunk"))} {
  if (schedule_ == Schedule::drop && drop_at_ == 0) {
    throw Error{
        Fault::usage,
        "codec fft: schedule=drop wants drop_at, the training iteration from which theta_end holds, 1 at least"};
  }
  if (bits_ == 32) {
    formats_ = format::RangeFormats::only(0, {});
    return;
  }
  if (bits_ > 16)
    throw_error(Fault::usage, "codec fft: bits={} is not valid; bits is 4 to 16, or 32 for no quantiser", bits_);
  mantissa_ = best_mantissa_ ? bits_ - 4 : static_cast<std::uint32_t>(params.integer("mantissa"));
  const auto range = static_cast<float>(range_ == Range::fixed ? params.real("range") : 1.0);
  for (std::uint32_t m = 0; m < format::RangeFormats::kMantissas; ++m) {
    if (m != mantissa_ && !mantissa_varies()) continue;
    const auto made = format::RangeFloat::make(bits_, m, range, range, params.is("rounding", "nearest"));
    if (made) formats_.add(m, *made);
  }
  if (!formats_.has(mantissa_)) {
    throw_error(Fault::usage,
                "codec fft: bits={} with mantissa={} has no room in the range +-{}; a mantissa near bits-4 fits", bits_,
                mantissa_, range);
  }
}

double FftOptions::theta(const EncodeContext& context) const {
  switch (schedule_) {
    case Schedule::constant:
      return theta_;
    case Schedule::drop:  // as in the paper's runs (section 4.1): a smaller theta once the learning rate has dropped
      return context.iteration < drop_at_ ? theta_ : theta_end_;
    case Schedule::sqrt_lr:  // theta_t^2 = L eta_t (theorem 3.5); L makes theta_ that of the highest rate so far
      return std::min(theta_, theta_ * std::sqrt(std::max(0.0, context.learning_rate_ratio)));
  }
  return theta_;
}

double FftOptions::least_theta() const {
  switch (schedule_) {
    case Schedule::constant:
      return theta_;
    case Schedule::drop:
      return std::min(theta_, theta_end_);
    case Schedule::sqrt_lr:
      return 0.0;
  }
  return 0.0;
}

std::size_t FftOptions::kept_of(double theta, std::size_t bins) const {
  const auto wanted = static_cast<std::size_t>(std::llround((1.0 - theta) * static_cast<double>(bins)));
  return std::clamp<std::size_t>(wanted, by_piece_ && theta < 1.0 ? 1 : 0, bins);
}

std::size_t FftOptions::kept(double theta, const format::FftShape& shape) const {
  if (!by_piece_) return kept_of(theta, shape.bins());
  return shape.chunks * kept_of(theta, shape.bins_per_chunk()) +
         (shape.tail == 0 ? 0 : kept_of(theta, shape.tail_bins()));
}

std::size_t FftOptions::payload_bound(std::size_t n) const {
  if (n < format::kFftSmallest) return 4 * n;
  const format::FftShape cut = shape(n);
  const std::size_t bytes = format::FftLayout{cut.bins(), most_kept(cut), bits_}.bytes();
  if (schedule_ == Schedule::constant) return bytes;
  // Keeping all but one bin still needs the bitmap, so the bound is not simply the payload at theta 0.
  return bytes + 4 * ((cut.bins() + 31) / 32);
}

format::FftHeader FftOptions::header(std::size_t bins, std::size_t kept, std::uint32_t mantissa) const {
  const format::RangeFloat& format = formats_.format[mantissa];
  return {.bytes = format::FftLayout{bins, kept, bits_}.bytes(),
          .kept = static_cast<std::uint32_t>(kept),
          .bins = static_cast<std::uint32_t>(bins),
          .scale = 0.0F,
          .pbase = format.pbase,
          .positives = format.positives,
          .bits = static_cast<std::uint16_t>(bits_),
          .mantissa = static_cast<std::uint16_t>(mantissa)};
}

// The sum of the errors of each step, as shares of the norm. Dropping the weakest theta of the bins leaves at most the
// share theta of the energy when every bin counts once; in a real signal's spectrum the inner bins count twice and the
// first and the last once, hence the factor 2. Quantising changes each component by up to 2^-m of itself, and by up to
// eps of the largest one where it underflows. No component changes by more than itself, whether it is dropped,
// underflows or is quantised, so that they cannot change by more than the norm together. Rounding to binary16 happens
// twice, each time by up to 2^-11.
ErrorBound FftOptions::bound(std::size_t n) const {
  if (n < format::kFftSmallest) return {.nmse = 0.0, .of_largest = 0.0};
  // A fixed range clips larger components, and a calibrated range those larger than in the first steps: no bound holds.
  if (range_ == Range::fixed || calibrated()) return {};
  const format::FftShape cut = shape(n);
  const auto share = [&](std::size_t bins) {
    return static_cast<double>(kept_of(theta_, bins)) / static_cast<double>(bins);
  };
  double least = share(by_piece_ ? cut.bins_per_chunk() : cut.bins());
  if (by_piece_ && cut.tail > 0) least = std::min(least, share(cut.tail_bins()));
  const double dropped = std::sqrt(std::min(1.0, 2.0 * (1.0 - least)));
  const bool plain = bits_ == 32;
  const double relative = plain ? 1e-6 : std::ldexp(1.0, -static_cast<int>(mantissa_));
  const double numbers = 4.0 * static_cast<double>(kept(theta_, cut));
  const double underflow = plain ? 0.0 : static_cast<double>(formats_.format[mantissa_].eps()) * std::sqrt(numbers);
  const double rounding = (half_ ? 0x1p-10 : 0.0) + 1e-6;
  const double norm = std::min(1.0, dropped + relative + underflow) + rounding;
  return {.nmse = norm * norm};
}

}  // namespace gradtool
