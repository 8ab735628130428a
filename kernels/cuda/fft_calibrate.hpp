#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/law/range_float.hpp"
#include "lib/core/view.hpp"

/// range=calibrated of the fft codec on the GPU: what lib/codecs/fft_calibration.hpp decides, without a word to the
/// host.
namespace gradtool::cuda {

/// The memory of one encoder, in device memory. Forgotten by filling it with zeros; steps_left and mantissa are then
/// those of the next calibration.
struct CalibrationState {
  float range;    ///< in use; 0 while calibrating
  float largest;  ///< of the steps that were learnt from
  std::uint32_t mantissa;
  std::uint32_t steps_left;
  std::uint32_t sampled;
  std::uint32_t recalibrations;
  std::uint32_t started;  ///< 0: nothing above is set yet
  // Of this step.
  std::uint32_t above;     ///< components outside of the range
  std::uint32_t finished;  ///< the samples are complete: m is to be chosen
  float factor, scale;
  std::uint32_t coded_with;  ///< m
};

struct Calibration {
  CalibrationState* state;
  float* samples;          ///< room for kSamples a step
  double* errors;          ///< room for one for every m
  std::uint32_t mantissa;  ///< of the first payload
  std::uint32_t steps;     ///< that one calibration learns from
  bool choose;             ///< m is chosen too

  static constexpr std::size_t kSamples = 4096;  ///< of a step, evenly spaced
};

/// Decides on factor, scale and m of this step's components, `count` values of which *largest is the largest pattern,
/// and learns from them. The squared errors by which m is chosen add up in another order than on the host.
void calibrate(Queue<Space::cuda> queue, const Calibration& by, const law::RangeFormats& formats, const float* values,
               std::size_t count, const std::uint32_t* largest, float unit);

}  // namespace gradtool::cuda
