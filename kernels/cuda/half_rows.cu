#include "kernels/cuda/half_rows.hpp"

#include <cuda_runtime.h>

#include "kernels/cuda/device_warp.hpp"
#include "kernels/cuda/grid.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/runtime.hpp"
#include "kernels/law/half_rows.hpp"

namespace gradtool::cuda {
namespace {

constexpr std::size_t kRowTile = 4096;  ///< floats of a row that a block takes

__global__ void largest_of_rows_kernel(HalfRows rows, std::size_t tiles) {
  const std::size_t row = blockIdx.x / tiles;
  const std::size_t at = row * rows.length;
  const std::size_t from = blockIdx.x % tiles * kRowTile;
  std::uint32_t most = 0;
  for (std::size_t i = from + threadIdx.x; i < min(from + kRowTile, rows.length); i += kThreads)
    most = max(most, at + i < rows.given ? law::bits_of(rows.in[at + i]) & 0x7fffffffu : 0u);
  most = __reduce_max_sync(DeviceWarp::kAll, most);
  if (threadIdx.x % schedule::kLanes == 0) atomicMax(rows.largest + row, most);
}

__global__ void round_rows_kernel(HalfRows rows, std::size_t tiles) {
  const std::size_t row = blockIdx.x / tiles;
  const std::size_t at = row * rows.length;
  const std::size_t from = blockIdx.x % tiles * kRowTile;
  const auto scale = law::HalfScale::of(rows.largest[row], rows.top);
  for (std::size_t i = from + threadIdx.x; i < min(from + kRowTile, rows.length); i += kThreads)
    rows.out[at + i] = at + i < rows.given ? scale.round(rows.in[at + i]) : 0.0f;
}

}  // namespace

void round_rows_to_half(Queue<Space::cuda> queue, const HalfRows& rows) {
  if (rows.rows * rows.length == 0) return;
  const std::size_t tiles = (rows.length + kRowTile - 1) / kRowTile;
  fill(queue, {reinterpret_cast<std::byte*>(rows.largest), 4 * rows.rows}, 0);
  launch(queue, "fft largest of rows", largest_of_rows_kernel, static_cast<unsigned>(rows.rows * tiles), rows, tiles);
  launch(queue, "fft round rows", round_rows_kernel, static_cast<unsigned>(rows.rows * tiles), rows, tiles);
}

}  // namespace gradtool::cuda
