#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/host/fft_pack.hpp"
#include "lib/codecs/fft_options.hpp"

namespace gradtool {

/// The range of the number format as the FFT paper finds it (section 3.1.2): from the gradients of the first steps.
///
/// In the first `calibrate` steps each payload is scaled to its own largest component, as range=auto does. From then on
/// the largest of those steps is the range, and with mantissa=auto m is the one whose format has the least mean squared
/// error over samples of their components; the paper tries them all and does not say which wins. A step of which more
/// than a 1e-4th lies outside the range starts over: it is itself the first step of the next calibration.
class FftCalibration {
 public:
  explicit FftCalibration(const FftOptions& options);

  struct Choice {
    host::FftScaling scaling;
    std::uint32_t mantissa = 0;
  };
  /// How this step's components are coded. `unit` times a component is its unitary value. Allocates nothing.
  [[nodiscard]] Choice next(const host::KeptBins& kept, float unit);
  void reset();

  /// The range in use; 0 while calibrating.
  [[nodiscard]] float range() const { return range_; }
  [[nodiscard]] std::uint32_t mantissa() const { return mantissa_; }
  [[nodiscard]] std::size_t recalibrations() const { return recalibrations_; }
  [[nodiscard]] std::string note() const { return note_of(range_, mantissa_, steps_left_, recalibrations_); }
  /// What a note says of a calibration's state.
  [[nodiscard]] static std::string note_of(float range, std::uint32_t mantissa, std::size_t steps_left,
                                           std::size_t recalibrations);

 private:
  static constexpr std::size_t kSamples = 4096;  ///< of a step, evenly spaced

  void start();
  void learn(const host::KeptBins& kept, float unit);
  [[nodiscard]] std::uint32_t best_mantissa() const;

  const FftOptions& options_;
  std::vector<float> samples_;  ///< unitary components
  std::size_t sampled_ = 0;
  std::size_t steps_left_ = 0;
  float largest_ = 0.0F;
  float range_ = 0.0F;
  std::uint32_t mantissa_ = 0;
  std::size_t recalibrations_ = 0;
};

}  // namespace gradtool
