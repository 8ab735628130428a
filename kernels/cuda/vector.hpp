#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cuda/units.hpp"
#include "lib/core/view.hpp"

/// Small kernels that codecs and reducers share, most of them element-wise. Enqueued; each element is rounded as on the
/// CPU (no fused multiply-add). Floats may lie anywhere; what goes through all of a view is fastest where its pointers
/// are all 16-byte aligned.
namespace gradtool::cuda {

/// view[i] *= factor.
void scale(Queue<Space::cuda> queue, View<float, Space::cuda> view, float factor);

/// out[i] += factor * in[i]. Equal sizes (Fault::usage otherwise); the views do not overlap.
void add_scaled(Queue<Space::cuda> queue, View<const float, Space::cuda> in, float factor,
                View<float, Space::cuda> out);

/// The floats of every unit's `to` -= those of its `from`, all in one launch.
void subtract(Queue<Space::cuda> queue, std::span<const Unit> units);

/// The first 8 bytes of `to`, 8-byte aligned, become `number`. Travels with the launch: no memory of the host is read.
void write_number(Queue<Space::cuda> queue, std::uint64_t number, View<std::byte, Space::cuda> to);

/// to[positions[i]] := values[i].
void scatter_at(Queue<Space::cuda> queue, View<const std::uint32_t, Space::cuda> positions, const float* values,
                float* to);
/// x[i] := 0, and also[i] where it is not null, for i in positions[0 .. *count), or in [0 .. most) of them with `count`
/// null.
void zero_at(Queue<Space::cuda> queue, const std::uint32_t* positions, const std::uint32_t* count, std::size_t most,
             float* x, float* also = nullptr);

}  // namespace gradtool::cuda
