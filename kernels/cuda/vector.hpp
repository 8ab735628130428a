#pragma once

#include "lib/core/view.hpp"

/// Element-wise loops that codecs and reducers share. Enqueued; each element is rounded as on the CPU (no fused
/// multiply-add). Any alignment of a float; fastest when both pointers are 16-byte aligned.
namespace gradtool::cuda {

/// view[i] *= factor.
void scale(Queue<Space::cuda> queue, View<float, Space::cuda> view, float factor);

/// out[i] += factor * in[i]. Equal sizes (Fault::usage otherwise); the views do not overlap.
void add_scaled(Queue<Space::cuda> queue, View<const float, Space::cuda> in, float factor,
                View<float, Space::cuda> out);

}  // namespace gradtool::cuda
