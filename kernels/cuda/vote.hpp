#pragma once

#include "kernels/law/votes.hpp"
#include "lib/core/view.hpp"

/// What the reducer of signsgd does beside its codec, on the GPU. Enqueued.
namespace gradtool::cuda {

/// own[w] := the majority of all rows' words w, bit by bit; a tie is 0. Fault::usage for 2^16 ranks and more.
void vote(Queue<Space::cuda> queue, const law::Votes& votes);

/// m[i] := beta m[i] + (1 - beta) g[i].
void move_momentum(Queue<Space::cuda> queue, View<const float, Space::cuda> g, float beta, View<float, Space::cuda> m);

/// view[i] := view[i] / by.
void divide(Queue<Space::cuda> queue, View<float, Space::cuda> view, float by);

}  // namespace gradtool::cuda
