#pragma once

#include <cuda_runtime.h>

#include <type_traits>

#include "kernels/cuda/grid.hpp"
#include "kernels/cuda/low_rank.hpp"
#include "kernels/schedule/warp.hpp"

/// What the products of low-rank factors share. For .cu files.
namespace gradtool::cuda {

inline constexpr unsigned kWarps = kThreads / schedule::kLanes;
/// That a warp reads at a time.
inline constexpr unsigned kColumns = 4 * schedule::kLanes;
static_assert(kProductColumns == kColumns);

/// Up to four neighbours, zeros behind them. `aligned`: all four are there, and one access reads them.
__device__ inline schedule::Four<float> four_at(const float* x, unsigned count, bool aligned) {
  if (aligned) return *reinterpret_cast<const schedule::Four<float>*>(x);
  schedule::Four<float> four{};
#pragma unroll
  for (unsigned c = 0; c < 4; ++c) {
    if (c < count) four.value[c] = x[c];
  }
  return four;
}
__device__ inline void put_four(const schedule::Four<float>& four, float* x, unsigned count, bool aligned) {
  if (aligned) {
    *reinterpret_cast<schedule::Four<float>*>(x) = four;
    return;
  }
#pragma unroll
  for (unsigned c = 0; c < 4; ++c) {
    if (c < count) x[c] = four.value[c];
  }
}

/// Calls body(std::integral_constant<unsigned, rank>).
template <class Body>
__device__ void with_rank(std::size_t rank, Body&& body) {
  switch (rank) {
    case 1:
      return body(std::integral_constant<unsigned, 1>{});
    case 2:
      return body(std::integral_constant<unsigned, 2>{});
    case 3:
      return body(std::integral_constant<unsigned, 3>{});
    default:
      return body(std::integral_constant<unsigned, 4>{});
  }
}

/// Every sum := its parts added up. Launches nothing where there are none.
void add_parts(Queue<Space::cuda> queue, View<const LowRankSum, Space::cuda> sums, const float* parts, float* to);

}  // namespace gradtool::cuda
