#pragma once

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

}  // namespace gradtool::law
