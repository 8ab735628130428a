#include "kernels/cuda/thc.hpp"

#include <cuda_runtime.h>

#include "kernels/cuda/grid.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/ordered_sums.hpp"
#include "kernels/cuda/quads.hpp"
#include "kernels/cuda/thc_block.hpp"
#include "kernels/law/keep_nan.hpp"

namespace gradtool::cuda {
namespace {

__global__ void signs_kernel(law::DrawKey key, std::uint32_t* signs, std::size_t count) {
  for (std::size_t i = thread_in_grid(); 4 * i < count; i += threads_in_grid()) {
    const law::Draws draws = law::draw4(key, i);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (4 * i + k < count) signs[4 * i + k] = draws.bits[k];
    }
  }
}

__global__ void squares_kernel(const float* u, std::size_t n, double* sums) {
  alignas(16) __shared__ float room[kThcWarps][kTileRoom];
  const unsigned lane = lane_in_warp();
  for (std::size_t c = warp_in_grid(); c * law::kSumChunk < n; c += warps_in_grid()) {
    const std::size_t left = n - c * law::kSumChunk;
    const auto count = static_cast<int>(left < law::kSumChunk ? left : law::kSumChunk);
    const double sum =
        chunk_moments(u + c * law::kSumChunk, count, room[threadIdx.x / schedule::kLanes], [](float /*x*/) {});
    if (lane == law::kSumLanes) sums[c] = sum;  // of squares
  }
}

__global__ void norm_kernel(const double* sums, std::size_t chunks, float* norm) {
  __shared__ SumRoom<1> room;
  double sum[1];
  sums_of_chunks<1>(sums, 0, 0, chunks, room, sum);
  if (threadIdx.x == 0) *norm = law::one_nan(static_cast<float>(sqrt(sum[0])));
}

}  // namespace

void thc_signs(Queue<Space::cuda> queue, const law::DrawKey& key, View<std::uint32_t, Space::cuda> signs) {
  if (signs.empty()) return;
  launch(queue, "thc signs", signs_kernel, blocks_for(signs.size(), 4 * kThreads), key, signs.data(), signs.size());
}

void thc_norm(Queue<Space::cuda> queue, View<const float, Space::cuda> u, float* norm, std::byte* scratch) {
  auto* sums = reinterpret_cast<double*>(scratch);
  const std::size_t chunks = (u.size() + law::kSumChunk - 1) / law::kSumChunk;
  if (chunks > 0) {
    launch(queue, "thc squares", squares_kernel, {blocks_for(chunks, kThcWarps), kThcThreads}, u.data(), u.size(),
           sums);
  }
  launch(queue, "thc norm", norm_kernel, 1, sums, chunks, norm);
}

}  // namespace gradtool::cuda
