#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/adacomp.hpp"
#include "kernels/cuda/block_ops.hpp"
#include "kernels/cuda/scratch_pieces.hpp"
#include "kernels/cuda/tile_scan.hpp"

/// What encoding and decoding of adacomp share, for their .cu files.
namespace gradtool::cuda {

/// Pieces of the scratch.
struct AdaCompWork {
  std::uint16_t* entries;  ///< of a bin, from its start on
  std::uint32_t* counts;   ///< of a bin, at its place in the unit's bins: at most one for each element
  double* sums;            ///< of a piece: of the largest of its bins
  std::uint64_t* before;   ///< entries in the pieces in front
  std::uint64_t* offsets;  ///< of a tensor in the payload; the one behind the last is the payload's size
  std::uint32_t* good;     ///< when decoding: the payload does not contradict itself
  View<std::byte, Space::cuda> scan;
  std::size_t bytes;

  AdaCompWork(View<std::byte, Space::cuda> scratch, std::size_t elements, std::size_t tensors, std::size_t pieces) {
    ScratchPieces from{scratch};
    from.take(entries, elements);
    from.take(counts, elements);
    from.take(sums, pieces);
    from.take(before, pieces + 1);
    from.take(offsets, tensors + 1);
    from.take(good, 1);
    scan = from.take(scan_bytes<std::uint64_t>(pieces + 1));
    bytes = from.bytes();
  }
  AdaCompWork(View<std::byte, Space::cuda> scratch, const AdaCompCut& cut)
      : AdaCompWork{scratch, cut.elements, cut.tensor_count, cut.piece_count} {}
};

__device__ inline std::size_t adacomp_tensor_bytes(const AdaCompTensor& tensor, std::size_t entries) {
  return (tensor.width * (tensor.bins + entries) + 3) / 4 * 4;
}

/// Elements of bin b of a piece.
__device__ inline std::size_t adacomp_bin_size(const AdaCompPiece& piece, std::size_t bin, std::size_t b) {
  const std::size_t left = piece.count - b * bin;
  return left < bin ? left : bin;
}

/// starts[b] := the sum of count(b') over the bins in front, for all bins of a piece.
template <class Count>
__device__ void adacomp_bin_starts(std::size_t bins, const Count& count, std::uint32_t* starts) {
  std::uint32_t before = 0;
  for (std::size_t first = 0; first < bins; first += kThreads) {
    const std::size_t b = first + threadIdx.x;
    const std::uint32_t own = b < bins ? count(b) : 0u;
    std::uint32_t total = 0;
    const std::uint32_t through = block_sum_through(own, total);
    if (b < bins) starts[b] = before + through - own;
    before += total;
  }
  __syncthreads();
}

}  // namespace gradtool::cuda
