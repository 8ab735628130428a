#include "kernels/cuda/spectrum_tops.hpp"

#include <cuda_runtime.h>

#include <cub/device/device_radix_sort.cuh>

#include "kernels/cuda/block_sum.hpp"
#include "kernels/cuda/device_warp.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/scratch_pieces.hpp"

namespace gradtool::cuda {
namespace {

/// Block (x, top) sums its share of the keys that selection `top` adds to the one before, squares of values or powers.
template <class Key>
__global__ void tops_kernel(const Key* sorted, const __grid_constant__ SpectrumCuts cuts, double* partial) {
  double own = 0;
  for (std::uint64_t i = cuts.first(blockIdx.y) + thread_in_grid(); i < cuts.end[blockIdx.y]; i += threads_in_grid()) {
    if constexpr (sizeof(Key) == sizeof(std::uint32_t)) {
      const double x = static_cast<double>(__uint_as_float(sorted[i]));
      own += x * x;
    } else {
      own += sorted[i];
    }
  }
  const double all = block_sum(own);
  if (threadIdx.x == 0) partial[blockIdx.y * gridDim.x + blockIdx.x] = all;
}

/// Block r sums row r of `partial`, `count` numbers.
__global__ void join_kernel(const double* partial, unsigned count, double* sums) {
  double own = 0;
  for (unsigned i = threadIdx.x; i < count; i += kThreads) own += partial[std::size_t{blockIdx.x} * count + i];
  const double all = block_sum(own);
  if (threadIdx.x == 0) sums[blockIdx.x] = all;
}

template <class Key>
std::size_t sort_bytes(std::size_t count) {
  std::size_t bytes = 0;
  Key* none = nullptr;
  GT_CUDA(cub::DeviceRadixSort::SortKeysDescending(nullptr, bytes, static_cast<const Key*>(none), none,
                                                   static_cast<std::int64_t>(count)));
  return bytes;
}

}  // namespace

SpectrumWork::SpectrumWork(View<std::byte, Space::cuda> memory, std::size_t n) {
  const std::size_t bins = n / 2 + 1;
  constexpr std::size_t kKinds = 3 * kSpectrumBands;  // the most rows of partial sums
  ScratchPieces pieces{memory};
  pieces.take(keys, std::max(4 * n, 8 * bins));
  pieces.take(sorted, std::max(4 * n, 8 * bins));
  pieces.take(partial, kMostSpectrumBlocks * (kKinds + 4));
  pieces.take(joined, kKinds);
  sort = pieces.take(std::max(sort_bytes<std::uint32_t>(n), sort_bytes<double>(bins)));
  bytes = pieces.bytes();
}

std::size_t spectrum_work_bytes(std::size_t n) {
  return SpectrumWork{{}, n}.bytes;
}

void join_rows(Queue<Space::cuda> queue, const double* partial, unsigned count, unsigned rows, double* sums) {
  launch(queue, "sums of blocks", join_kernel, rows, partial, count, sums);
}

template <class Key>
void sum_tops(Queue<Space::cuda> queue, const SpectrumWork& work, std::size_t count, const SpectrumCuts& cuts,
              double* out) {
  auto* sorted = reinterpret_cast<Key*>(work.sorted);
  std::size_t room = work.sort.size();
  GT_CUDA(cub::DeviceRadixSort::SortKeysDescending(work.sort.data(), room, reinterpret_cast<const Key*>(work.keys),
                                                   sorted, static_cast<std::int64_t>(count), 0, 8 * int{sizeof(Key)},
                                                   queue.stream));
  Grid grid{blocks_for(count / kSpectrumTops, 4 * kThreads, kMostSpectrumBlocks)};
  grid.y = kSpectrumTops;
  launch(queue, "energy of the largest", tops_kernel<Key>, grid, sorted, cuts, work.partial);
  join_rows(queue, work.partial, grid.x, kSpectrumTops, out);
}

template void sum_tops<std::uint32_t>(Queue<Space::cuda>, const SpectrumWork&, std::size_t, const SpectrumCuts&,
                                      double*);
template void sum_tops<double>(Queue<Space::cuda>, const SpectrumWork&, std::size_t, const SpectrumCuts&, double*);

}  // namespace gradtool::cuda
