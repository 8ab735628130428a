#pragma once

#include <cstdint>

#include "lib/core/view.hpp"

/// binary16 and bfloat16 and back with the arithmetic of kernels/law/half.hpp: the bytes and sums of
/// lib/codecs/fp16.cpp and bf16.cpp. Enqueued. Equal sizes (Fault::usage otherwise); the views do not overlap; any
/// alignment of the element.
namespace gradtool::cuda {

/// out[i] := binary16 of in[i] * scale, scale finite.
void to_half(Queue<Space::cuda> queue, View<const float, Space::cuda> in, float scale,
             View<std::uint16_t, Space::cuda> out);

/// out[i] += factor * in[i].
void add_half(Queue<Space::cuda> queue, View<const std::uint16_t, Space::cuda> in, float factor,
              View<float, Space::cuda> out);

/// out[i] := bfloat16 of in[i].
void to_bfloat(Queue<Space::cuda> queue, View<const float, Space::cuda> in, View<std::uint16_t, Space::cuda> out);

/// out[i] += factor * in[i].
void add_bfloat(Queue<Space::cuda> queue, View<const std::uint16_t, Space::cuda> in, float factor,
                View<float, Space::cuda> out);

}  // namespace gradtool::cuda
