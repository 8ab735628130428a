#pragma once

#include <cstddef>
#include <cstdint>

#include "lib/core/view.hpp"

/// Small kernels that codecs and reducers share, most of them element-wise. Enqueued; each element is rounded as on the
/// CPU (no fused multiply-add). Any alignment of a float; fastest when both pointers are 16-byte aligned.
namespace gradtool::cuda {

/// view[i] *= factor.
void scale(Queue<Space::cuda> queue, View<float, Space::cuda> view, float factor);

/// out[i] += factor * in[i]. Equal sizes (Fault::usage otherwise); the views do not overlap.
void add_scaled(Queue<Space::cuda> queue, View<const float, Space::cuda> in, float factor,
                View<float, Space::cuda> out);

/// The first 8 bytes of `to`, 8-byte aligned, become `number`. Travels with the launch: no memory of the host is read.
void write_number(Queue<Space::cuda> queue, std::uint64_t number, View<std::byte, Space::cuda> to);

}  // namespace gradtool::cuda
