#pragma once

#include <cuda_runtime.h>

#include <array>
#include <atomic>
#include <bit>
#include <cub/device/device_scan.cuh>

#include "kernels/cuda/block_ops.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/runtime.hpp"

namespace gradtool::cuda {

inline constexpr std::size_t kMostInBlock = 16 * kThreads;  ///< values that scan_tiles gives to one block

/// One block: values[i] := values[0] + ... + values[i-1] for i < count <= kMostInBlock. All loads are under way at
/// once.
template <class T>
__global__ void block_scan_kernel(T* values, std::size_t count) {
  T own[kMostInBlock / kThreads];
#pragma unroll
  for (unsigned j = 0; j < kMostInBlock / kThreads; ++j) {
    const std::size_t i = j * kThreads + threadIdx.x;
    own[j] = i < count ? values[i] : T{};
  }
  T before{};
#pragma unroll
  for (unsigned j = 0; j < kMostInBlock / kThreads; ++j) {
    const std::size_t i = j * kThreads + threadIdx.x;
    if (j * kThreads >= count) break;
    T total{};
    const T through = before + block_sum_through(own[j], total);
    if (i < count) values[i] = through - own[j];
    before += total;
  }
}

/// Bytes of temporary memory for scan_tiles of `count` values: what the next power of two needs. CUB is asked only once
/// for each power of two and GPU, so encoders may call this in the timed region.
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

/// values[i] := values[0] + ... + values[i-1], in place. Enqueued. T is an integer, so the order of additions does not
/// matter. CUB takes two kernels, about 6 us for however few values; a short array takes one block about 2 us.
template <class T>
void scan_tiles(Queue<Space::cuda> queue, T* values, std::size_t count, View<std::byte, Space::cuda> temporary) {
  if (count <= kMostInBlock) {
    launch(queue, "tile scan", block_scan_kernel<T>, 1, values, count);
    return;
  }
  std::size_t bytes = temporary.size();
  GT_CUDA(cub::DeviceScan::ExclusiveSum(temporary.data(), bytes, values, values, static_cast<std::int64_t>(count),
                                        queue.stream));
}

}  // namespace gradtool::cuda
