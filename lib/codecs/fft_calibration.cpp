#include "lib/codecs/fft_calibration.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/law/hd.hpp"

namespace gradtool {
namespace {

constexpr double kSaturatedShare = 1e-4;

GT_SIMD_CLONES std::size_t count_above(const float* x, std::size_t count, float limit) {
  std::uint32_t above = 0;
  for (std::size_t i = 0; i < count; ++i) above += std::abs(x[i]) > limit ? 1U : 0U;
  return above;
}

}  // namespace

FftCalibration::FftCalibration(const FftOptions& options)
    : options_{options}, samples_(kSamples * options.calibration_steps()) {
  reset();
}

void FftCalibration::reset() {
  recalibrations_ = 0;
  start();
}

void FftCalibration::start() {
  sampled_ = 0;
  steps_left_ = options_.calibration_steps();
  largest_ = 0.0F;
  range_ = 0.0F;
  mantissa_ = options_.mantissa();
}

FftCalibration::Choice FftCalibration::next(const host::KeptBins& kept, float unit) {
  const host::FftScaling own = host::scaling_of(kept.largest, unit, true, true);
  if (!(own.scale > 0.0F)) return {own, mantissa_};  // zeros, or not finite: nothing to learn from
  const float largest = own.scale;                   // as a unitary coefficient
  if (range_ > 0.0F && largest > range_) {
    const std::size_t above = count_above(kept.values.data(), kept.values.size(), range_ / unit);
    if (static_cast<double>(above) > kSaturatedShare * static_cast<double>(kept.values.size())) {
      ++recalibrations_;
      start();
    }
  }
  if (range_ > 0.0F) return {{unit / range_, range_}, mantissa_};
  const Choice choice{own, mantissa_};
  learn(kept, unit);
  return choice;
}

void FftCalibration::learn(const host::KeptBins& kept, float unit) {
  const std::size_t count = kept.values.size();
  const std::size_t take = std::min(count, kSamples);
  for (std::size_t i = 0; i < take; ++i) samples_[sampled_++] = unit * kept.values[i * count / take];
  largest_ = std::max(largest_, unit * law::float_of(kept.largest));
  if (--steps_left_ > 0) return;
  range_ = largest_;
  if (options_.mantissa_varies()) mantissa_ = best_mantissa();
}

std::uint32_t FftCalibration::best_mantissa() const {
  std::uint32_t best = options_.mantissa();
  double least = std::numeric_limits<double>::infinity();
  for (std::uint32_t m = 0; m < FftOptions::kMantissas; ++m) {
    const auto& [format, valid] = options_.format_with(m);
    if (!valid) continue;
    double error = 0.0;
    for (std::size_t i = 0; i < sampled_; ++i) {
      const float x = samples_[i] / range_;
      const auto off = static_cast<double>(x) - static_cast<double>(format.decode(format.encode(x)));
      error += off * off;
    }
    if (error >= least) continue;
    least = error;
    best = m;
  }
  return best;
}

std::string FftCalibration::note_of(float range, std::uint32_t mantissa, std::size_t steps_left,
                                    std::size_t recalibrations) {
  const std::string again =
      recalibrations == 0 ? ""
                          : fmt::format(", recalibrated {} time{}", recalibrations, recalibrations == 1 ? "" : "s");
  if (range == 0.0F)
    return fmt::format("range not yet calibrated, {} more step{} to come{}", steps_left, steps_left == 1 ? "" : "s",
                       again);
  return fmt::format("range +-{:.3g} with {} mantissa bits from calibration{}", range, mantissa, again);
}

}  // namespace gradtool
