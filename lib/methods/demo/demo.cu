// The payloads and results of demo.cpp, bit for bit: a block of threads a chunk, which multiplies by the basis in the
// order of cosine.cpp.
#include <cuda_runtime.h>

#include "kernels/cuda/chunk_select.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/payloads.hpp"
#include "kernels/sums.hpp"
#include "lib/codecs/factories.hpp"
#include "lib/codecs/gpu_codec.hpp"
#include "lib/codecs/per_device.hpp"
#include "lib/codecs/tensor_chunks.hpp"
#include "lib/core/scratch.hpp"
#include "lib/methods/demo/cosine.hpp"
#include "lib/methods/demo/format.hpp"
#include "lib/methods/demo/reducer.hpp"

namespace gradtool {
namespace cuda {
namespace {

constexpr std::uint32_t kSide = TensorChunk::kSide;

/// The chunks, and the bases of their lengths (CosineBases).
struct DemoTable {
  const TensorChunk* chunk = nullptr;
  std::size_t count = 0;
  const float* bases = nullptr;
  const std::uint32_t* place = nullptr;  ///< of the basis of each length

  [[nodiscard]] __device__ const float* basis(std::uint32_t length) const {
    return bases + std::size_t{place[length]} * kSide * kSide;
  }
};

/// The sections of a payload, and what is written beside them where values are signs.
struct DemoOut {
  float* values = nullptr;  ///< null where they are signs
  std::uint16_t* positions = nullptr;
  std::uint32_t* signs = nullptr;  ///< one in each number
  double* sums = nullptr;          ///< of the magnitudes of each chunk
};
struct DemoIn {
  const float* scales = nullptr;  ///< null where values are float32
  const std::byte* values = nullptr;
  const std::uint16_t* positions = nullptr;

  [[nodiscard]] __device__ float value(std::size_t i, std::uint32_t tensor) const {
    if (scales == nullptr) return reinterpret_cast<const float*>(values)[i];
    const auto* words = reinterpret_cast<const std::uint32_t*>(values);
    return (words[i / 32] >> i % 32 & 1u) != 0 ? -scales[tensor] : scales[tensor];
  }
};

/// The sum over i of in[i * stride] basis[i], for the basis of frequency k, as transform_row in cosine.cpp.
__device__ float transformed(const float* in, std::uint32_t stride, std::uint32_t length, std::uint32_t k,
                             const float* basis) {
  float sum = 0.0f;
  for (std::uint32_t i = 0; i < (length + 1) / 2; ++i) {
    const float here = in[i * stride];
    const float other = 2 * i + 1 == length ? 0.0f : in[(length - 1 - i) * stride];
    sum += (k % 2 == 0 ? here + other : here - other) * basis[i];
  }
  return sum;
}

/// A step of a rank. The views of `state` are null for an empty momentum that is not kept.
__global__ void encode_kernel(DemoTable table, float beta, const float* gradient, DemoState<Space::cuda> state,
                              DemoOut out) {
  __shared__ float c[TensorChunk::kMost];
  __shared__ float across[TensorChunk::kMost];
  __shared__ std::uint16_t positions[TensorChunk::kMost];
  __shared__ bool finite;
  for (std::size_t number = blockIdx.x; number < table.count; number += gridDim.x) {
    const TensorChunk chunk = table.chunk[number];
    for (std::uint32_t i = threadIdx.x; i < chunk.size(); i += kThreads) c[i] = gradient[chunk.element(i)];
    __syncthreads();
    for (std::uint32_t i = threadIdx.x; i < chunk.size(); i += kThreads) {
      const std::uint32_t v = i % chunk.columns;
      across[i] = transformed(c + i / chunk.columns * chunk.columns, 1, chunk.columns, v,
                              table.basis(chunk.columns) + v * kSide);
    }
    __syncthreads();
    float* momentum = state.momentum.data() == nullptr ? nullptr : state.momentum.data() + chunk.before;
    for (std::uint32_t i = threadIdx.x; i < chunk.size(); i += kThreads) {
      const std::uint32_t u = i % chunk.rows;
      const float own =
          transformed(across + i / chunk.rows, chunk.columns, chunk.rows, u, table.basis(chunk.rows) + u * kSide);
      c[i] = momentum != nullptr ? format::demo_carry(momentum[i], own, beta) : format::one_nan(own);
      if (momentum != nullptr) momentum[i] = c[i];
    }
    __syncthreads();
    largest_of_chunk(c, chunk.size(), chunk.kept, positions);
    if (threadIdx.x == 0) {  // in the order of positions
      double sum = 0.0;
      for (std::uint32_t i = 0; i < chunk.kept; ++i) sum += fabs(static_cast<double>(c[positions[i]]));
      finite = sum < static_cast<double>(format::float_of(0x7f800000u));
      if (out.values == nullptr) out.sums[number] = sum;
    }
    __syncthreads();
    for (std::uint32_t i = threadIdx.x; i < chunk.kept; i += kThreads) {
      const std::size_t at = chunk.sent + i;
      const float value = c[positions[i]];
      out.positions[at] = positions[i];
      if (out.values != nullptr)
        out.values[at] = value;
      else
        out.signs[at] = __float_as_uint(value) >> 31;
      if (momentum == nullptr) continue;
      state.positions.data()[at] = positions[i];
      state.values.data()[at] = value;
      momentum[positions[i]] = 0.0f;
    }
    if (momentum != nullptr && !finite) {
      for (std::uint32_t i = threadIdx.x; i < chunk.size(); i += kThreads) momentum[i] = 0.0f;
    }
    __syncthreads();  // shared memory is used again
  }
}

/// A block computes the scale of a tensor, which has the chunks from first[t] to first[t + 1] - 1.
__global__ void scale_kernel(DemoTable table, const std::uint64_t* first, std::size_t tensors, const double* sums,
                             float* scales) {
  for (std::size_t t = blockIdx.x; t < tensors; t += gridDim.x) {
    const double sum = block_sum_in_order(sums, first[t], first[t + 1]);
    if (threadIdx.x != 0) continue;
    std::uint64_t count = 0;
    if (first[t] < first[t + 1]) {
      const TensorChunk last = table.chunk[first[t + 1] - 1];
      count = last.sent + last.kept - table.chunk[first[t]].sent;
    }
    scales[t] = format::stored_mean(sum, count);
  }
}

/// A thread packs 32 signs.
__global__ void pack_kernel(const std::uint32_t* signs, std::size_t count, std::uint32_t* words) {
  for (std::size_t w = thread_in_grid(); 32 * w < count; w += threads_in_grid()) {
    std::uint32_t word = 0;
    for (std::uint32_t j = 0; j < 32 && 32 * w + j < count; ++j) word |= signs[32 * w + j] << j;
    words[w] = word;
  }
}

/// sums += the coefficients of the payload. A warp takes a chunk; positions that are none of it are skipped.
__global__ void gather_kernel(DemoTable table, DemoIn in, float* sums, std::uint32_t* senders) {
  for (std::size_t number = warp_in_grid(); number < table.count; number += warps_in_grid()) {
    const TensorChunk chunk = table.chunk[number];
    for (std::uint32_t i = lane_in_warp(); i < chunk.kept; i += kWarpSize) {
      const std::uint32_t position = in.positions[chunk.sent + i];
      if (position >= chunk.size()) continue;
      sums[chunk.before + position] += in.value(chunk.sent + i, chunk.tensor);
      ++senders[chunk.before + position];
    }
  }
}

/// room := the momentum with what was sent of it put back.
__global__ void put_back_kernel(DemoTable table, DemoState<Space::cuda> state, float* room) {
  for (std::size_t number = blockIdx.x; number < table.count; number += gridDim.x) {
    const TensorChunk chunk = table.chunk[number];
    for (std::uint32_t i = threadIdx.x; i < chunk.size(); i += kThreads)
      room[chunk.before + i] = state.momentum.data()[chunk.before + i];
    __syncthreads();
    for (std::size_t i = chunk.sent + threadIdx.x; i < chunk.sent + chunk.kept; i += kThreads)
      room[chunk.before + state.positions.data()[i]] = state.values.data()[i];
  }
}

/// The last steps on the transformed sums.
struct DemoEnd {
  const std::uint32_t* senders = nullptr;  ///< of each coefficient; null: `ranks` for all
  std::uint32_t ranks = 1;
  float weight = 1.0f;
  bool adds = false;  ///< out += weight * result, in place of out := result
  bool sign = false;
};

__global__ void inverse_kernel(DemoTable table, const float* sums, DemoEnd end, float* out) {
  __shared__ float c[TensorChunk::kMost];
  __shared__ float down[TensorChunk::kMost];
  for (std::size_t number = blockIdx.x; number < table.count; number += gridDim.x) {
    const TensorChunk chunk = table.chunk[number];
    for (std::uint32_t i = threadIdx.x; i < chunk.size(); i += kThreads) {
      const std::size_t at = chunk.before + i;
      c[i] = format::demo_mean(sums[at], end.senders != nullptr ? end.senders[at] : end.ranks);
    }
    __syncthreads();
    const float* basis = table.basis(chunk.rows);
    for (std::uint32_t i = threadIdx.x; i < chunk.size(); i += kThreads) {
      const float* column = c + i / chunk.rows * chunk.rows;
      float sum = 0.0f;
      for (std::uint32_t u = 0; u < chunk.rows; ++u) sum += column[u] * basis[u * kSide + i % chunk.rows];
      down[i] = sum;
    }
    __syncthreads();
    basis = table.basis(chunk.columns);
    for (std::uint32_t i = threadIdx.x; i < chunk.size(); i += kThreads) {
      float value = 0.0f;
      for (std::uint32_t v = 0; v < chunk.columns; ++v)
        value += down[v * chunk.rows + i / chunk.columns] * basis[v * kSide + i % chunk.columns];
      if (end.sign) value = format::demo_sign(value);
      float& to = out[chunk.element(i)];
      to = end.adds ? to + end.weight * value : value;
    }
    __syncthreads();  // shared memory is used again
  }
}

}  // namespace
}  // namespace cuda

namespace {

class CudaDemo final : public GpuCodec {
 public:
  CudaDemo(const Params& params, const Layout& layout)
      : CudaDemo{params, layout,
                 TensorChunks{layout, static_cast<std::size_t>(params.integer("k")), 0,
                              [](std::size_t) { return std::size_t{0}; }}} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    expects(n == n_, "codec demo: made for another layout");
    chunks_.make();
    first_.make();
    bases_.make();
    places_.make();
    return {.payload_bytes = sections_.bytes, .scratch_bytes = Workspace{*this, {}}.bytes};
  }

  /// The first step, from an empty momentum.
  void encode(Queue<Space::cuda> queue, ConstFloats gradient, const EncodeContext& /*context*/, Bytes payload,
              Bytes scratch) const override {
    step(queue, gradient, nullptr, payload, scratch);
  }

  /// One step of one rank; `state` is null for an empty momentum that is not kept.
  void step(Queue<Space::cuda> queue, ConstFloats gradient, DemoState<Space::cuda>* state, Bytes payload,
            Bytes scratch) const {
    if (n_ == 0) return;
    const Workspace work{*this, Scratch<Space::cuda>{scratch}};
    const auto at = [&]<class T>(T*, std::size_t offset) { return reinterpret_cast<T*>(payload.data() + offset); };
    const cuda::DemoOut out{.values = options_.signs ? nullptr : at(static_cast<float*>(nullptr), sections_.values),
                            .positions = at(static_cast<std::uint16_t*>(nullptr), sections_.positions),
                            .signs = work.signs.data(),
                            .sums = work.chunk_sums.data()};
    const std::size_t padding = sections_.bytes - sections_.positions - 2 * sent_;
    cuda::fill(queue, payload.part(sections_.bytes - padding, padding), 0);
    cuda::launch(queue, "demo encode", cuda::encode_kernel, cuda::blocks_for(chunks_.size(), 1), table(), options_.beta,
                 gradient.data(), state != nullptr ? *state : DemoState<Space::cuda>{}, out);
    if (!options_.signs) return;
    const std::size_t tensors = first_.size() - 1;
    cuda::launch(queue, "demo scales", cuda::scale_kernel, cuda::blocks_for(tensors, 1), table(), first_.get(), tensors,
                 out.sums, at(static_cast<float*>(nullptr), 0));
    cuda::launch(queue, "demo signs", cuda::pack_kernel, cuda::blocks_for(mark_words(sent_), cuda::kThreads), out.signs,
                 sent_, at(static_cast<std::uint32_t*>(nullptr), sections_.values));
  }

  void decode_add(Queue<Space::cuda> queue, ConstBytes payload, float weight, Floats out,
                  Bytes scratch) const override {
    expect_length("demo", payload.size(), sections_.bytes);
    if (n_ == 0) return;
    const Workspace work{*this, Scratch<Space::cuda>{scratch}};
    gather(queue, {&payload, 1}, work);
    inverse(queue, work.sums.data(), {.weight = weight, .adds = true}, out);
  }

  /// result := the coefficients' mean over ranks, transformed back.
  void combine(Queue<Space::cuda> queue, std::span<const ConstBytes> payloads, Floats result, Bytes scratch) const {
    if (n_ == 0) return;
    const Workspace work{*this, Scratch<Space::cuda>{scratch}};
    gather(queue, payloads, work);
    inverse(queue, work.sums.data(),
            {.senders = options_.senders ? work.senders.data() : nullptr,
             .ranks = static_cast<std::uint32_t>(payloads.size()),
             .sign = options_.sign_of_result},
            result);
  }

  /// out := the momentum as it was before what was sent was taken out; `room` holds as many floats.
  void restore(Queue<Space::cuda> queue, const DemoState<Space::cuda>& state, Floats room, Floats out) const {
    if (n_ == 0) return;
    cuda::launch(queue, "demo momentum", cuda::put_back_kernel, cuda::blocks_for(chunks_.size(), 1), table(), state,
                 room.data());
    inverse(queue, room.data(), {}, out);
  }

  /// Coefficients of a payload.
  [[nodiscard]] std::size_t sent() const { return sent_; }
  [[nodiscard]] std::unique_ptr<Encoder<Space::cuda>> make_encoder(std::size_t n, int /*ranks*/,
                                                                   Queue<Space::cuda> queue) const override {
    return std::make_unique<DemoEncoder<Space::cuda, CudaDemo>>(*this, n, queue);
  }

 private:
  CudaDemo(const Params& params, const Layout& layout, const TensorChunks& chunks)
      : GpuCodec{"demo", params, layout},
        options_{params},
        n_{layout.elements},
        sent_{chunks.sent()},
        sections_{layout.tensors.size(), sent_, options_.signs},
        chunks_{chunks.chunks()},
        first_{chunks.first_of_tensors(layout.tensors.size())},
        places_{CosineBases{chunks}.places()},
        bases_{CosineBases{chunks}.all()} {}

  struct Workspace {
    Workspace(const CudaDemo& codec, Scratch<Space::cuda> pieces)
        : sums{pieces.take<float>(codec.n_)},
          senders{pieces.take<std::uint32_t>(codec.n_)},
          signs{pieces.take<std::uint32_t>(codec.options_.signs ? codec.sent_ : 0)},
          chunk_sums{pieces.take<double>(codec.options_.signs ? codec.chunks_.size() : 0)},
          bytes{pieces.bytes()} {}
    View<float, Space::cuda> sums;             ///< of coefficients over ranks
    View<std::uint32_t, Space::cuda> senders;  ///< of each coefficient
    View<std::uint32_t, Space::cuda> signs;    ///< of each coefficient that is sent
    View<double, Space::cuda> chunk_sums;      ///< of the magnitudes that are sent of each chunk
    std::size_t bytes;
  };

  /// Adds payload after payload, so that sums have the order of ranks.
  void gather(Queue<Space::cuda> queue, std::span<const ConstBytes> payloads, const Workspace& work) const {
    fill_zero(queue, work.sums);
    cuda::fill(queue, as_writable_bytes(work.senders), 0);
    for (const auto& payload : payloads) {
      const cuda::DemoIn in{.scales = options_.signs ? reinterpret_cast<const float*>(payload.data()) : nullptr,
                            .values = payload.data() + sections_.values,
                            .positions = reinterpret_cast<const std::uint16_t*>(payload.data() + sections_.positions)};
      cuda::launch(queue, "demo gather", cuda::gather_kernel, cuda::blocks_for(chunks_.size(), cuda::kBlockWarpCount),
                   table(), in, work.sums.data(), work.senders.data());
    }
  }

  void inverse(Queue<Space::cuda> queue, const float* sums, const cuda::DemoEnd& end, Floats out) const {
    cuda::launch(queue, "demo inverse", cuda::inverse_kernel, cuda::blocks_for(chunks_.size(), 1), table(), sums, end,
                 out.data());
  }

  [[nodiscard]] cuda::DemoTable table() const { return {chunks_.get(), chunks_.size(), bases_.get(), places_.get()}; }

  DemoOptions options_;
  std::size_t n_;
  std::size_t sent_;
  format::DemoSections sections_;
  DeviceTable<TensorChunk> chunks_;
  DeviceTable<std::uint64_t> first_;  ///< chunk of each tensor, and behind the last
  DeviceTable<std::uint32_t> places_;
  DeviceTable<float> bases_;
};

}  // namespace

extern constinit const GpuFactories demo_gpu{
    .codec = make_method_codec<Space::cuda, CudaDemo>,
    .reducer = make_method_reducer<Space::cuda, DemoReducer<Space::cuda, CudaDemo>>,
};

}  // namespace gradtool
