#include "lib/codecs/fft_options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lib/core/error.hpp"

namespace gradtool {

FftOptions::FftOptions(const Params& params)
    : theta_{params.real("theta")},
      theta_end_{params.real("theta_end")},
      schedule_{params.is("schedule", "constant") ? Schedule::constant
                : params.is("schedule", "drop")   ? Schedule::drop
                                                  : Schedule::sqrt_lr},
      drop_at_{params.integer("drop_at")},
      bits_{static_cast<std::uint32_t>(params.integer("bits"))},
      scaled_{params.is("range", "auto")},
      chunk_{params.is("chunk", "whole") ? std::size_t{0x7fffffff}
                                         : static_cast<std::size_t>(params.integer("chunk"))} {
  if (bits_ == 32) return;
  if (bits_ > 16)
    throw Error{Fault::usage,
                fmt::format("codec fft: bits={} is not valid; bits is 4 to 16, or 32 for no quantiser", bits_)};
  mantissa_ = params.is("mantissa", "auto") ? bits_ - 4 : static_cast<std::uint32_t>(params.integer("mantissa"));
  const auto range = static_cast<float>(scaled_ ? 1.0 : params.real("range"));
  const auto made = law::RangeFloat::make(bits_, mantissa_, range, range, params.is("rounding", "nearest"));
  if (!made.valid) {
    throw Error{Fault::usage,
                fmt::format("codec fft: bits={} with mantissa={} has no room in the range +-{}; a mantissa near "
                            "bits-4 fits",
                            bits_, mantissa_, range)};
  }
  format_ = made.format;
}

double FftOptions::theta(const EncodeContext& context) const {
  switch (schedule_) {
    case Schedule::constant:
      return theta_;
    case Schedule::drop:  // the paper's runs: theta until the learning rate drops, then less (section 4.1)
      return context.iteration < drop_at_ ? theta_ : theta_end_;
    case Schedule::sqrt_lr:  // theta_t^2 = L eta_t (theorem 3.5), with the constant chosen so that the first step has
                             // theta
      return std::min(theta_, theta_ * std::sqrt(std::max(0.0, context.learning_rate_ratio)));
  }
  return theta_;
}

std::size_t FftOptions::kept(double theta, std::size_t bins) {
  const auto wanted = static_cast<std::size_t>(std::llround((1.0 - theta) * static_cast<double>(bins)));
  return std::min(wanted, bins);
}

std::size_t FftOptions::payload_bound(std::size_t n) const {
  if (n < law::kFftSmallest) return 4 * n;
  const std::size_t bins = shape(n).bins();
  const auto bytes = [&](double theta) { return law::FftLayout{bins, kept(theta, bins), bits_}.bytes(); };
  if (schedule_ == Schedule::constant) return bytes(theta_);
  // Keeping all but one bin still needs the bitmap, so the bound is not simply the payload at theta 0.
  const double least = schedule_ == Schedule::drop ? std::min(theta_, theta_end_) : 0.0;
  return bytes(least) + 4 * ((bins + 31) / 32);
}

law::FftHeader FftOptions::header(std::size_t bins, std::size_t kept, float scale) const {
  return {.bytes = law::FftLayout{bins, kept, bits_}.bytes(),
          .kept = static_cast<std::uint32_t>(kept),
          .bins = static_cast<std::uint32_t>(bins),
          .scale = scale,
          .pbase = format_.pbase,
          .positives = format_.positives,
          .bits = static_cast<std::uint16_t>(bits_),
          .mantissa = static_cast<std::uint16_t>(mantissa_)};
}

}  // namespace gradtool
