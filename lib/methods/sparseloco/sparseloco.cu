// The payloads of sparseloco.cpp, bit for bit: a block of threads a chunk.
#include <cuda_runtime.h>

#include "kernels/cuda/chunk_select.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/payloads.hpp"
#include "lib/codecs/gpu_codec.hpp"
#include "lib/codecs/per_device.hpp"
#include "lib/codecs/tensor_chunks.hpp"
#include "lib/methods/sparseloco/format.hpp"
#include "lib/methods/sparseloco/reducer.hpp"

namespace gradtool {
namespace cuda {
namespace {

using format::kLocoCodeBits;
using format::kLocoCodes;
using format::kLocoPositionBits;
using format::LocoBins;
using format::LocoRecord;
using format::LocoSums;

struct ChunkTable {
  const TensorChunk* chunk = nullptr;
  std::size_t count = 0;
};

/// Word w of the packed codes code(0) to code(count - 1).
template <class Code>
__device__ std::uint32_t word_of_codes(std::uint32_t count, std::uint32_t bits, std::uint32_t w, const Code& code) {
  std::uint32_t word = 0;
  for (std::uint32_t i = 32 * w / bits; i < count && i * bits < 32 * (w + 1); ++i) {
    const std::uint32_t at = i * bits;
    word |= at >= 32 * w ? code(i) << (at - 32 * w) : code(i) >> (32 * w - at);
  }
  return word;
}

/// `held` is null for an empty memory that is not kept.
__global__ void __launch_bounds__(kThreads, 4)
    encode_kernel(ChunkTable table, float beta, bool sigma, const float* gradient, float* held,
                  std::uint32_t* payload) {
  __shared__ float numbers[TensorChunk::kMost];
  __shared__ float sent[TensorChunk::kMost];
  __shared__ std::uint16_t positions[TensorChunk::kMost];
  __shared__ LocoBins bins;
  __shared__ std::uint32_t book[LocoRecord::kPositions];
  for (std::size_t c = blockIdx.x; c < table.count; c += gridDim.x) {
    const TensorChunk chunk = table.chunk[c];
    std::uint32_t* record = payload + chunk.word;
    for (std::uint32_t i = threadIdx.x; i < chunk.size(); i += kThreads) {
      const std::size_t e = chunk.element(i);
      numbers[i] = format::loco_carry(held != nullptr ? held[e] : 0.0f, gradient[e], beta);
      if (held != nullptr) held[e] = numbers[i];
    }
    __syncthreads();
    largest_of_chunk(numbers, chunk.size(), chunk.kept, positions);
    for (std::uint32_t i = threadIdx.x; i < chunk.kept; i += kThreads) sent[i] = numbers[positions[i]];
    __syncthreads();
    if (threadIdx.x == 0) {  // sums in the order of positions
      bins = LocoBins::of(sent, chunk.kept, sigma);
      LocoSums sums;
      for (std::uint32_t i = 0; i < chunk.kept; ++i) sums.add(bins.code(sent[i]), sent[i]);
      record[0] = book[0] = sums.entry(0) | static_cast<std::uint32_t>(sums.entry(1)) << 16;
      record[1] = book[1] = sums.entry(2) | static_cast<std::uint32_t>(sums.entry(3)) << 16;
    }
    __syncthreads();
    const auto position_words = static_cast<std::uint32_t>(format::packed_words(chunk.kept, kLocoPositionBits));
    for (std::uint32_t w = threadIdx.x; w < position_words; w += kThreads)
      record[LocoRecord::kPositions + w] =
          word_of_codes(chunk.kept, kLocoPositionBits, w, [&](std::uint32_t i) { return std::uint32_t{positions[i]}; });
    const auto code_words = static_cast<std::uint32_t>(format::packed_words(chunk.kept, kLocoCodeBits));
    for (std::uint32_t w = threadIdx.x; w < code_words; w += kThreads)
      record[LocoRecord::codes(chunk.kept) + w] =
          word_of_codes(chunk.kept, kLocoCodeBits, w, [&](std::uint32_t i) { return bins.code(sent[i]); });
    if (held != nullptr) {
      bool finite = true;
      for (std::uint32_t code = 0; code < kLocoCodes; ++code)
        finite = finite && (__float_as_uint(LocoRecord::value(book, code)) & kMagnitude) < 0x7f800000u;
      const std::uint32_t count = finite ? chunk.kept : chunk.size();
      for (std::uint32_t i = threadIdx.x; i < count; i += kThreads) {
        if (finite)
          held[chunk.element(positions[i])] -= LocoRecord::value(book, bins.code(sent[i]));
        else
          held[chunk.element(i)] = 0.0f;
      }
    }
    __syncthreads();  // shared memory is used again
  }
}

/// A warp adds a chunk. Positions that are none of the chunk are skipped.
__global__ void add_kernel(ChunkTable table, const std::uint32_t* payload, float weight, const float* factors,
                           float* out) {
  for (std::size_t c = warp_in_grid(); c < table.count; c += warps_in_grid()) {
    const TensorChunk chunk = table.chunk[c];
    const std::uint32_t* record = payload + chunk.word;
    const float factor = factors == nullptr ? weight : weight * factors[chunk.tensor];
    const std::size_t position_words = format::packed_words(chunk.kept, kLocoPositionBits);
    const std::size_t code_words = format::packed_words(chunk.kept, kLocoCodeBits);
    for (std::uint32_t i = lane_in_warp(); i < chunk.kept; i += kWarpSize) {
      const std::uint32_t position =
          format::unpacked(record + LocoRecord::kPositions, position_words, kLocoPositionBits, i);
      const std::uint32_t code = format::unpacked(record + LocoRecord::codes(chunk.kept), code_words, kLocoCodeBits, i);
      if (position < chunk.size()) out[chunk.element(position)] += factor * LocoRecord::value(record, code);
    }
  }
}

/// The energies of every tensor in the payloads of a batch; tensor t has the chunks from first[t] to first[t + 1] - 1.
/// A warp adds up those of a tensor in the order of its chunks.
__global__ void energy_kernel(ChunkTable table, const std::uint64_t* first, std::size_t tensors, Payloads batch,
                              double* energies) {
  for (std::size_t w = warp_in_grid(); w < tensors * batch.count; w += warps_in_grid()) {
    const auto* payload = reinterpret_cast<const std::uint32_t*>(batch.at[w / tensors]);
    const std::size_t t = w % tensors;
    double energy = 0.0;
    for (std::size_t base = first[t]; base < first[t + 1]; base += kWarpSize) {
      double own = 0.0;
      const std::size_t c = base + lane_in_warp();
      if (c < first[t + 1]) {
        const TensorChunk chunk = table.chunk[c];
        const std::uint32_t* record = payload + chunk.word;
        const std::uint32_t* codes = record + LocoRecord::codes(chunk.kept);
        std::uint32_t members[kLocoCodes] = {chunk.kept, 0, 0, 0};
        for (std::uint32_t i = 0; i < format::packed_words(chunk.kept, kLocoCodeBits); ++i) {
          const std::uint32_t low = codes[i] & 0x55555555u;
          const std::uint32_t high = codes[i] >> 1 & 0x55555555u;
          members[1] += bits_set(low & ~high);
          members[2] += bits_set(high & ~low);
          members[3] += bits_set(low & high);
        }
        members[0] -= members[1] + members[2] + members[3];
        own = format::loco_energy(record, members);
      }
      for (unsigned lane = 0; lane < kWarpSize; ++lane) {
        const double next = __shfl_sync(kAllLanes, own, static_cast<int>(lane));
        if (base + lane < first[t + 1]) energy += next;
      }
    }
    if (lane_in_warp() == 0) energies[w] = energy;
  }
}

__global__ void factor_kernel(std::size_t tensors, std::size_t ranks, const double* energies, float* factors) {
  for (std::size_t t = thread_in_grid(); t < tensors; t += threads_in_grid()) {
    const double limit = format::loco_median(energies, tensors, t, ranks);
    for (std::size_t r = 0; r < ranks; ++r)
      factors[r * tensors + t] = format::loco_shrink(energies[r * tensors + t], limit);
  }
}

}  // namespace
}  // namespace cuda

namespace {

class CudaSparseLoco final : public GpuCodec {
 public:
  CudaSparseLoco(const Params& params, const Layout& layout)
      : CudaSparseLoco{
            params, layout,
            TensorChunks{layout, static_cast<std::size_t>(params.integer("k")), 0, format::LocoRecord::words}} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    expects(n == n_, "codec sparseloco: made for another layout");
    chunks_.make();
    first_.make();
    return {.payload_bytes = payload_bytes_};
  }

  /// The first step, from an empty memory.
  void encode(Queue<Space::cuda> queue, ConstFloats gradient, const EncodeContext& /*context*/, Bytes payload,
              Bytes /*scratch*/) const override {
    step(queue, gradient, nullptr, payload);
  }

  /// One step of one rank; `held` is null for an empty memory that is not kept.
  void step(Queue<Space::cuda> queue, ConstFloats gradient, float* held, Bytes payload) const {
    if (n_ == 0) return;
    cuda::launch(queue, "sparseloco encode", cuda::encode_kernel, cuda::blocks_for(chunks_.size(), 1), table(), beta_,
                 sigma_, gradient.data(), held, reinterpret_cast<std::uint32_t*>(payload.data()));
  }

  void decode_add(Queue<Space::cuda> queue, ConstBytes payload, float weight, Floats out,
                  Bytes /*scratch*/) const override {
    expect_length("sparseloco", payload.size(), payload_bytes_);
    add(queue, payload, weight, nullptr, out);
  }

  /// out += weight * decoded, where each tensor is also multiplied by its factor, unless `factors` is null.
  void add(Queue<Space::cuda> queue, ConstBytes payload, float weight, const float* factors, Floats out) const {
    if (n_ == 0) return;
    cuda::launch(queue, "sparseloco add", cuda::add_kernel, cuda::blocks_for(chunks_.size(), cuda::kBlockWarpCount),
                 table(), reinterpret_cast<const std::uint32_t*>(payload.data()), weight, factors, out.data());
  }

  /// For each tensor of each rank the factor that clips its norm to the median over ranks.
  void clip_factors(Queue<Space::cuda> queue, std::span<const ConstBytes> payloads, View<double, Space::cuda> energies,
                    Floats factors) const {
    if (tensors() == 0) return;
    double* next = energies.data();
    cuda::in_batches(payloads, [&](const cuda::Payloads& batch) {
      cuda::launch(queue, "sparseloco norms", cuda::energy_kernel,
                   cuda::blocks_for(tensors() * batch.count, cuda::kBlockWarpCount), table(), first_.get(), tensors(),
                   batch, next);
      next += tensors() * batch.count;
    });
    cuda::launch(queue, "sparseloco clip", cuda::factor_kernel, cuda::blocks_for(tensors(), cuda::kThreads), tensors(),
                 payloads.size(), energies.data(), factors.data());
  }

  [[nodiscard]] std::size_t tensors() const { return first_.size() - 1; }
  [[nodiscard]] std::unique_ptr<Encoder<Space::cuda>> make_encoder(std::size_t n, int /*ranks*/,
                                                                   Queue<Space::cuda> queue) const override {
    return std::make_unique<SparseLocoEncoder<Space::cuda, CudaSparseLoco>>(*this, n, queue);
  }

 private:
  CudaSparseLoco(const Params& params, const Layout& layout, const TensorChunks& chunks)
      : GpuCodec{"sparseloco", params, layout},
        beta_{static_cast<float>(params.real("beta"))},
        sigma_{params.is("bins", "sigma")},
        n_{layout.elements},
        payload_bytes_{4 * chunks.words()},
        chunks_{chunks.chunks()},
        first_{chunks.first_of_tensors(layout.tensors.size())} {}

  [[nodiscard]] cuda::ChunkTable table() const { return {chunks_.get(), chunks_.size()}; }

  float beta_;
  bool sigma_;
  std::size_t n_;
  std::size_t payload_bytes_;
  DeviceTable<TensorChunk> chunks_;
  DeviceTable<std::uint64_t> first_;  ///< chunk of each tensor, and behind the last
};

}  // namespace

extern constinit const GpuFactories sparseloco_gpu{
    .codec = make_method_codec<Space::cuda, CudaSparseLoco>,
    .reducer = make_sparseloco_reducer<Space::cuda, CudaSparseLoco>,
};

}  // namespace gradtool
