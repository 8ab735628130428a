#pragma once

#include <cuda_runtime.h>

#include <cub/device/device_scan.cuh>

#include "kernels/cuda/runtime.hpp"

namespace gradtool::cuda {

/// Temporary memory of scan_tiles.
template <class T>
std::size_t scan_bytes(std::size_t count) {
  std::size_t bytes = 0;
  T* none = nullptr;
  GT_CUDA(cub::DeviceScan::ExclusiveSum(nullptr, bytes, none, none, static_cast<std::int64_t>(count)));
  return bytes;
}

/// values[i] := values[0] + ... + values[i-1], enqueued, in place. Sums of T are exact, so their order does not matter.
template <class T>
void scan_tiles(Queue<Space::cuda> queue, T* values, std::size_t count, View<std::byte, Space::cuda> temporary) {
  std::size_t bytes = temporary.size();
  GT_CUDA(cub::DeviceScan::ExclusiveSum(temporary.data(), bytes, values, values, static_cast<std::int64_t>(count),
                                        queue.stream));
}

}  // namespace gradtool::cuda
