#include "kernels/cuda/adacomp.hpp"

#include <cuda_runtime.h>

#include <type_traits>

#include "kernels/cuda/block_ops.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/tile_scan.hpp"

namespace gradtool::cuda {
namespace {

using law::AdaComp;

/// Pieces of the scratch.
struct Work {
  std::uint16_t* entries = nullptr;  ///< of a bin, from its start on
  std::uint32_t* counts = nullptr;   ///< of a bin, at its place in the unit's bins: at most one for each element
  double* sums = nullptr;            ///< of a piece: of the largest of its bins
  std::uint64_t* before = nullptr;   ///< entries in the pieces in front
  std::uint64_t* offsets = nullptr;  ///< of a tensor in the payload; the one behind the last is the payload's size
  std::uint32_t* good = nullptr;     ///< when decoding: the payload does not contradict itself
  std::size_t scan = 0;              ///< where the scan's memory starts
  std::size_t bytes = 0;

  Work(std::byte* base, std::size_t elements, std::size_t tensors, std::size_t pieces) {
    const auto take = [&](auto*& place, std::size_t count) {
      if (base != nullptr) place = reinterpret_cast<std::remove_reference_t<decltype(place)>>(base + bytes);
      bytes += Arena<Space::cuda>::padded_size(sizeof *place * count);
    };
    take(entries, elements);
    take(counts, elements);
    take(sums, pieces);
    take(before, pieces + 1);
    take(offsets, tensors + 1);
    take(good, 1);
    scan = bytes;
    bytes += scan_bytes<std::uint64_t>(pieces + 1);
  }
  Work(View<std::byte, Space::cuda> scratch, const AdaCompCut& cut)
      : Work{scratch.data(), cut.elements, cut.tensor_count, cut.piece_count} {}
};

GT_HD std::size_t tensor_bytes(const AdaCompTensor& tensor, std::size_t entries) {
  return (tensor.width * (tensor.bins + entries) + 3) / 4 * 4;
}

/// Elements of bin b of a piece.
__device__ std::size_t bin_size(const AdaCompPiece& piece, std::size_t bin, std::size_t b) {
  const std::size_t left = piece.count - b * bin;
  return left < bin ? left : bin;
}

/// G of all bins, a warp for each, their entries and their largest. The second look at a bin finds it in the cache.
__global__ void mark_kernel(AdaCompCut cut, AdaComp law, const float* gradient, float* residue, Work work) {
  __shared__ float largest[kAdaCompMostBins];
  const unsigned lane = threadIdx.x % schedule::kLanes;
  const std::uint32_t below = schedule::lanes_below(lane);
  for (std::size_t p = blockIdx.x; p < cut.piece_count; p += gridDim.x) {
    const AdaCompPiece piece = cut.pieces[p];
    const std::size_t bin = cut.tensors[piece.tensor].bin;
    std::uint32_t entries = 0;
    for (std::size_t b = threadIdx.x / schedule::kLanes; b < piece.bins; b += kBlockWarpCount) {
      const std::size_t first = piece.first + b * bin;
      const std::size_t count = bin_size(piece, bin, b);
      std::uint32_t most = 0;
#pragma unroll 4
      for (std::size_t j = lane; j < count; j += schedule::kLanes) {
        const float sum = residue[first + j] + gradient[first + j];
        residue[first + j] = sum;
        const std::uint32_t size = AdaComp::magnitude(sum);
        most = size > most ? size : most;
      }
      most = __reduce_max_sync(kAllLanes, most);
      std::uint32_t found = 0;
      for (std::size_t at = 0; at < count; at += schedule::kLanes) {
        const std::size_t j = at + lane;
        const float sum = j < count ? residue[first + j] : 0.0F;
        const bool sent = j < count && law.sends(sum, gradient[first + j], most);
        const std::uint32_t all = __ballot_sync(kAllLanes, sent);
        if (sent)
          work.entries[first + found + static_cast<std::uint32_t>(__popc(all & below))] =
              static_cast<std::uint16_t>(j << 2 | AdaComp::code(sum));
        found += static_cast<std::uint32_t>(__popc(all));
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

/// A block for each tensor: its scale. One thread adds in order what the others fetch.
__global__ void scale_kernel(AdaCompCut cut, Work work, std::byte* payload) {
  __shared__ double room[kThreads];
  auto* scales = reinterpret_cast<float*>(payload + 8);
  for (std::size_t t = blockIdx.x; t < cut.tensor_count; t += gridDim.x) {
    const AdaCompTensor& tensor = cut.tensors[t];
    double sum = 0.0;
    for (std::size_t first = tensor.first_piece; first < tensor.last_piece; first += kThreads) {
      const std::size_t mine = first + threadIdx.x;
      room[threadIdx.x] = mine < tensor.last_piece ? work.sums[mine] : 0.0;
      __syncthreads();
      if (threadIdx.x == 0) {
        for (std::size_t i = 0; i < kThreads && first + i < tensor.last_piece; ++i) sum += room[i];
      }
      __syncthreads();
    }
    if (threadIdx.x == 0) {
      const double scale = sum / static_cast<double>(tensor.bins);
      const bool finite = scale < static_cast<double>(__uint_as_float(AdaComp::kInfinity));
      scales[t] = finite ? static_cast<float>(scale) : __uint_as_float(0x7fc00000u);
    }
  }
}

/// One block: where tensors lie, the size of all, and the bytes that pad each to a word.
__global__ void offsets_kernel(AdaCompCut cut, Work work, std::byte* payload) {
  std::uint64_t at = 8 + 4 * cut.tensor_count;
  for (std::size_t first = 0; first < cut.tensor_count; first += kThreads) {
    const std::size_t t = first + threadIdx.x;
    std::uint64_t own = 0;
    std::uint64_t used = 0;
    if (t < cut.tensor_count) {
      const AdaCompTensor& tensor = cut.tensors[t];
      const std::uint64_t entries = work.before[tensor.last_piece] - work.before[tensor.first_piece];
      own = tensor_bytes(tensor, entries);
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

/// starts[b] := the sum of count(b') over the bins in front, for all bins of a piece.
template <class Count>
__device__ void bin_starts(std::size_t bins, const Count& count, std::uint32_t* starts) {
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

/// Counts and entries of a piece to their place; what was sent comes off the residue.
template <class Entry>
__device__ void write_piece(const AdaCompCut& cut, const AdaCompPiece& piece, std::size_t p, float* residue,
                            const Work& work, std::byte* payload, std::uint32_t* starts) {
  const AdaCompTensor& tensor = cut.tensors[piece.tensor];
  const float scale = reinterpret_cast<const float*>(payload + 8)[piece.tensor];
  const bool finite = scale < __uint_as_float(AdaComp::kInfinity);
  auto* counts = reinterpret_cast<Entry*>(payload + work.offsets[piece.tensor]);
  auto* entries = counts + tensor.bins + (work.before[p] - work.before[tensor.first_piece]);
  bin_starts(
      piece.bins, [&](std::size_t b) { return work.counts[piece.first + b]; }, starts);
  for (std::size_t b = threadIdx.x / schedule::kLanes; b < piece.bins; b += kBlockWarpCount) {
    const std::size_t first = piece.first + b * tensor.bin;
    const std::uint32_t count = work.counts[piece.first + b];
    for (std::uint32_t i = threadIdx.x % schedule::kLanes; i < count; i += schedule::kLanes) {
      const std::uint16_t entry = work.entries[first + i];
      entries[starts[b] + i] = static_cast<Entry>(entry);
      float& sum = residue[first + (entry >> 2)];
      sum = finite ? sum - __uint_as_float(__float_as_uint(scale) | (__float_as_uint(sum) & 0x80000000u)) : 0.0F;
    }
    if (threadIdx.x % schedule::kLanes == 0) counts[piece.first_bin + b] = static_cast<Entry>(count);
  }
  __syncthreads();
}

__global__ void write_kernel(AdaCompCut cut, float* residue, Work work, std::byte* payload) {
  __shared__ std::uint32_t starts[kAdaCompMostBins];
  for (std::size_t p = blockIdx.x; p < cut.piece_count; p += gridDim.x) {
    const AdaCompPiece piece = cut.pieces[p];
    if (cut.tensors[piece.tensor].width == 1)
      write_piece<std::uint8_t>(cut, piece, p, residue, work, payload, starts);
    else
      write_piece<std::uint16_t>(cut, piece, p, residue, work, payload, starts);
  }
}

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
__global__ void find_kernel(AdaCompCut cut, const std::byte* payload, std::size_t size, Work work) {
  const std::uint64_t stated = *reinterpret_cast<const std::uint64_t*>(payload);
  const std::uint64_t end = stated < size ? stated : size;
  bool good = stated <= size;
  std::uint64_t at = 8 + 4 * cut.tensor_count;
  for (std::size_t t = 0; t < cut.tensor_count && good; ++t) {
    const AdaCompTensor& tensor = cut.tensors[t];
    if (threadIdx.x == 0) work.offsets[t] = at;
    good = at + tensor_bytes(tensor, 0) <= end;
    if (!good) break;
    const std::uint64_t entries = tensor.width == 1 ? sum_of_counts<std::uint8_t>(payload + at, tensor.bins)
                                                    : sum_of_counts<std::uint16_t>(payload + at, tensor.bins);
    at += tensor_bytes(tensor, entries);
    good = entries <= tensor.elements && at <= end;
  }
  if (threadIdx.x == 0) *work.good = good && at == stated ? 1u : 0u;
}

__device__ std::uint32_t count_at(const AdaCompTensor& tensor, const std::byte* counts, std::size_t b) {
  return tensor.width == 1 ? reinterpret_cast<const std::uint8_t*>(counts)[b]
                           : reinterpret_cast<const std::uint16_t*>(counts)[b];
}

/// Entries of each piece.
__global__ void pieces_kernel(AdaCompCut cut, const std::byte* payload, Work work) {
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

__global__ void add_kernel(AdaCompCut cut, const std::byte* payload, Work work, float weight, float* out) {
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
    bin_starts(
        piece.bins, [&](std::size_t b) { return count_at(tensor, counts, piece.first_bin + b); }, starts);
    for (std::size_t b = threadIdx.x / schedule::kLanes; b < piece.bins; b += kBlockWarpCount) {
      const std::size_t size = bin_size(piece, tensor.bin, b);
      const std::uint32_t count = count_at(tensor, counts, piece.first_bin + b);
      for (std::uint32_t i = threadIdx.x % schedule::kLanes; i < count; i += schedule::kLanes) {
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

std::size_t adacomp_scratch_bytes(std::size_t elements, std::size_t tensors, std::size_t pieces) {
  return Work{nullptr, elements, tensors, pieces}.bytes;
}

void adacomp_encode(Queue<Space::cuda> queue, const AdaCompCut& cut, law::AdaComp law, const float* gradient,
                    float* residue, std::byte* payload, View<std::byte, Space::cuda> scratch) {
  const Work work{scratch, cut};
  const unsigned blocks = blocks_for(cut.piece_count, 1);
  launch(queue, "adacomp mark", mark_kernel, blocks, cut, law, gradient, residue, work);
  scan_tiles(queue, work.before, cut.piece_count + 1, scratch.part(work.scan, work.bytes - work.scan));
  launch(queue, "adacomp scales", scale_kernel, blocks_for(cut.tensor_count, 1), cut, work, payload);
  launch(queue, "adacomp offsets", offsets_kernel, 1, cut, work, payload);
  launch(queue, "adacomp write", write_kernel, blocks, cut, residue, work, payload);
}

void adacomp_decode_add(Queue<Space::cuda> queue, const AdaCompCut& cut, View<const std::byte, Space::cuda> payload,
                        float weight, float* out, View<std::byte, Space::cuda> scratch) {
  const Work work{scratch, cut};
  const unsigned blocks = blocks_for(cut.piece_count, 1);
  launch(queue, "adacomp find", find_kernel, 1, cut, payload.data(), payload.size(), work);
  launch(queue, "adacomp pieces", pieces_kernel, blocks, cut, payload.data(), work);
  scan_tiles(queue, work.before, cut.piece_count + 1, scratch.part(work.scan, work.bytes - work.scan));
  launch(queue, "adacomp add", add_kernel, blocks, cut, payload.data(), work, weight, out);
}

}  // namespace gradtool::cuda
