#pragma once

#include <cstddef>

#include "lib/core/dtype.hpp"
#include "lib/core/view.hpp"

namespace gradtool {

/// sum[i] := sum[i] + addend[i] for elements of `dtype`: f32 in float32; f16 and bf16 widened, added in float32 and
/// rounded to nearest even (kernels/law/half.hpp). The host counterpart of cuda::sum_into, with the same finite
/// results. Equal sizes, a multiple of size_of(dtype), pointers aligned to the element (Fault::usage otherwise); no
/// overlap. Uses the queue's pool for large views.
void sum_into(Queue<Space::host> queue, HostView<std::byte> sum, HostView<const std::byte> addend, Dtype dtype);

/// to := from, sizes equal; the views may be the same memory but not overlap otherwise.
void copy_into(Queue<Space::host> queue, HostView<std::byte> to, HostView<const std::byte> from);

}  // namespace gradtool
