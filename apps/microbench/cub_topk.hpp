#pragma once

#include <cstddef>
#include <cstdint>

#include "lib/core/view.hpp"

namespace gradtool {

/// Whether this was compiled with cub::DeviceTopK: a toolkit has it from CCCL 3.3 on, or the CMake variable
/// GRADTOOL_CCCL names headers of it.
[[nodiscard]] bool has_cub_topk();

/// The k largest magnitudes of n numbers and their places, in no order, by cub::DeviceTopK: the rival of topk's
/// selection. Enqueued; `temporary` holds cub_topk_bytes(n, k). Throws Fault::backend where CUB refuses, and
/// Fault::unavailable unless has_cub_topk().
[[nodiscard]] std::size_t cub_topk_bytes(std::size_t n, std::size_t k);
void cub_topk(Queue<Space::cuda> queue, View<std::byte, Space::cuda> temporary, const float* x, std::size_t n,
              std::size_t k, float* magnitudes, std::uint32_t* places);

}  // namespace gradtool
