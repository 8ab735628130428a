#pragma once

#include <cstdint>

#include "kernels/law/half.hpp"
#include "kernels/law/hd.hpp"

namespace gradtool::law {

/// One element's mean over some samples, squared, and how uncertain that mean is.
struct SignalSample {
  double mean_square = 0;
  double variance = 0;     ///< estimated, of the mean
  double threshold = 0;    ///< the element passes alpha when mean_square > alpha * threshold
  bool consistent = true;  ///< false where no samples can have given these numbers
};

/// From a worker's gradient g and second moment v over k >= 2 micro-batches (Tsuzuku, Imachi, Akiba 2018). Rounding to
/// bfloat16 moves g^2 and v by less than 2^-7 of themselves; what is further out is not rounding.
GT_HD inline SignalSample sample_of_micro_batches(float gradient, float second_moment, double k) {
  constexpr double kRounding = 1.0 / 64;
  const double g = static_cast<double>(gradient), v = static_cast<double>(second_moment);
  const double g2 = g * g;
  const double spread = (k * v - g2) / (k - 1);
  const bool finite = v - v == 0;
  return {g2, spread > 0.0 ? spread : 0.0, v, finite && !(k * v < g2 * (1 - kRounding))};
}

/// From w >= 2 workers' gradients: their mean and the sum of squared deviations from it.
GT_HD inline SignalSample sample_of_workers(double mean, double squares, double w) {
  const double variance = squares / (w - 1) / w;
  return {mean * mean, variance, variance, true};
}

// A non-negative float's bit pattern grows with its value: its exponent and leading mantissa bits number the bins of a
// histogram of 4096 steps per octave. What is below the normal numbers counts as 0.
inline constexpr int kRatioDroppedBits = 23 - 12;
inline constexpr std::uint32_t kRatioInfinity = 0x7f800000U;
inline constexpr std::uint32_t kRatioBins = (kRatioInfinity >> kRatioDroppedBits) + 1;

/// The bin of a ratio >= 0, +infinity included. Rounded to float first.
GT_HD inline std::uint32_t ratio_bin(double ratio) {
  constexpr double kLargest = 3.4028234663852886e38;
  constexpr std::uint32_t kSmallestNormal = 0x00800000U;
  const std::uint32_t bits = ratio > kLargest ? kRatioInfinity : bits_of(static_cast<float>(ratio));
  return bits < kSmallestNormal ? 0 : bits >> kRatioDroppedBits;
}

/// The bin of mean_square / variance, +infinity where the variance is 0.
GT_HD inline std::uint32_t ratio_bin(const SignalSample& sample) {
  return sample.variance > 0 ? ratio_bin(sample.mean_square / sample.variance) : kRatioInfinity >> kRatioDroppedBits;
}

}  // namespace gradtool::law
