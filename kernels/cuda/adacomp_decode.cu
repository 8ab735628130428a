#include <cuda_runtime.h>

#include "kernels/cuda/adacomp.hpp"
#include "kernels/cuda/adacomp_work.hpp"
#include "kernels/cuda/block_ops.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/tile_scan.hpp"

namespace gradtool::cuda {
namespace {

using law::AdaComp;

/// The sum of counts of one tensor, which start at `at`, by a block.
template <class Entry>
__device__ std::uint64_t sum_of_counts(const std::byte* at, std::size_t bins) {
  const auto* counts = reinterpret_cast<const Entry*>(at);
  std::uint64_t own = 0;
#pragma unroll 8
  for (std::size_t b = threadIdx.x; b < bins; b += kThreads) own += counts[b];
  std::uint64_t total = 0;
  block_sum_through(own, total);
  return total;
}

/// One block: where tensors lie, each behind the entries that the counts of the one before it tell.
__global__ void find_kernel(AdaCompCut cut, const std::byte* payload, std::size_t size, AdaCompWork work) {
  const std::uint64_t stated = *reinterpret_cast<const std::uint64_t*>(payload);
  const std::uint64_t end = stated < size ? stated : size;
  bool good = stated <= size;
  std::uint64_t at = 8 + 4 * cut.tensor_count;
  for (std::size_t t = 0; t < cut.tensor_count && good; ++t) {
    const AdaCompTensor& tensor = cut.tensors[t];
    if (threadIdx.x == 0) work.offsets[t] = at;
    good = at + adacomp_tensor_bytes(tensor, 0) <= end;
    if (!good) break;
    const std::uint64_t entries = tensor.width == 1 ? sum_of_counts<std::uint8_t>(payload + at, tensor.bins)
                                                    : sum_of_counts<std::uint16_t>(payload + at, tensor.bins);
    at += adacomp_tensor_bytes(tensor, entries);
    good = entries <= tensor.elements && at <= end;
  }
  if (threadIdx.x == 0) *work.good = good && at == stated ? 1u : 0u;
}

__device__ std::uint32_t count_at(const AdaCompTensor& tensor, const std::byte* counts, std::size_t b) {
  return tensor.width == 1 ? reinterpret_cast<const std::uint8_t*>(counts)[b]
                           : reinterpret_cast<const std::uint16_t*>(counts)[b];
}

/// Entries of each piece.
__global__ void pieces_kernel(AdaCompCut cut, const std::byte* payload, AdaCompWork work) {
  const bool good = *work.good != 0;
  for (std::size_t p = blockIdx.x; p < cut.piece_count; p += gridDim.x) {
    const AdaCompPiece piece = cut.pieces[p];
    std::uint32_t own = 0;
    for (std::size_t b = threadIdx.x; b < piece.bins && good; b += kThreads)
      own += count_at(cut.tensors[piece.tensor], payload + work.offsets[piece.tensor], piece.first_bin + b);
    std::uint32_t total = 0;
    block_sum_through(own, total);
    if (threadIdx.x == 0) work.before[p] = total;
  }
  if (thread_in_grid() == 0) work.before[cut.piece_count] = 0;
}

__global__ void add_kernel(AdaCompCut cut, const std::byte* payload, AdaCompWork work, float weight, float* out) {
  __shared__ std::uint32_t starts[kAdaCompMostBins];
  if (*work.good == 0) {
    for (std::size_t i = thread_in_grid(); i < cut.elements; i += threads_in_grid())
      out[i] = __uint_as_float(0x7fc00000u);
    return;
  }
  for (std::size_t p = blockIdx.x; p < cut.piece_count; p += gridDim.x) {
    const AdaCompPiece piece = cut.pieces[p];
    const AdaCompTensor& tensor = cut.tensors[piece.tensor];
    const std::byte* counts = payload + work.offsets[piece.tensor];
    const std::byte* entries =
        counts + tensor.width * (tensor.bins + (work.before[p] - work.before[tensor.first_piece]));
    const std::uint32_t scale = __float_as_uint(weight * reinterpret_cast<const float*>(payload + 8)[piece.tensor]);
    adacomp_bin_starts(
        piece.bins, [&](std::size_t b) { return count_at(tensor, counts, piece.first_bin + b); }, starts);
    for (std::size_t b = threadIdx.x / schedule::kLanes; b < piece.bins; b += kBlockWarpCount) {
      const std::size_t size = adacomp_bin_size(piece, tensor.bin, b);
      const std::uint32_t count = count_at(tensor, counts, piece.first_bin + b);
      for (std::uint32_t i = lane_in_warp(); i < count; i += schedule::kLanes) {
        const std::uint32_t entry = count_at(tensor, entries, starts[b] + i);
        const std::uint32_t code = entry & 3u;
        if (entry >> 2 >= size || code == 0 || code == 3) continue;
        out[piece.first + b * tensor.bin + (entry >> 2)] += __uint_as_float(scale ^ (code - AdaComp::kPositive) << 31);
      }
    }
    __syncthreads();
  }
}

}  // namespace

void adacomp_decode_add(Queue<Space::cuda> queue, const AdaCompCut& cut, View<const std::byte, Space::cuda> payload,
                        float weight, float* out, View<std::byte, Space::cuda> scratch) {
  const AdaCompWork work{scratch, cut};
  const unsigned blocks = blocks_for(cut.piece_count, 1);
  launch(queue, "adacomp find", find_kernel, 1, cut, payload.data(), payload.size(), work);
  launch(queue, "adacomp pieces", pieces_kernel, blocks, cut, payload.data(), work);
  scan_tiles(queue, work.before, cut.piece_count + 1, work.scan);
  launch(queue, "adacomp add", add_kernel, blocks, cut, payload.data(), work, weight, out);
}

}  // namespace gradtool::cuda
