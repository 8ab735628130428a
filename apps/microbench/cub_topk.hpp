#pragma once

#include <cstddef>
#include <cstdint>

#include "lib/core/view.hpp"

namespace gradtool {

/// The k largest magnitudes of n numbers and their places, in no order, by cub::DeviceTopK (CCCL 3.3, which the CMake
/// variable GRADTOOL_CCCL names): the rival of topk's selection. Enqueued; `temporary` holds cub_topk_bytes(n, k).
/// Throws Fault::backend where CUB refuses.
[[nodiscard]] std::size_t cub_topk_bytes(std::size_t n, std::size_t k);
void cub_topk(Queue<Space::cuda> queue, View<std::byte, Space::cuda> temporary, const float* x, std::size_t n,
              std::size_t k, float* magnitudes, std::uint32_t* places);

}  // namespace gradtool
