#pragma once

#include "lib/core/view.hpp"
#include "lib/reduce/powersgd_plan.hpp"

namespace gradtool {

/// What a rank keeps from step to step.
struct PowerSgdState {
  HostView<float> residual;  ///< e, empty without error feedback
  HostView<float> q;         ///< Q of all matrices

  /// M: the gradient plus what was held back, in the residual; without error feedback the gradient itself.
  [[nodiscard]] float* held(HostView<float> gradient) const {
    return residual.empty() ? gradient.data() : residual.data();
  }
};

// The steps between two collectives (Vogels et al., NeurIPS 2019, Algorithm 1), on all matrices in parallel. `message`
// holds plan.p_size floats, `sums` and `scratch` what the plan says. Views, not what they show, are const.

/// M = gradient + e; message := P = M Q, and the tensors that go as they are. `sums`: plan.p_sums.
void powersgd_first_product(const PowerSgdPlan& plan, const PowerSgdState& state, Queue<Space::host> queue,
                            HostView<float> gradient, HostView<float> message, HostView<float> sums);
/// P orthonormal; Q = Mᵀ P. `sums`: plan.q_sums.
void powersgd_second_product(const PowerSgdPlan& plan, const PowerSgdState& state, Queue<Space::host> queue,
                             HostView<float> gradient, HostView<float> message, HostView<float> sums,
                             HostView<double> scratch);
/// Q and what went as it is times `share`; gradient := P Qᵀ; e = M - P Qᵀ.
void powersgd_rebuild(const PowerSgdPlan& plan, const PowerSgdState& state, Queue<Space::host> queue,
                      HostView<float> gradient, HostView<float> message, float share);

}  // namespace gradtool
