#pragma once

#include "lib/core/view.hpp"
#include "lib/reduce/powersgd_reducer.hpp"

namespace gradtool {

// The steps between two collectives (Vogels et al., NeurIPS 2019, Algorithm 1), on all matrices in parallel. `message`
// holds plan.p_size floats, `sums` and `scratch` what the plan says. Views, not what they show, are const.

/// M = gradient + e; message := P = M Q, and the tensors that go as they are. `sums`: plan.p_sums.
void powersgd_first_product(const PowerSgdPlan& plan, const PowerSgdState<Space::host>& state, Queue<Space::host> queue,
                            HostView<float> gradient, HostView<float> message, HostView<float> sums);
/// P orthonormal; Q = Mᵀ P. `sums`: plan.q_sums.
void powersgd_second_product(const PowerSgdPlan& plan, const PowerSgdState<Space::host>& state,
                             Queue<Space::host> queue, HostView<float> gradient, HostView<float> message,
                             HostView<float> sums, HostView<double> scratch);
/// Q and what went as it is times `share`; gradient := P Qᵀ; e = M - P Qᵀ.
void powersgd_rebuild(const PowerSgdPlan& plan, const PowerSgdState<Space::host>& state, Queue<Space::host> queue,
                      HostView<float> gradient, HostView<float> message, float share);

}  // namespace gradtool
