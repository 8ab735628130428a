#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/float_bits.hpp"

namespace gradtool::format {

/// Momentum correction (Lin et al., Deep Gradient Compression, ICLR 2018, section 3.2) of one element: a rank
/// accumulates velocities u instead of gradients g.
struct MomentumCorrection {
  float momentum = 0.9F;
  float scale = 1.0F;  ///< of the gradient, from local clipping
  bool nesterov = false;

  struct Step {
    float u = 0.0F;          ///< the velocity after the step
    float increment = 0.0F;  ///< what the accumulated velocity v grows by
  };
  GT_HD Step step(float g, float u) const {
    const float clipped = scale * g;
    if (nesterov) {
      const float velocity = momentum * (u + clipped);
      return {velocity, velocity + clipped};
    }
    const float velocity = momentum * u + clipped;
    return {velocity, velocity};
  }
};

/// Local clipping adds the squares of the gradient in float64 and in a fixed order, so that all processors get the same
/// bits. Squares add over pieces of kClipPiece elements, and a GroupedSum adds the pieces. In a piece, partial sum j
/// adds elements j, j + kClipLanes, ...; the elements behind the last full round of kClipLanes go to partial sum 0.
inline constexpr std::size_t kClipPiece = 8192;
inline constexpr std::size_t kClipLanes = 16;

/// The factor that limits a gradient's norm to `limit`. `squares`: sum of its squared elements.
GT_HD inline float clip_scale(double squares, double limit) {
  const double norm = sqrt(squares);
  return norm > limit ? static_cast<float>(limit / norm) : 1.0F;
}

/// How a sampled threshold is corrected until about k elements reach it (section 3.1, and the published code).
/// Thresholds are binary32 patterns of magnitudes, which order like the magnitudes.
struct ThresholdCorrection {
  static constexpr float kRaise = 1.3F;  ///< factor for a threshold that more than 1.3 k elements reach: it is too low
  static constexpr float kLower = 0.8F;  ///< factor for one that fewer than 0.8 k elements reach: it is too high
  static constexpr int kTries = 10;

  std::size_t k = 0;
  bool raises = false;  ///< a threshold that is too low is raised; otherwise an exact selection follows at once

  // Counts are compared in integers: 0.8 in binary is above or below four fifths, and exactly 0.8 k or 1.3 k is enough.
  [[nodiscard]] GT_HD static std::size_t most(std::size_t k) { return 13 * k / 10; }
  [[nodiscard]] GT_HD bool too_many(std::size_t count) const { return count > most(k); }
  [[nodiscard]] GT_HD bool too_few(std::size_t count) const { return 5 * count < 4 * k; }
  /// At least the smallest positive number, because zeros are never sent, and at most infinity, because NaNs always
  /// are.
  [[nodiscard]] GT_HD static std::uint32_t clamped(std::uint32_t pattern) {
    constexpr std::uint32_t kInfinity = 0x7f800000u;
    return pattern < 1 ? 1 : pattern > kInfinity ? kInfinity : pattern;
  }
  /// The threshold after one correction.
  [[nodiscard]] GT_HD static std::uint32_t moved(std::uint32_t threshold, bool up) {
    return clamped(bits_of(float_of(threshold) * (up ? kRaise : kLower)));
  }

  struct Threshold {
    std::uint32_t pattern = 1;
    std::size_t count = 0;  ///< of the elements that reach it
  };
  /// The threshold after all corrections. `count(pattern)` tells how many elements reach a pattern.
  template <class Count>
  [[nodiscard]] GT_HD Threshold settle(std::uint32_t sampled, const Count& count) const {
    Threshold now{sampled, count(sampled)};
    for (int tries = 0; tries < kTries; ++tries) {
      const bool up = too_many(now.count);
      if (up ? !raises : !too_few(now.count)) break;
      const std::uint32_t next = moved(now.pattern, up);
      if (next == now.pattern) break;
      const std::size_t passing = count(next);
      // Raising would skip from too many to too few. Stay, so that an exact selection takes k of the too many.
      if (up && too_few(passing)) break;
      now = {next, passing};
    }
    return now;
  }
};

}  // namespace gradtool::format
