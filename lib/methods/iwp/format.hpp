#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/float_bits.hpp"

namespace gradtool::format {

/// The header that a broadcasting rank sends before its mask.
struct MaskHeader {
  std::uint64_t bytes = 0;  ///< size of the mask
  std::uint32_t count = 0;  ///< marked elements
  std::uint32_t code = 0;   ///< an IndexCode: how the positions are written
};
static_assert(sizeof(MaskHeader) == 16);

/// How important an accumulated gradient `a` is for its weight `w` (Cheng and Xu 2019): |a| / (|w| + floor). The floor
/// keeps weights near zero from making every gradient important.
GT_HD inline float importance(float a, float w, float floor) {
  const float magnitude = a < 0.0f ? -a : a;
  const float weight = w < 0.0f ? -w : w;
  return magnitude / (weight + floor);
}

/// Whether an element is marked. An importance that is not a number is, so that it becomes visible in the result
/// instead of staying in the residual.
GT_HD inline bool is_important(float importance, float threshold) {
  return !(importance <= threshold);
}

/// The floor of a layer: `eps` times the root mean square of its weights, and a small constant for layers of zeros.
/// `squares`: sum of the squared weights.
inline constexpr float kIwpAbsoluteFloor = 1e-8f;
GT_HD inline float importance_floor(double squares, double eps, double elements) {
  return static_cast<float>(eps * sqrt(squares / elements)) + kIwpAbsoluteFloor;
}

/// How a layer's threshold follows from its importances. README.md has the formulas.
struct ThresholdPolicy {
  enum class Kind : std::uint32_t { fixed, mean_std, dispersion, target_density };
  Kind kind = Kind::target_density;
  double fixed = 0.0;    ///< the threshold of `fixed`, and the smallest of `dispersion`
  double limit = 0.0;    ///< the largest threshold of `dispersion`
  double density = 0.0;  ///< share of the elements that mean_std and target_density aim at
};

/// The threshold of the policies fixed, mean_std and dispersion, from the sum of a layer's importances and the sum of
/// their squares (`fixed` ignores both). `k`: how many standard deviations mean_std adds to the mean.
GT_HD inline float importance_threshold(const ThresholdPolicy& policy, double sum, double squares, double elements,
                                        double k) {
  if (policy.kind == ThresholdPolicy::Kind::fixed) return static_cast<float>(policy.fixed);
  const double mean = sum / elements;
  const double difference = squares / elements - mean * mean;
  const double variance = difference > 0.0 ? difference : 0.0;
  if (policy.kind == ThresholdPolicy::Kind::mean_std) return static_cast<float>(mean + k * sqrt(variance));
  const double wanted = policy.fixed * (1.0 + variance / (mean + static_cast<double>(kIwpAbsoluteFloor)));
  return static_cast<float>(wanted < policy.fixed ? policy.fixed : policy.limit < wanted ? policy.limit : wanted);
}

/// Moves a layer's threshold (target_density) or its k (mean_std) by 5 % towards the density that is aimed at.
/// `reached`: the density of the layer's last mask.
GT_HD inline void steer_threshold(const ThresholdPolicy& policy, double reached, float& threshold, double& k) {
  const double factor = reached > 1.25 * policy.density ? 1.05 : reached < 0.8 * policy.density ? 1.0 / 1.05 : 1.0;
  if (policy.kind == ThresholdPolicy::Kind::target_density) threshold *= static_cast<float>(factor);
  if (policy.kind == ThresholdPolicy::Kind::mean_std) k *= factor;
}

/// The factor that limits a gradient's norm to `largest`. `squares`: sum of its squared elements.
GT_HD inline float clip_factor(double squares, double largest) {
  const double norm = sqrt(squares);
  return norm > largest ? static_cast<float>(largest / norm) : 1.0f;
}

}  // namespace gradtool::format
