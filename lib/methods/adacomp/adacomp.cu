#include <cuda_runtime.h>

#include "kernels/cuda/block_ops.hpp"
#include "kernels/cuda/block_sums.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/tile_scan.hpp"
#include "lib/codecs/gpu_codec.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/codecs/per_device.hpp"
#include "lib/core/scratch.hpp"
#include "lib/methods/adacomp/codec.hpp"

/// adacomp on the GPU. It writes the bytes that adacomp.cpp writes.
namespace gradtool {
namespace cuda {
namespace {

using format::AdaComp;
using format::AdaCompPiece;
using format::AdaCompTensor;

/// How the bucket is cut, in device memory.
struct Cut {
  const AdaCompTensor* tensors = nullptr;
  const AdaCompPiece* pieces = nullptr;
  std::size_t tensor_count = 0, piece_count = 0;
  std::size_t elements = 0;
};

struct Workspace {
  Workspace(std::size_t elements, std::size_t tensors, std::size_t pieces, Scratch<Space::cuda> scratch)
      : entries{scratch.take<std::uint16_t>(elements).data()},
        counts{scratch.take<std::uint32_t>(elements).data()},
        largest{scratch.take<double>(pieces).data()},
        before{scratch.take<std::uint64_t>(pieces + 1).data()},
        offsets{scratch.take<std::uint64_t>(tensors).data()},
        valid{scratch.take<std::uint32_t>(1).data()},
        scan{scratch.take_bytes(scan_bytes<std::uint64_t>(pieces + 1))},
        residue{scratch.take<float>(elements)} {}
  std::uint16_t* entries;  ///< those of a bin start where the bin's elements do
  std::uint32_t* counts;   ///< entries of bin b of a piece, at the piece's first element + b
  double* largest;         ///< sum over the bins of a piece of their largest |G|
  std::uint64_t* before;   ///< entries in the pieces before this one
  std::uint64_t* offsets;  ///< of the counts of each tensor in the payload
  std::uint32_t* valid;    ///< decoding: 1 where the payload's counts agree with its size
  View<std::byte, Space::cuda> scan;
  View<float, Space::cuda> residue;  ///< for a step whose residue is not kept
};

/// starts[b] := the sum of count(b') over the bins b' before b, for all bins of a piece, by a block.
template <class Count>
__device__ void sum_before(std::size_t bins, const Count& count, std::uint32_t* starts) {
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

/// The first pass, a block for each piece and a warp for each bin: residue += gradient, the largest |G| of each bin,
/// and the entries of what is sent. The second loop over a bin finds its elements in the cache.
__global__ void mark_kernel(Cut cut, AdaComp rule, const float* __restrict__ gradient, float* __restrict__ residue,
                            Workspace work) {
  __shared__ float largest[AdaCompBins::kMostBins];
  const unsigned lane = lane_in_warp();
  const std::uint32_t below = lanes_below(lane);
  for (std::size_t p = blockIdx.x; p < cut.piece_count; p += gridDim.x) {
    const AdaCompPiece piece = cut.pieces[p];
    const std::size_t bin = cut.tensors[piece.tensor].bin;
    std::uint32_t entries = 0;
    for (std::size_t b = threadIdx.x / kWarpSize; b < piece.bins; b += kBlockWarpCount) {
      const std::size_t first = piece.first + b * bin;
      const std::size_t count = piece.bin_size(bin, b);
      std::uint32_t most = 0;
      for (std::size_t j = lane; j < count; j += kWarpSize) {
        const float sum = residue[first + j] + gradient[first + j];
        residue[first + j] = sum;
        const std::uint32_t size = AdaComp::magnitude(sum);
        most = size > most ? size : most;
      }
      most = __reduce_max_sync(kAllLanes, most);
      std::uint32_t sent_before = 0;
      for (std::size_t start = 0; start < count; start += kWarpSize) {
        const std::size_t j = start + lane;
        const float sum = j < count ? residue[first + j] : 0.0F;
        const bool sent = j < count && rule.sends(sum, gradient[first + j], most);
        const std::uint32_t all = __ballot_sync(kAllLanes, sent);
        if (sent)
          work.entries[first + sent_before + static_cast<std::uint32_t>(__popc(all & below))] =
              static_cast<std::uint16_t>(j << 2 | AdaComp::code(sum));
        sent_before += static_cast<std::uint32_t>(__popc(all));
      }
      if (lane == 0) {
        largest[b] = __uint_as_float(most);
        work.counts[piece.first + b] = sent_before;
        entries += sent_before;
      }
    }
    std::uint32_t total = 0;
    block_sum_through(entries, total);
    if (threadIdx.x == 0) {  // one thread adds in the order of the CPU, because the sum's bits reach the payload
      double sum = 0.0;
      for (std::size_t b = 0; b < piece.bins; ++b) sum += static_cast<double>(largest[b]);
      work.largest[p] = sum;
      work.before[p] = total;  // a scan makes sums of these counts
    }
    __syncthreads();
  }
  if (thread_in_grid() == 0) work.before[cut.piece_count] = 0;
}

/// A block for each tensor: its scale.
__global__ void scale_kernel(Cut cut, Workspace work, std::byte* payload) {
  __shared__ ChunkSumsShared<1> shared;
  auto* scales = reinterpret_cast<float*>(payload + 8);
  for (std::size_t t = blockIdx.x; t < cut.tensor_count; t += gridDim.x) {
    const AdaCompTensor& tensor = cut.tensors[t];
    double sum[1];
    sums_of_chunks<1>(work.largest, 0, tensor.first_piece, tensor.last_piece, shared, sum);
    if (threadIdx.x == 0) scales[t] = AdaComp::scale(sum[0], tensor.bins);
  }
}

/// One block: where each tensor starts in the payload, the payload's size, and the zeros that pad each tensor to 4
/// bytes.
__global__ void offsets_kernel(Cut cut, Workspace work, std::byte* payload) {
  std::uint64_t end = 8 + 4 * cut.tensor_count;
  for (std::size_t first = 0; first < cut.tensor_count; first += kThreads) {
    const std::size_t t = first + threadIdx.x;
    std::uint64_t own = 0;
    std::uint64_t used = 0;
    if (t < cut.tensor_count) {
      const AdaCompTensor& tensor = cut.tensors[t];
      const std::uint64_t entries = work.before[tensor.last_piece] - work.before[tensor.first_piece];
      own = tensor.bytes(entries);
      used = tensor.used_bytes(entries);
    }
    std::uint64_t total = 0;
    const std::uint64_t offset = end + block_sum_through(own, total) - own;
    if (t < cut.tensor_count) {
      work.offsets[t] = offset;
      for (; used < own; ++used) payload[offset + used] = std::byte{0};
    }
    end += total;
  }
  if (threadIdx.x == 0) *reinterpret_cast<std::uint64_t*>(payload) = end;
}

/// Writes counts and entries of a piece, and takes what was sent off the residue, by a block.
template <class Entry>
__device__ void write_piece(const Cut& cut, const AdaCompPiece& piece, std::size_t p, float* residue,
                            const Workspace& work, std::byte* payload, std::uint32_t* starts) {
  const AdaCompTensor& tensor = cut.tensors[piece.tensor];
  const float scale = reinterpret_cast<const float*>(payload + 8)[piece.tensor];
  auto* counts = reinterpret_cast<Entry*>(payload + work.offsets[piece.tensor]);
  auto* entries = counts + tensor.bins + (work.before[p] - work.before[tensor.first_piece]);
  sum_before(
      piece.bins, [&](std::size_t b) { return work.counts[piece.first + b]; }, starts);
  for (std::size_t b = threadIdx.x / kWarpSize; b < piece.bins; b += kBlockWarpCount) {
    const std::size_t first = piece.first + b * tensor.bin;
    const std::uint32_t count = work.counts[piece.first + b];
    for (std::uint32_t i = lane_in_warp(); i < count; i += kWarpSize) {
      const std::uint16_t entry = work.entries[first + i];
      entries[starts[b] + i] = static_cast<Entry>(entry);
      float& sum = residue[first + (entry >> 2)];
      sum = AdaComp::residue_after(sum, scale);
    }
    if (lane_in_warp() == 0) counts[piece.first_bin + b] = static_cast<Entry>(count);
  }
  __syncthreads();
}

__global__ void write_kernel(Cut cut, float* residue, Workspace work, std::byte* payload) {
  __shared__ std::uint32_t starts[AdaCompBins::kMostBins];
  for (std::size_t p = blockIdx.x; p < cut.piece_count; p += gridDim.x) {
    const AdaCompPiece piece = cut.pieces[p];
    if (cut.tensors[piece.tensor].width() == 1)
      write_piece<std::uint8_t>(cut, piece, p, residue, work, payload, starts);
    else
      write_piece<std::uint16_t>(cut, piece, p, residue, work, payload, starts);
  }
}

/// A count, or an entry, of a tensor.
__device__ std::uint32_t read_entry(const AdaCompTensor& tensor, const std::byte* entries, std::size_t i) {
  return tensor.width() == 1 ? reinterpret_cast<const std::uint8_t*>(entries)[i]
                             : reinterpret_cast<const std::uint16_t*>(entries)[i];
}

/// The number of a tensor's entries: the sum of its counts, by a block.
template <class Entry>
__device__ std::uint64_t sum_of_counts(const std::byte* bytes, std::size_t bins) {
  const auto* counts = reinterpret_cast<const Entry*>(bytes);
  std::uint64_t own = 0;
#pragma unroll 8
  for (std::size_t b = threadIdx.x; b < bins; b += kThreads) own += counts[b];
  std::uint64_t total = 0;
  block_sum_through(own, total);
  return total;
}

/// One block: where each tensor starts in the payload, which follows from the counts of the tensor before it, and
/// whether all of them fit the payload.
__global__ void find_tensors_kernel(Cut cut, const std::byte* payload, std::size_t size, Workspace work) {
  const std::uint64_t stated = *reinterpret_cast<const std::uint64_t*>(payload);
  const std::uint64_t end = stated < size ? stated : size;
  bool valid = stated <= size;
  std::uint64_t offset = 8 + 4 * cut.tensor_count;
  for (std::size_t t = 0; t < cut.tensor_count && valid; ++t) {
    const AdaCompTensor& tensor = cut.tensors[t];
    if (threadIdx.x == 0) work.offsets[t] = offset;
    valid = offset + tensor.bytes(0) <= end;
    if (!valid) break;
    const std::uint64_t entries = tensor.width() == 1 ? sum_of_counts<std::uint8_t>(payload + offset, tensor.bins)
                                                      : sum_of_counts<std::uint16_t>(payload + offset, tensor.bins);
    offset += tensor.bytes(entries);
    valid = entries <= tensor.elements && offset <= end;
  }
  if (threadIdx.x == 0) *work.valid = valid && offset == stated ? 1u : 0u;
}

/// The number of entries of each piece; a scan makes sums of them.
__global__ void count_entries_kernel(Cut cut, const std::byte* payload, Workspace work) {
  const bool valid = *work.valid != 0;
  for (std::size_t p = blockIdx.x; p < cut.piece_count; p += gridDim.x) {
    const AdaCompPiece piece = cut.pieces[p];
    std::uint32_t own = 0;
    for (std::size_t b = threadIdx.x; b < piece.bins && valid; b += kThreads)
      own += read_entry(cut.tensors[piece.tensor], payload + work.offsets[piece.tensor], piece.first_bin + b);
    std::uint32_t total = 0;
    block_sum_through(own, total);
    if (threadIdx.x == 0) work.before[p] = total;
  }
  if (thread_in_grid() == 0) work.before[cut.piece_count] = 0;
}

/// Adds every entry at its element. A payload that contradicts itself makes all of `out` NaN; entries that point past
/// the end of their bin, or have no sign, are skipped.
__global__ void add_kernel(Cut cut, const std::byte* payload, Workspace work, float weight, float* out) {
  __shared__ std::uint32_t starts[AdaCompBins::kMostBins];
  if (*work.valid == 0) {
    for (std::size_t i = thread_in_grid(); i < cut.elements; i += threads_in_grid())
      out[i] = __uint_as_float(0x7fc00000u);
    return;
  }
  for (std::size_t p = blockIdx.x; p < cut.piece_count; p += gridDim.x) {
    const AdaCompPiece piece = cut.pieces[p];
    const AdaCompTensor& tensor = cut.tensors[piece.tensor];
    const std::byte* counts = payload + work.offsets[piece.tensor];
    const std::byte* entries =
        counts + tensor.width() * (tensor.bins + (work.before[p] - work.before[tensor.first_piece]));
    const std::uint32_t scale = __float_as_uint(weight * reinterpret_cast<const float*>(payload + 8)[piece.tensor]);
    sum_before(
        piece.bins, [&](std::size_t b) { return read_entry(tensor, counts, piece.first_bin + b); }, starts);
    for (std::size_t b = threadIdx.x / kWarpSize; b < piece.bins; b += kBlockWarpCount) {
      const std::size_t size = piece.bin_size(tensor.bin, b);
      const std::uint32_t count = read_entry(tensor, counts, piece.first_bin + b);
      for (std::uint32_t i = lane_in_warp(); i < count; i += kWarpSize) {
        const std::uint32_t entry = read_entry(tensor, entries, starts[b] + i);
        const std::uint32_t code = entry & 3u;
        if (entry >> 2 >= size || (code != AdaComp::kPositive && code != AdaComp::kNegative)) continue;
        out[piece.first + b * tensor.bin + (entry >> 2)] += __uint_as_float(scale ^ (code - AdaComp::kPositive) << 31);
      }
    }
    __syncthreads();
  }
}

}  // namespace
}  // namespace cuda

namespace {

class CudaAdaComp final : public GpuCodec {
 public:
  CudaAdaComp(const Params& params, const Layout& layout) : CudaAdaComp{params, layout, AdaCompBins{params, layout}} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    expects(n == n_, "codec adacomp: made for another layout");
    tensors_.make();
    pieces_.make();
    std::size_t bytes = 0;
    static_cast<void>(workspace(Planning{&bytes}));
    return {.payload_bytes = payload_bound_, .scratch_bytes = bytes, .exact = false};
  }

  /// The first step, from an empty residue.
  void encode(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, const EncodeContext& /*context*/,
              View<std::byte, Space::cuda> payload, View<std::byte, Space::cuda> scratch) const override {
    const auto residue = workspace(Scratch<Space::cuda>{scratch}).residue;
    fill_zero(queue, residue);
    step(queue, gradient, residue.data(), payload, scratch);
  }

  /// One step of one rank.
  void step(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, float* residue,
            View<std::byte, Space::cuda> payload, View<std::byte, Space::cuda> scratch) const {
    const cuda::Workspace work = workspace(Scratch<Space::cuda>{scratch});
    const unsigned blocks = cuda::blocks_for(pieces_.size(), 1);
    std::byte* out = payload.data();
    cuda::launch(queue, "adacomp mark", cuda::mark_kernel, blocks, cut(), rule_, gradient.data(), residue, work);
    cuda::scan_tiles(queue, work.before, pieces_.size() + 1, work.scan);
    cuda::launch(queue, "adacomp scales", cuda::scale_kernel, cuda::blocks_for(tensors_.size(), 1), cut(), work, out);
    cuda::launch(queue, "adacomp offsets", cuda::offsets_kernel, 1, cut(), work, out);
    cuda::launch(queue, "adacomp write", cuda::write_kernel, blocks, cut(), residue, work, out);
  }

  void decode_add(Queue<Space::cuda> queue, View<const std::byte, Space::cuda> payload, float weight,
                  View<float, Space::cuda> out, View<std::byte, Space::cuda> scratch) const override {
    expect_room("adacomp", payload.size(), 8 + 4 * tensors_.size(), payload_bound_);
    const cuda::Workspace work = workspace(Scratch<Space::cuda>{scratch});
    const unsigned blocks = cuda::blocks_for(pieces_.size(), 1);
    const std::byte* in = payload.data();
    cuda::launch(queue, "adacomp find tensors", cuda::find_tensors_kernel, 1, cut(), in, payload.size(), work);
    cuda::launch(queue, "adacomp count entries", cuda::count_entries_kernel, blocks, cut(), in, work);
    cuda::scan_tiles(queue, work.before, pieces_.size() + 1, work.scan);
    cuda::launch(queue, "adacomp add", cuda::add_kernel, blocks, cut(), in, work, weight, out.data());
  }

  [[nodiscard]] std::unique_ptr<Encoder<Space::cuda>> make_encoder(std::size_t n, int /*ranks*/,
                                                                   Queue<Space::cuda> queue) const override {
    return std::make_unique<AdaCompEncoder<Space::cuda, CudaAdaComp>>(*this, n, queue);
  }

 private:
  CudaAdaComp(const Params& params, const Layout& layout, const AdaCompBins& bins)
      : GpuCodec{"adacomp", params, layout},
        rule_{static_cast<float>(params.real("s")) - 1.0F},
        tensors_{bins.tensors},
        pieces_{bins.pieces},
        n_{layout.elements},
        payload_bound_{bins.payload_bound()} {}

  [[nodiscard]] cuda::Workspace workspace(Scratch<Space::cuda> scratch) const {
    return {n_, tensors_.size(), pieces_.size(), scratch};
  }
  [[nodiscard]] cuda::Cut cut() const { return {tensors_.get(), pieces_.get(), tensors_.size(), pieces_.size(), n_}; }

  format::AdaComp rule_;
  DeviceTable<format::AdaCompTensor> tensors_;
  DeviceTable<format::AdaCompPiece> pieces_;
  std::size_t n_;
  std::size_t payload_bound_;
};

}  // namespace

extern constinit const GpuFactories adacomp_gpu{.codec = make_method_codec<Space::cuda, CudaAdaComp>};

}  // namespace gradtool
