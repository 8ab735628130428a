#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lib/methods/fft/format.hpp"
#include "lib/methods/fft/options.hpp"
#include "lib/methods/fft/spectrum.hpp"

/// range=calibrated: the range of the number format as the FFT paper finds it (section 3.1.2), from the gradients of
/// the first steps.
///
/// In the first `calibrate` steps each payload is scaled to its own largest component, as with range=auto. The largest
/// of these steps is then the range, and with mantissa=auto m becomes the one whose format has the least mean squared
/// error over samples of their components; the paper tries all m and does not say which one wins. A step of which more
/// than kSaturatedShare lies outside the range starts over: it is the first step of the next calibration.
namespace gradtool {

/// The codec's parameters for calibration.
struct CalibrationRules {
  static constexpr std::size_t kSamplesPerStep = 4096;  ///< evenly spaced components of a step
  static constexpr double kSaturatedShare = 1e-4;

  explicit CalibrationRules(const FftOptions& options)
      : first_mantissa{options.mantissa()}, steps{static_cast<std::uint32_t>(options.calibration_steps())} {}

  std::uint32_t first_mantissa;  ///< m of the payloads of a calibration's steps
  std::uint32_t steps;           ///< steps that one calibration learns from
};

/// How the components of one step are coded, and what calibration does with them.
struct CalibrationStep {
  format::FftScaling scaling;
  std::uint32_t mantissa = 0;
  bool learns = false;             ///< samples of the components are to be stored
  bool completes = false;          ///< this was a calibration's last step, so that m is to be chosen
  std::uint32_t first_sample = 0;  ///< where the samples of this step begin
};

/// The memory of calibration, which CPU and GPU encoders share but for the samples. Made with zeros and then started.
struct CalibrationState {
  float range = 0.0F;    ///< in use, as a unitary coefficient; 0 while calibrating
  float largest = 0.0F;  ///< largest unitary coefficient of this calibration's steps so far
  std::uint32_t mantissa = 0;
  std::uint32_t steps_left = 0;
  std::uint32_t samples = 0;  ///< stored so far in this calibration
  std::uint32_t recalibrations = 0;

  GT_HD void start(const CalibrationRules& rules) {
    range = 0.0F;
    largest = 0.0F;
    mantissa = rules.first_mantissa;
    steps_left = rules.steps;
    samples = 0;
  }

  /// Whether components of a step lie outside the range in use, so that they must be counted for `next`.
  /// `largest_pattern` is the largest of them as a binary32 pattern without sign; a component times `unit` is unitary.
  [[nodiscard]] GT_HD bool exceeded_by(std::uint32_t largest_pattern, float unit) const {
    return range > 0.0F && format::float_of(largest_pattern) * unit > range;
  }

  /// Decides on a step with `count` components, of which `outside` lie outside the range. A step of zeros or with a
  /// number that is not finite teaches nothing.
  [[nodiscard]] GT_HD CalibrationStep next(const CalibrationRules& rules, std::uint32_t largest_pattern, float unit,
                                           std::size_t outside, std::size_t count) {
    CalibrationStep step;
    step.scaling = format::FftScaling::of(largest_pattern, unit, true);
    const float peak = step.scaling.scale;  // the largest unitary coefficient
    if (peak > 0.0F && range > 0.0F && peak > range &&
        static_cast<double>(outside) > CalibrationRules::kSaturatedShare * static_cast<double>(count)) {
      ++recalibrations;
      start(rules);
    }
    step.mantissa = mantissa;
    if (!(peak > 0.0F)) return step;
    if (range > 0.0F) {
      step.scaling = {unit / range, range};
      return step;
    }
    step.learns = true;
    step.first_sample = samples;
    samples += static_cast<std::uint32_t>(samples_of(count));
    largest = peak > largest ? peak : largest;
    if (--steps_left == 0) {
      range = largest;
      step.completes = true;
    }
    return step;
  }

  /// Samples taken of a step with `count` components: sample i is component i * count / samples_of(count).
  [[nodiscard]] GT_HD static constexpr std::size_t samples_of(std::size_t count) {
    return count < CalibrationRules::kSamplesPerStep ? count : CalibrationRules::kSamplesPerStep;
  }

  /// The report's note on the state: the range in use, or how many steps are still to come.
  [[nodiscard]] std::string note() const;
};

/// Calibration of one encoder on the CPU.
class FftCalibration {
 public:
  explicit FftCalibration(const FftOptions& options);

  /// Decides how the components of a step are coded and learns from them; `unit` times a component is its unitary
  /// value. Allocates nothing.
  [[nodiscard]] CalibrationStep next(const host::KeptBins& kept, float unit);
  void reset();
  /// See Encoder::visit_state.
  void visit_state(StateVisitor& visitor) {
    visitor.value("calibration", state_);
    visitor.values("samples", samples_);
  }
  [[nodiscard]] std::string note() const { return state_.note(); }

 private:
  [[nodiscard]] std::uint32_t best_mantissa() const;

  const FftOptions& options_;
  CalibrationRules rules_;
  CalibrationState state_;
  std::vector<float> samples_;  ///< unitary components
};

}  // namespace gradtool
