#include "lib/methods/fft/calibration.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "kernels/float_bits.hpp"

namespace gradtool {
namespace {

GT_SIMD_CLONES std::size_t count_above(const float* x, std::size_t count, float limit) {
  std::uint32_t above = 0;
  for (std::size_t i = 0; i < count; ++i) above += std::abs(x[i]) > limit ? 1U : 0U;
  return above;
}

}  // namespace

std::string CalibrationState::note() const {
  const std::string again =
      recalibrations == 0 ? ""
                          : fmt::format(", recalibrated {} time{}", recalibrations, recalibrations == 1 ? "" : "s");
  if (range == 0.0F)
    return fmt::format("range not yet calibrated, {} more step{} to come{}", steps_left, steps_left == 1 ? "" : "s",
                       again);
  return fmt::format("range +-{:.3g} with {} mantissa bits from calibration{}", range, mantissa, again);
}

FftCalibration::FftCalibration(const FftOptions& options)
    : options_{options}, rules_{options}, samples_(CalibrationRules::kSamplesPerStep * options.calibration_steps()) {
  reset();
}

void FftCalibration::reset() {
  state_.recalibrations = 0;
  state_.start(rules_);
}

CalibrationStep FftCalibration::next(const host::KeptBins& kept, float unit) {
  const std::size_t count = kept.values.size();
  const std::size_t outside =
      state_.exceeded_by(kept.largest, unit) ? count_above(kept.values.data(), count, state_.range / unit) : 0;
  const CalibrationStep step = state_.next(rules_, kept.largest, unit, outside, count);
  if (!step.learns) return step;
  const std::size_t samples = CalibrationState::samples_of(count);
  for (std::size_t i = 0; i < samples; ++i) samples_[step.first_sample + i] = unit * kept.values[i * count / samples];
  if (step.completes && options_.mantissa_varies()) state_.mantissa = best_mantissa();
  return step;
}

std::uint32_t FftCalibration::best_mantissa() const {
  std::uint32_t best = rules_.first_mantissa;
  double least = std::numeric_limits<double>::infinity();
  for (std::uint32_t m = 0; m < format::RangeFormats::kMantissas; ++m) {
    if (!options_.formats().has(m)) continue;
    const format::RangeFloat& format = options_.formats().format[m];
    double error = 0.0;
    for (std::size_t i = 0; i < state_.samples; ++i) {
      const float x = samples_[i] / state_.range;
      const auto difference = static_cast<double>(x) - static_cast<double>(format.decode(format.encode(x)));
      error += difference * difference;
    }
    if (error >= least) continue;
    least = error;
    best = m;
  }
  return best;
}

}  // namespace gradtool
