#pragma once

#include <cstddef>

#include "lib/core/dtype.hpp"
#include "lib/core/view.hpp"

namespace gradtool::cuda {

/// sum[i] := sum[i] + addend[i] for elements of `dtype`, enqueued: f32 in float32; f16 and bf16 widened, added in
/// float32 and rounded to nearest even, with the arithmetic of kernels/law/half.hpp, so finite results are those of the
/// CPU. Equal sizes, a multiple of size_of(dtype), pointers aligned to the element (Fault::usage otherwise). Reads 2
/// and writes 1 times the size; fastest when both pointers have the same address modulo 16. The views must not overlap.
void sum_into(Queue<Space::cuda> queue, View<std::byte, Space::cuda> sum, View<const std::byte, Space::cuda> addend,
              Dtype dtype);

}  // namespace gradtool::cuda
