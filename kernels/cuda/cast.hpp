#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/units.hpp"
#include "lib/core/view.hpp"

/// binary16 and bfloat16 and back with the arithmetic of kernels/law/half.hpp: the bytes and sums of
/// lib/codecs/fp16.cpp and bf16.cpp, for every unit. Enqueued. What is read and what is written do not overlap; any
/// alignment of the element.
namespace gradtool::cuda {

/// to[i] := binary16 of from[i] * scale, scale finite.
void to_half(Queue<Space::cuda> queue, std::span<const Unit> units, float scale);

/// to[i] += factor * from[i].
void add_half(Queue<Space::cuda> queue, std::span<const Unit> units, float factor);

/// to[i] := bfloat16 of from[i].
void to_bfloat(Queue<Space::cuda> queue, std::span<const Unit> units);

/// to[i] += factor * from[i].
void add_bfloat(Queue<Space::cuda> queue, std::span<const Unit> units, float factor);

}  // namespace gradtool::cuda
