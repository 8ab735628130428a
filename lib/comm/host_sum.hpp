#pragma once

#include <cstddef>

#include "lib/core/dtype.hpp"
#include "lib/core/view.hpp"

namespace gradtool {

/// sum[i] := sum[i] + addend[i] for elements of `dtype`: f32 in float32; f16 and bf16 widened, added in float32 and
/// rounded to nearest even (kernels/float_bits.hpp). The host counterpart of cuda::sum_into, with the same finite
/// results. The views have equal sizes, a multiple of size_of(dtype), are aligned to the element (Fault::internal
/// otherwise) and do not overlap. Large views are added by the threads of the queue's pool.
void sum_into(Queue<Space::host> queue, HostView<std::byte> sum, HostView<const std::byte> addend, Dtype dtype);

/// to := from. The sizes are equal; the views may be the same memory but must not overlap otherwise.
void copy_into(Queue<Space::host> queue, HostView<std::byte> to, HostView<const std::byte> from);

}  // namespace gradtool
