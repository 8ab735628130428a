#pragma once

#include <cstddef>
#include <span>

#include "kernels/cuda/units.hpp"
#include "lib/core/view.hpp"

/// What GradiVeQ loses in a step, on the GPU, and the vote on it. Enqueued; sums have a fixed order.
namespace gradtool::cuda {

/// sums[i] := sum of squares of the floats of the i-th unit's `to`, all in one launch. No unit is empty.
void sum_squares(Queue<Space::cuda> queue, std::span<const Unit> units, double* sums);

/// *vote := 1 where sqrt((|x|^2 - |y|^2) / |g|^2) is above `worst`, else 0: eq. 7, normalised. `norms`: |g|^2 and |x|^2
/// of each of `pieces` parts of gradients before and after their means were taken off; `kept`: |y|^2 of all layers.
void vote_on_loss(Queue<Space::cuda> queue, const double* norms, std::size_t pieces, const double* kept,
                  std::size_t layers, double worst, float* vote);

}  // namespace gradtool::cuda
