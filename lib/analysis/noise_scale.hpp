#pragma once

#include <cstddef>

#include "lib/analysis/analysis.hpp"

namespace gradtool {

/// How much of a gradient is signal: McCandlish, Kaplan, Amodei, An Empirical Model of Large-Batch Training, 2018,
/// arXiv 1812.06162, appendix A.1.
struct NoiseScale {
  double signal = 0.0;  ///< |G|^2, of the gradient without noise
  double noise = 0.0;   ///< tr(Sigma), of the gradient of one worker's batch

  /// Signals and noises add up, over tensors as over steps.
  NoiseScale& operator+=(const NoiseScale& other) {
    signal += other.signal;
    noise += other.noise;
    return *this;
  }
};

/// The unbiased estimates from the gradients of `workers` (W) independent batches of one size, from the squared norms
/// of a worker's gradient, mean over workers (s), and of the workers' mean (m): signal = (W m - s) / (W - 1) and noise
/// = W (s - m) / (W - 1), eqs. A.2 and A.3. The signal can come out below 0. Both are 0 for fewer than two workers.
[[nodiscard]] NoiseScale noise_scale(double of_worker, double of_mean, std::size_t workers);

/// Tables `noise`, a row for each tensor, and `noise_steps`, a row for each tensor and step. On the CPU. O(values).
[[nodiscard]] std::unique_ptr<Analysis> make_noise(Scope scope);

}  // namespace gradtool
