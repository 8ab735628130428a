#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/law/hd.hpp"

namespace gradtool::law {

/// How much an accumulated gradient `a` would move its weight `w` (Cheng and Xu 2019): |a| / (|w| + floor). The floor
/// keeps weights near zero from looking important whatever their gradient is.
GT_HD inline float importance(float a, float w, float floor) {
  const float magnitude = a < 0.0f ? -a : a;
  const float size = w < 0.0f ? -w : w;
  return magnitude / (size + floor);
}

/// Whether an element is sent. What is not a number is, so that it shows instead of staying behind.
GT_HD inline bool is_important(float importance, float threshold) {
  return !(importance <= threshold);
}

/// The floor of a layer: `eps` of its root mean square weight, and an absolute one.
inline constexpr float kIwpAbsoluteFloor = 1e-8f;
GT_HD inline float importance_floor(double squares, double eps, double elements) {
  return static_cast<float>(eps * sqrt(squares / elements)) + kIwpAbsoluteFloor;
}

/// How a layer's threshold follows from its importances.
struct IwpPolicy {
  enum class Kind : std::uint32_t { fixed, mean_std, dispersion, target_density };
  Kind kind = Kind::target_density;
  double fixed = 0.0, limit = 0.0;  ///< t, and the largest threshold of dispersion
  double density = 0.0;             ///< aimed at by mean_std and target_density
};

/// Of the policies that look at the sums of a layer's importances. `k` is mean_std's own.
GT_HD inline float importance_threshold(const IwpPolicy& policy, double sum, double squares, double elements,
                                        double k) {
  if (policy.kind == IwpPolicy::Kind::fixed) return static_cast<float>(policy.fixed);
  const double mean = sum / elements;
  const double spread = squares / elements - mean * mean;
  const double variance = spread > 0.0 ? spread : 0.0;
  if (policy.kind == IwpPolicy::Kind::mean_std) return static_cast<float>(mean + k * sqrt(variance));
  const double wanted = policy.fixed * (1.0 + variance / (mean + static_cast<double>(kIwpAbsoluteFloor)));
  return static_cast<float>(wanted < policy.fixed ? policy.fixed : policy.limit < wanted ? policy.limit : wanted);
}

/// Moves a layer's threshold, or k, towards the density asked for; `reached` is that of its last mask.
GT_HD inline void steer_importance(const IwpPolicy& policy, double reached, float& threshold, double& k) {
  const double factor = reached > 1.25 * policy.density ? 1.05 : reached < 0.8 * policy.density ? 1.0 / 1.05 : 1.0;
  if (policy.kind == IwpPolicy::Kind::target_density) threshold *= static_cast<float>(factor);
  if (policy.kind == IwpPolicy::Kind::mean_std) k *= factor;
}

/// 1, or less where a gradient's norm is above `most`.
GT_HD inline float clip_factor(double squares, double most) {
  const double norm = sqrt(squares);
  return norm > most ? static_cast<float>(most / norm) : 1.0f;
}

}  // namespace gradtool::law
