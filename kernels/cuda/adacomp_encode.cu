#include <cuda_runtime.h>

#include "kernels/cuda/adacomp.hpp"
#include "kernels/cuda/adacomp_work.hpp"
#include "kernels/cuda/block_ops.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/tile_scan.hpp"

namespace gradtool::cuda {
namespace {

using law::AdaComp;

constexpr std::uint32_t kBatch = 4;  // elements of a bin that a lane has under way
constexpr std::uint32_t kBatchSize = kBatch * schedule::kLanes;

struct Batch {
  float gradient[kBatch], residue[kBatch];
};
/// Elements `at` and on of a bin of `count`, zeros behind its end. All are fetched before the first is needed: the
/// stores behind them would hold them up.
__device__ Batch batch_at(const float* gradient, const float* residue, std::size_t at, std::size_t count) {
  Batch batch;
#pragma unroll
  for (std::uint32_t e = 0; e < kBatch; ++e) {
    const std::size_t j = at + e * schedule::kLanes + lane_in_warp();
    batch.gradient[e] = j < count ? gradient[j] : 0.0F;
    batch.residue[e] = j < count ? residue[j] : 0.0F;
  }
  return batch;
}

/// G of all bins, a warp for each, their entries and their largest. The second look at a bin finds it in the cache.
__global__ void mark_kernel(AdaCompCut cut, AdaComp law, const float* gradient, float* residue, AdaCompWork work) {
  __shared__ float largest[kAdaCompMostBins];
  const unsigned lane = lane_in_warp();
  const std::uint32_t below = schedule::lanes_below(lane);
  for (std::size_t p = blockIdx.x; p < cut.piece_count; p += gridDim.x) {
    const AdaCompPiece piece = cut.pieces[p];
    const std::size_t bin = cut.tensors[piece.tensor].bin;
    std::uint32_t entries = 0;
    for (std::size_t b = threadIdx.x / schedule::kLanes; b < piece.bins; b += kBlockWarpCount) {
      const std::size_t first = piece.first + b * bin;
      const std::size_t count = adacomp_bin_size(piece, bin, b);
      std::uint32_t most = 0;
      for (std::size_t at = 0; at < count; at += kBatchSize) {
        const Batch batch = batch_at(gradient + first, residue + first, at, count);
#pragma unroll
        for (std::uint32_t e = 0; e < kBatch; ++e) {
          const std::size_t j = at + e * schedule::kLanes + lane;
          const float sum = batch.residue[e] + batch.gradient[e];
          if (j < count) residue[first + j] = sum;
          const std::uint32_t size = AdaComp::magnitude(sum);
          most = size > most ? size : most;
        }
      }
      most = __reduce_max_sync(kAllLanes, most);
      std::uint32_t found = 0;
      for (std::size_t at = 0; at < count; at += kBatchSize) {
        const Batch batch = batch_at(gradient + first, residue + first, at, count);
#pragma unroll
        for (std::uint32_t e = 0; e < kBatch; ++e) {
          const std::size_t j = at + e * schedule::kLanes + lane;
          const float sum = batch.residue[e];
          const bool sent = j < count && law.sends(sum, batch.gradient[e], most);
          const std::uint32_t all = __ballot_sync(kAllLanes, sent);
          if (sent)
            work.entries[first + found + static_cast<std::uint32_t>(__popc(all & below))] =
                static_cast<std::uint16_t>(j << 2 | AdaComp::code(sum));
          found += static_cast<std::uint32_t>(__popc(all));
        }
      }
      if (lane == 0) {
        largest[b] = __uint_as_float(most);
        work.counts[piece.first + b] = found;
        entries += found;
      }
    }
    std::uint32_t total = 0;
    block_sum_through(entries, total);
    if (threadIdx.x == 0) {  // in the CPU's order: the bytes of a scale hang on it
      double sum = 0.0;
      for (std::size_t b = 0; b < piece.bins; ++b) sum += static_cast<double>(largest[b]);
      work.sums[p] = sum;
      work.before[p] = total;
    }
    __syncthreads();
  }
  if (thread_in_grid() == 0) work.before[cut.piece_count] = 0;
}

/// A block for each tensor: its scale.
__global__ void scale_kernel(AdaCompCut cut, AdaCompWork work, std::byte* payload) {
  auto* scales = reinterpret_cast<float*>(payload + 8);
  for (std::size_t t = blockIdx.x; t < cut.tensor_count; t += gridDim.x) {
    const AdaCompTensor& tensor = cut.tensors[t];
    const double sum = block_sum_in_order(work.sums, tensor.first_piece, tensor.last_piece);
    if (threadIdx.x == 0) {
      const double scale = sum / static_cast<double>(tensor.bins);
      const bool finite = scale < static_cast<double>(__uint_as_float(AdaComp::kInfinity));
      scales[t] = finite ? static_cast<float>(scale) : __uint_as_float(0x7fc00000u);
    }
  }
}

/// One block: where tensors lie, the size of all, and the bytes that pad each to a word.
__global__ void offsets_kernel(AdaCompCut cut, AdaCompWork work, std::byte* payload) {
  std::uint64_t at = 8 + 4 * cut.tensor_count;
  for (std::size_t first = 0; first < cut.tensor_count; first += kThreads) {
    const std::size_t t = first + threadIdx.x;
    std::uint64_t own = 0;
    std::uint64_t used = 0;
    if (t < cut.tensor_count) {
      const AdaCompTensor& tensor = cut.tensors[t];
      const std::uint64_t entries = work.before[tensor.last_piece] - work.before[tensor.first_piece];
      own = adacomp_tensor_bytes(tensor, entries);
      used = tensor.width * (tensor.bins + entries);
    }
    std::uint64_t total = 0;
    const std::uint64_t offset = at + block_sum_through(own, total) - own;
    if (t < cut.tensor_count) {
      work.offsets[t] = offset;
      for (; used < own; ++used) payload[offset + used] = std::byte{0};
    }
    at += total;
  }
  if (threadIdx.x != 0) return;
  work.offsets[cut.tensor_count] = at;
  *reinterpret_cast<std::uint64_t*>(payload) = at;
}

/// Counts and entries of a piece to their place; what was sent comes off the residue.
template <class Entry>
__device__ void write_piece(const AdaCompCut& cut, const AdaCompPiece& piece, std::size_t p, float* residue,
                            const AdaCompWork& work, std::byte* payload, std::uint32_t* starts) {
  const AdaCompTensor& tensor = cut.tensors[piece.tensor];
  const float scale = reinterpret_cast<const float*>(payload + 8)[piece.tensor];
  const bool finite = scale < __uint_as_float(AdaComp::kInfinity);
  auto* counts = reinterpret_cast<Entry*>(payload + work.offsets[piece.tensor]);
  auto* entries = counts + tensor.bins + (work.before[p] - work.before[tensor.first_piece]);
  adacomp_bin_starts(
      piece.bins, [&](std::size_t b) { return work.counts[piece.first + b]; }, starts);
  for (std::size_t b = threadIdx.x / schedule::kLanes; b < piece.bins; b += kBlockWarpCount) {
    const std::size_t first = piece.first + b * tensor.bin;
    const std::uint32_t count = work.counts[piece.first + b];
    for (std::uint32_t i = lane_in_warp(); i < count; i += schedule::kLanes) {
      const std::uint16_t entry = work.entries[first + i];
      entries[starts[b] + i] = static_cast<Entry>(entry);
      float& sum = residue[first + (entry >> 2)];
      sum = finite ? sum - __uint_as_float(__float_as_uint(scale) | (__float_as_uint(sum) & 0x80000000u)) : 0.0F;
    }
    if (lane_in_warp() == 0) counts[piece.first_bin + b] = static_cast<Entry>(count);
  }
  __syncthreads();
}

__global__ void write_kernel(AdaCompCut cut, float* residue, AdaCompWork work, std::byte* payload) {
  __shared__ std::uint32_t starts[kAdaCompMostBins];
  for (std::size_t p = blockIdx.x; p < cut.piece_count; p += gridDim.x) {
    const AdaCompPiece piece = cut.pieces[p];
    if (cut.tensors[piece.tensor].width == 1)
      write_piece<std::uint8_t>(cut, piece, p, residue, work, payload, starts);
    else
      write_piece<std::uint16_t>(cut, piece, p, residue, work, payload, starts);
  }
}

}  // namespace

std::size_t adacomp_scratch_bytes(std::size_t elements, std::size_t tensors, std::size_t pieces) {
  return AdaCompWork{{}, elements, tensors, pieces}.bytes;
}

void adacomp_encode(Queue<Space::cuda> queue, const AdaCompCut& cut, law::AdaComp law, const float* gradient,
                    float* residue, std::byte* payload, View<std::byte, Space::cuda> scratch) {
  const AdaCompWork work{scratch, cut};
  const unsigned blocks = blocks_for(cut.piece_count, 1);
  launch(queue, "adacomp mark", mark_kernel, blocks, cut, law, gradient, residue, work);
  scan_tiles(queue, work.before, cut.piece_count + 1, work.scan);
  launch(queue, "adacomp scales", scale_kernel, blocks_for(cut.tensor_count, 1), cut, work, payload);
  launch(queue, "adacomp offsets", offsets_kernel, 1, cut, work, payload);
  launch(queue, "adacomp write", write_kernel, blocks, cut, residue, work, payload);
}

}  // namespace gradtool::cuda
