#include <cuda_runtime.h>

#include "kernels/cuda/block_sum.hpp"
#include "kernels/cuda/device_warp.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/spectrum.hpp"
#include "kernels/cuda/spectrum_tops.hpp"

namespace gradtool::cuda {
namespace {

struct Look {
  double total, energy, low, high, non_finite;
};

__device__ Look block_look(const Look& own) {
  const Extremes all = block_extremes({own.low, own.high});
  return {block_sum(own.total), block_sum(own.energy), all.low, all.high, block_sum(own.non_finite)};
}

/// One look at every value: its sums, its magnitude as a key to sort by, and itself in double precision.
__global__ void look_kernel(const float* values, std::size_t n, double* wide, std::uint32_t* keys, Look* partial) {
  Look own{0, 0, static_cast<double>(values[0]), static_cast<double>(values[0]), 0};
  for (std::size_t i = thread_in_grid(); i < n; i += threads_in_grid()) {
    const double x = static_cast<double>(values[i]);
    own.total += x;
    own.energy += x * x;
    own.low = fmin(own.low, x);
    own.high = fmax(own.high, x);
    own.non_finite += x - x == 0 ? 0 : 1;
    wide[i] = x;
    keys[i] = __float_as_uint(values[i]) & 0x7fffffffu;
  }
  const Look all = block_look(own);
  if (threadIdx.x == 0) partial[blockIdx.x] = all;
}

__global__ void join_look_kernel(const Look* partial, unsigned count, ValueSums* sums) {
  Look own{0, 0, partial[0].low, partial[0].high, 0};
  for (unsigned i = threadIdx.x; i < count; i += kThreads) {
    own.total += partial[i].total;
    own.energy += partial[i].energy;
    own.low = fmin(own.low, partial[i].low);
    own.high = fmax(own.high, partial[i].high);
    own.non_finite += partial[i].non_finite;
  }
  const Look all = block_look(own);
  if (threadIdx.x != 0) return;
  sums->total = all.total;
  sums->energy = all.energy;
  sums->low = all.low;
  sums->high = all.high;
  sums->non_finite = static_cast<std::uint64_t>(all.non_finite);
}

/// Row r of `partial` gets the block's sum of kind r; rows are gridDim.x long.
__global__ void lag_kernel(const float* values, std::size_t n, const ValueSums* sums, double* partial) {
  const double mean = sums->total / static_cast<double>(n);
  double product = 0, centred = 0;
  for (std::size_t i = thread_in_grid(); i < n; i += threads_in_grid()) {
    const double x = static_cast<double>(values[i]) - mean;
    centred += x * x;
    if (i > 0) product += (static_cast<double>(values[i - 1]) - mean) * x;
  }
  const double all_product = block_sum(product), all_centred = block_sum(centred);
  if (threadIdx.x != 0) return;
  partial[blockIdx.x] = all_product;
  partial[gridDim.x + blockIdx.x] = all_centred;
}

}  // namespace

void sum_values(Queue<Space::cuda> queue, const float* values, std::size_t n, const TopCounts& tops, double* wide,
                ValueSums* sums, View<std::byte, Space::cuda> memory) {
  const SpectrumWork work{memory, n};
  const unsigned blocks = blocks_for(n, 4 * kThreads, kMostSpectrumBlocks);
  auto* looks = reinterpret_cast<Look*>(work.partial);
  launch(queue, "look at values", look_kernel, blocks, values, n, wide, reinterpret_cast<std::uint32_t*>(work.keys),
         looks);
  launch(queue, "sums of values", join_look_kernel, 1U, looks, blocks, sums);
  launch(queue, "lag products", lag_kernel, blocks, values, n, sums, work.partial);
  join_rows(queue, work.partial, blocks, 2, &sums->lag_product);
  sum_tops<std::uint32_t>(queue, work, n, SpectrumCuts{tops}, sums->tops);
}

}  // namespace gradtool::cuda
