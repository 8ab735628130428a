#pragma once

#include <cuda_runtime.h>

#include <array>
#include <atomic>
#include <bit>
#include <cub/device/device_scan.cuh>

#include "kernels/cuda/runtime.hpp"

namespace gradtool::cuda {

/// Temporary memory of scan_tiles: what the next power of two needs, which the library is asked for once on each GPU.
/// So kernels that come after may lie where a formula says, and encoders may ask for it in the timed region.
template <class T>
std::size_t scan_bytes(std::size_t count) {
  static std::array<std::array<std::atomic<std::size_t>, 64>, 16> known{};
  const auto device = static_cast<std::size_t>(current_device());
  const auto power = static_cast<unsigned>(std::bit_width(count));
  std::atomic<std::size_t>* cell = device < known.size() ? &known[device][power] : nullptr;
  if (cell != nullptr && cell->load() != 0) return cell->load();
  std::size_t bytes = 0;
  T* none = nullptr;
  GT_CUDA(cub::DeviceScan::ExclusiveSum(nullptr, bytes, none, none, std::int64_t{1} << power));
  if (cell != nullptr) cell->store(bytes);
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
