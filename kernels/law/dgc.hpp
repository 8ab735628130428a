#pragma once

#include "kernels/law/hd.hpp"

namespace gradtool::law {

/// Momentum correction of deep gradient compression (Lin et al., ICLR 2018, arXiv 1712.01887, section 3.2), one element
/// at a time: what accumulates is velocity, not gradient.
struct Dgc {
  float momentum = 0.9F;
  float scale = 1.0F;  ///< of local clipping
  bool nesterov = false;

  struct Step {
    float u = 0.0F;          ///< the velocity after the step
    float increment = 0.0F;  ///< what v grows by
  };
  GT_HD Step step(float g, float u) const {
    const float clipped = scale * g;
    if (nesterov) {
      const float next = momentum * (u + clipped);
      return {next, next + clipped};
    }
    const float next = momentum * u + clipped;
    return {next, next};
  }
};

}  // namespace gradtool::law
