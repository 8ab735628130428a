#include "kernels/cuda/half_rows.hpp"

#include <cuda_runtime.h>

#include "kernels/cuda/device_warp.hpp"
#include "kernels/cuda/grid.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/quads.hpp"
#include "kernels/cuda/runtime.hpp"
#include "kernels/law/half_rows.hpp"

namespace gradtool::cuda {
namespace {

constexpr std::size_t kRowTile = 1024;  ///< floats of a row that a warp takes

__host__ __device__ std::size_t tiles_of(const HalfRows& rows) {
  return (rows.length + kRowTile - 1) / kRowTile;
}

/// body(row, at, count, given) by a warp for its tiles: `count` floats from `at` on, of which the first `given` exist.
template <class Body>
__device__ void each_row_tile(const HalfRows& rows, const Body& body) {
  const std::size_t tiles = tiles_of(rows);
  for (std::size_t i = warp_in_grid(); i < rows.rows * tiles; i += warps_in_grid()) {
    const std::size_t row = i / tiles;
    const std::size_t first = (i - row * tiles) * kRowTile;
    const std::size_t at = row * rows.length + first;
    const std::size_t count = min(kRowTile, rows.length - first);
    const std::size_t given = at < rows.given ? min(count, rows.given - at) : 0;
    body(row, at, static_cast<int>(count), static_cast<int>(given));
  }
}

__global__ void largest_of_rows_kernel(HalfRows rows) {
  const int lane = static_cast<int>(lane_in_warp());
  each_row_tile(rows, [&](std::size_t row, std::size_t at, int /*count*/, int given) {
    const float* x = rows.in + at;
    std::uint32_t most = 0;
#pragma unroll 4
    for (int i = 4 * lane - lead_of(x); i < given; i += 4 * static_cast<int>(schedule::kLanes)) {
      const Four<float> quad = load_quad(x, i, given);
#pragma unroll
      for (const float value : quad.value) most = max(most, law::bits_of(value) & 0x7fffffffu);
    }
    most = __reduce_max_sync(kAllLanes, most);
    if (lane == 0) atomicMax(rows.largest + row, most);
  });
}

__global__ void round_rows_kernel(HalfRows rows) {
  const int lane = static_cast<int>(lane_in_warp());
  each_row_tile(rows, [&](std::size_t row, std::size_t at, int count, int given) {
    const auto scale = law::HalfScale::of(rows.largest[row], rows.top);
    const float* x = rows.in + at;
    float* out = rows.out + at;
    const int lead = lead_of(out);
    const bool whole = lead_of(x) == lead;
#pragma unroll 4
    for (int i = 4 * lane - lead; i < count; i += 4 * static_cast<int>(schedule::kLanes)) {
      Four<float> quad = load_quad(x, i, given, whole);
#pragma unroll
      for (float& value : quad.value) value = scale.round(value);
      store_quad(quad, out, i, count);
    }
  });
}

}  // namespace

void round_rows_to_half(Queue<Space::cuda> queue, const HalfRows& rows) {
  if (rows.rows * rows.length == 0) return;
  fill(queue, {reinterpret_cast<std::byte*>(rows.largest), 4 * rows.rows}, 0);
  const unsigned blocks = blocks_for(rows.rows * tiles_of(rows), kThreads / schedule::kLanes);
  launch(queue, "fft largest of rows", largest_of_rows_kernel, blocks, rows);
  launch(queue, "fft round rows", round_rows_kernel, blocks, rows);
}

}  // namespace gradtool::cuda
