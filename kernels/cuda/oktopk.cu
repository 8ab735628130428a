#include "kernels/cuda/oktopk.hpp"

#include <cuda_runtime.h>

#include "kernels/cuda/device_warp.hpp"
#include "kernels/cuda/launch.hpp"

namespace gradtool::cuda {
namespace {

__global__ void cuts_kernel(const std::uint32_t* positions, std::size_t count, std::size_t n, std::size_t ranks,
                            std::uint32_t* to) {
  for (std::size_t j = thread_in_grid() + 1; j < ranks; j += threads_in_grid())
    to[j - 1] = count == 0 ? static_cast<std::uint32_t>(n * j / ranks) : positions[count * j / ranks];
}

__global__ void starts_kernel(const std::uint32_t* positions, std::size_t count, const std::uint64_t* borders,
                              std::size_t ranks, std::uint64_t* starts) {
  for (std::size_t r = thread_in_grid(); r <= ranks; r += threads_in_grid()) {
    std::size_t first = 0;
    for (std::size_t left = count; left > 0;) {
      const std::size_t half = left / 2;
      const bool is_below = positions[first + half] < borders[r];
      if (is_below) first += half + 1;
      left = is_below ? left - half - 1 : half;
    }
    starts[r] = first;
  }
}

__global__ void split_kernel(const std::uint64_t* borders, std::size_t ranks, std::size_t mine,
                             std::uint32_t* positions, std::size_t count, const float* values, float* region) {
  for (std::size_t i = thread_in_grid(); i < count; i += threads_in_grid()) {
    const std::uint32_t position = positions[i];
    std::size_t r = 0;  // the last region that starts at or before it
    for (std::size_t left = ranks; left > 1;) {
      const std::size_t half = left / 2;
      if (borders[r + half] <= position) r += half;
      left -= half;
    }
    positions[i] = position - static_cast<std::uint32_t>(borders[r]);
    if (r == mine) region[positions[i]] = values[i];
  }
}

__global__ void store_kernel(std::uint32_t value, std::uint32_t* to) {
  if (thread_in_grid() == 0) *to = value;
}

}  // namespace

void oktopk_cuts(Queue<Space::cuda> queue, const std::uint32_t* positions, std::size_t count, std::size_t n,
                 std::size_t ranks, View<std::uint32_t, Space::cuda> to) {
  launch(queue, "oktopk cuts", cuts_kernel, blocks_for(to.size(), kThreads), positions, count, n, ranks, to.data());
}

void oktopk_starts(Queue<Space::cuda> queue, const std::uint32_t* positions, std::size_t count,
                   const std::uint64_t* borders, std::size_t ranks, std::uint64_t* starts) {
  launch(queue, "oktopk starts", starts_kernel, blocks_for(ranks + 1, kThreads), positions, count, borders, ranks,
         starts);
}

void oktopk_split(Queue<Space::cuda> queue, const std::uint64_t* borders, std::size_t ranks, std::size_t mine,
                  View<std::uint32_t, Space::cuda> positions, const float* values, float* region) {
  launch(queue, "oktopk split", split_kernel, blocks_for(positions.size(), kThreads), borders, ranks, mine,
         positions.data(), positions.size(), values, region);
}

void store(Queue<Space::cuda> queue, std::uint32_t value, std::uint32_t* to) {
  launch(queue, "store", store_kernel, {1, schedule::kLanes}, value, to);
}

}  // namespace gradtool::cuda
