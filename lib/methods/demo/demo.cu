// The payloads and results of demo.cpp, bit for bit: a block of threads a chunk, which multiplies by the basis in the
// order of cosine.cpp.
#include <cuda_runtime.h>

#include "kernels/cuda/block_sums.hpp"
#include "kernels/cuda/chunk_select.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/payloads.hpp"
#include "kernels/sums.hpp"
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
constexpr std::uint32_t kHalf = CosineBases::kHalf;
constexpr std::uint32_t kWarpRows = kSide / kBlockWarpCount;  ///< rows of a chunk that a warp transforms

/// The chunks, and the bases of their lengths (CosineBases).
struct DemoTable {
  const TensorChunk* chunk = nullptr;
  std::size_t count = 0;
  const float* bases = nullptr;
  const float* folded_bases = nullptr;
  const std::uint32_t* place = nullptr;  ///< of the basis of each length

  [[nodiscard]] __device__ const float* basis(std::uint32_t length) const {
    return bases + std::size_t{place[length]} * kSide * kSide;
  }
  [[nodiscard]] __device__ const float* folded(std::uint32_t length) const {
    return folded_bases + std::size_t{place[length]} * kHalf * kSide;
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

/// Room for up to 64 rows of up to 64 numbers that are transformed. A row has its elements from the beginning in places
/// 0 to 31 and those that lie alike from the end in places 32 to 63, then their sums and their differences. Padding
/// lets the lanes that write a column use 8 banks, and keeps rows at multiples of 16 bytes.
struct TransformRoom {
  static constexpr std::uint32_t kPitch = kSide + 4;

  alignas(16) float at[kSide * kPitch];

  [[nodiscard]] static __device__ std::uint32_t place(std::uint32_t i, std::uint32_t length) {
    return 2 * i < length ? i : kHalf + length - 1 - i;
  }
  /// Writes the sums and differences of rows, whose element i is get(row, i), by the block; zeros behind them.
  template <class Get>
  __device__ void fold(std::uint32_t rows, std::uint32_t length, const Get& get) {
    constexpr std::uint32_t kEach = kSide / kBlockWarpCount;
    const std::uint32_t i = lane_in_warp();
    const std::uint32_t first = threadIdx.x / kWarpSize;
    float here[kEach], other[kEach];  // all loads before the first store
#pragma unroll
    for (std::uint32_t k = 0; k < kEach; ++k) {
      const std::uint32_t row = first + k * kBlockWarpCount;
      here[k] = row < rows && 2 * i < length ? get(row, i) : 0.0f;
      other[k] = row < rows && 2 * i + 1 < length ? get(row, length - 1 - i) : 0.0f;
    }
#pragma unroll
    for (std::uint32_t k = 0; k < kEach; ++k) {
      float* row = at + (first + k * kBlockWarpCount) * kPitch;
      row[i] = here[k] + other[k];
      row[kHalf + i] = here[k] - other[k];
    }
  }
  /// Lane q gets the coefficients of frequencies 2q and 2q + 1 of kWarpRows rows, as transform_row in cosine.cpp. Up to
  /// three zeros are added behind the last sum, which change none.
  __device__ void transform(std::uint32_t first_row, std::uint32_t length, const float* folded_basis,
                            float (&even)[kWarpRows], float (&odd)[kWarpRows]) const {
    const float* basis = folded_basis + lane_in_warp();
    for (std::uint32_t r = 0; r < kWarpRows; ++r) even[r] = odd[r] = 0.0f;
    for (std::uint32_t i = 0; 2 * i < length; i += 4) {
      float of_even[4], of_odd[4];
      for (std::uint32_t k = 0; k < 4; ++k) {
        of_even[k] = basis[(i + k) * kSide];
        of_odd[k] = basis[(i + k) * kSide + kHalf];
      }
#pragma unroll
      for (std::uint32_t r = 0; r < kWarpRows; ++r) {
        const float* row = at + (first_row + r) * kPitch + i;
        const auto sums = *reinterpret_cast<const Four<float>*>(row);
        const auto differences = *reinterpret_cast<const Four<float>*>(row + kHalf);
        for (std::uint32_t k = 0; k < 4; ++k) {
          even[r] += sums.value[k] * of_even[k];
          odd[r] += differences.value[k] * of_odd[k];
        }
      }
    }
  }
};

/// c := the coefficients of a chunk, where c is the room itself. A block calls it.
__device__ void forward(const DemoTable& table, const TensorChunk& chunk, const float* gradient, TransformRoom& room) {
  float even[kWarpRows], odd[kWarpRows];
  const std::uint32_t lane = lane_in_warp();
  const std::uint32_t first = threadIdx.x / kWarpSize * kWarpRows;
  const float* from = gradient + chunk.first;
  room.fold(chunk.rows, chunk.columns,
            [&](std::uint32_t row, std::uint32_t i) { return from[row * chunk.stride + i]; });
  __syncthreads();
  room.transform(first, first < chunk.rows ? chunk.columns : 0, table.folded(chunk.columns), even, odd);
  __syncthreads();
  // The rows are now horizontal frequencies, the even ones first.
#pragma unroll
  for (std::uint32_t r = 0; r < kWarpRows; ++r) {
    if (first + r >= chunk.rows) continue;
    const std::uint32_t place = TransformRoom::place(first + r, chunk.rows);
    room.at[lane * TransformRoom::kPitch + place] = even[r];
    room.at[(kHalf + lane) * TransformRoom::kPitch + place] = odd[r];
  }
  __syncthreads();
  const auto frequency = [](std::uint32_t row) { return row < kHalf ? 2 * row : 2 * (row - kHalf) + 1; };
  room.fold(kSide, chunk.rows, [&](std::uint32_t row, std::uint32_t i) {
    return room.at[row * TransformRoom::kPitch + TransformRoom::place(i, chunk.rows)];
  });
  __syncthreads();
  room.transform(first, frequency(first) < chunk.columns ? chunk.rows : 0, table.folded(chunk.rows), even, odd);
  __syncthreads();
#pragma unroll
  for (std::uint32_t r = 0; r < kWarpRows; ++r) {
    const std::uint32_t v = frequency(first + r);
    if (v >= chunk.columns) continue;
    if (2 * lane < chunk.rows) room.at[v * chunk.rows + 2 * lane] = even[r];
    if (2 * lane + 1 < chunk.rows) room.at[v * chunk.rows + 2 * lane + 1] = odd[r];
  }
  __syncthreads();
}

/// A step of a rank. The views of `state` are null for an empty momentum that is not kept.
__global__ void __launch_bounds__(kThreads, 4)
    encode_kernel(DemoTable table, float beta, const float* gradient, DemoState<Space::cuda> state, DemoOut out) {
  __shared__ TransformRoom room;
  __shared__ std::uint16_t positions[TensorChunk::kMost];
  float* c = room.at;
  for (std::size_t number = blockIdx.x; number < table.count; number += gridDim.x) {
    const TensorChunk chunk = table.chunk[number];
    forward(table, chunk, gradient, room);
    float* momentum = state.momentum.data() == nullptr ? nullptr : state.momentum.data() + chunk.before;
    constexpr std::uint32_t kEach = TensorChunk::kMost / kThreads;
    float held[kEach];  // all loads before the first store
#pragma unroll
    for (std::uint32_t k = 0; k < kEach; ++k) {
      const std::uint32_t i = k * kThreads + threadIdx.x;
      held[k] = momentum != nullptr && i < chunk.size() ? momentum[i] : 0.0f;
    }
#pragma unroll
    for (std::uint32_t k = 0; k < kEach; ++k) {
      const std::uint32_t i = k * kThreads + threadIdx.x;
      if (i >= chunk.size()) continue;
      c[i] = momentum != nullptr ? format::demo_carry(held[k], c[i], beta) : format::one_nan(c[i]);
      if (momentum != nullptr) momentum[i] = c[i];
    }
    __syncthreads();
    largest_of_chunk(c, chunk.size(), chunk.kept, positions);
    bool wrong = false;
    for (std::uint32_t i = threadIdx.x; i < chunk.kept; i += kThreads) {
      const std::size_t at = chunk.sent + i;
      const float value = c[positions[i]];
      wrong = wrong || (__float_as_uint(value) & kMagnitude) >= 0x7f800000u;
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
    if (threadIdx.x == 0 && out.values == nullptr) {  // in the order of positions
      double sum = 0.0;
      for (std::uint32_t i = 0; i < chunk.kept; ++i) sum += fabs(static_cast<double>(c[positions[i]]));
      out.sums[number] = sum;
    }
    // Shared memory is used again behind this barrier.
    if (__syncthreads_count(wrong ? 1 : 0) != 0 && momentum != nullptr) {
      for (std::uint32_t i = threadIdx.x; i < chunk.size(); i += kThreads) momentum[i] = 0.0f;
    }
  }
}

/// A block computes the scale of a tensor, which has the chunks from first[t] to first[t + 1] - 1.
__global__ void scale_kernel(DemoTable table, const std::uint64_t* first, std::size_t tensors, const double* sums,
                             float* scales) {
  __shared__ ChunkSumsShared<1> shared;
  for (std::size_t t = blockIdx.x; t < tensors; t += gridDim.x) {
    double sum[1];
    sums_of_chunks<1>(sums, 0, first[t], first[t + 1], shared, sum);
    if (threadIdx.x != 0) continue;
    std::uint64_t count = 0;
    if (first[t] < first[t + 1]) {
      const TensorChunk last = table.chunk[first[t + 1] - 1];
      count = last.sent + last.kept - table.chunk[first[t]].sent;
    }
    scales[t] = format::stored_mean(sum[0], count);
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

/// sums += the coefficients of the payload; `senders` is null where nobody counts them. A warp takes a chunk; positions
/// that are none of it are skipped.
__global__ void gather_kernel(DemoTable table, DemoIn in, float* sums, std::uint32_t* senders) {
  for (std::size_t number = warp_in_grid(); number < table.count; number += warps_in_grid()) {
    const TensorChunk chunk = table.chunk[number];
    for (std::uint32_t i = lane_in_warp(); i < chunk.kept; i += kWarpSize) {
      const std::uint32_t position = in.positions[chunk.sent + i];
      if (position >= chunk.size()) continue;
      sums[chunk.before + position] += in.value(chunk.sent + i, chunk.tensor);
      if (senders != nullptr) ++senders[chunk.before + position];
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

/// A column of which nothing was sent takes no time, nor do other zeros: sums stay the same without them. A warp
/// transforms every eighth column, then kWarpRows rows.
__global__ void inverse_kernel(DemoTable table, const float* sums, DemoEnd end, float* out) {
  constexpr std::uint32_t kColumns = kSide / kBlockWarpCount;
  alignas(16) __shared__ float down[TensorChunk::kMost];  // column v from 64 v on
  __shared__ bool used[kSide];
  const std::uint32_t lane = lane_in_warp();
  const std::uint32_t warp = threadIdx.x / kWarpSize;
  for (std::size_t number = blockIdx.x; number < table.count; number += gridDim.x) {
    const TensorChunk chunk = table.chunk[number];
    const float* from = sums + chunk.before;
#pragma unroll
    for (std::uint32_t k = 0; k < kColumns; ++k) {  // a lane reads no more than it writes, until all are transformed
      for (std::uint32_t u = lane; u < kSide; u += kWarpSize) {
        const std::uint32_t v = k * kBlockWarpCount + warp;
        down[v * kSide + u] = v < chunk.columns && u < chunk.rows ? from[v * chunk.rows + u] : 0.0f;
      }
    }
    const float* basis = table.basis(chunk.rows) + lane;
#pragma unroll 1
    for (std::uint32_t v = warp; v < chunk.columns; v += kBlockWarpCount) {
      float* column = down + v * kSide + lane;
      float low = 0.0f, high = 0.0f;
      std::uint32_t any = 0;
      for (std::uint32_t half = 0; half < kSide; half += kHalf) {
        const float own = column[half];
        std::uint32_t rest = __ballot_sync(kAllLanes, own != 0.0f);
        for (any |= rest; rest != 0; rest &= rest - 1) {
          const auto bit = static_cast<std::uint32_t>(__ffs(static_cast<int>(rest)) - 1);
          const std::uint32_t u = half + bit;
          const std::uint32_t senders =
              end.senders != nullptr ? end.senders[chunk.before + v * chunk.rows + u] : end.ranks;
          const float mean = format::demo_mean(__shfl_sync(kAllLanes, own, bit), senders);
          low += mean * basis[u * kSide];
          high += mean * basis[u * kSide + kHalf];
        }
      }
      column[0] = low;
      column[kHalf] = high;
      if (lane == 0) used[v] = any != 0;
    }
    __syncthreads();
    basis = table.basis(chunk.columns) + lane;
    const std::uint32_t first = warp * kWarpRows;
    float values[kWarpRows][2] = {};
    float held[kWarpRows][2];
    for (std::uint32_t v = 0; first < chunk.rows && v < chunk.columns; ++v) {
      if (!used[v]) continue;
      const float left = basis[v * kSide];
      const float right = basis[v * kSide + kHalf];
#pragma unroll
      for (std::uint32_t r = 0; r < kWarpRows; r += 4) {
        const auto four = *reinterpret_cast<const Four<float>*>(down + v * kSide + first + r);
        for (std::uint32_t k = 0; k < 4; ++k) {
          values[r + k][0] += four.value[k] * left;
          values[r + k][1] += four.value[k] * right;
        }
      }
    }
    const auto each_element = [&](const auto& body) {
#pragma unroll
      for (std::uint32_t r = 0; r < kWarpRows; ++r) {
        for (std::uint32_t half = 0; half < 2; ++half) {
          const std::uint32_t column = half * kHalf + lane;
          body(values[r][half], held[r][half], first + r < chunk.rows && column < chunk.columns,
               out + chunk.first + (first + r) * chunk.stride + column);
        }
      }
    };
    each_element([&](float, float& before, bool inside, const float* to) {  // all loads before the first store
      before = end.adds && inside ? *to : 0.0f;
    });
    each_element([&](float value, float before, bool inside, float* to) {
      if (end.sign) value = format::demo_sign(value);
      if (inside) *to = end.adds ? before + end.weight * value : value;
    });
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
    folded_.make();
    places_.make();
    return {.payload_bytes = sections_.bytes, .scratch_bytes = planned<Workspace>(*this)};
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
    gather(queue, {&payload, 1}, work.sums, {});
    inverse(queue, work.sums.data(), {.weight = weight, .adds = true}, out);
  }

  /// result := the coefficients' mean over ranks, transformed back.
  void combine(Queue<Space::cuda> queue, std::span<const ConstBytes> payloads, Floats result, Bytes scratch) const {
    if (n_ == 0) return;
    const Workspace work{*this, Scratch<Space::cuda>{scratch}};
    const auto senders = options_.senders ? work.senders : View<std::uint32_t, Space::cuda>{};
    gather(queue, payloads, work.sums, senders);
    inverse(queue, work.sums.data(),
            {.senders = senders.data(),
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
        bases_{CosineBases{chunks}.all()},
        folded_{CosineBases{chunks}.all_folded()} {}

  struct Workspace {
    Workspace(const CudaDemo& codec, Scratch<Space::cuda> pieces)
        : sums{pieces.take<float>(codec.n_)},
          senders{pieces.take<std::uint32_t>(codec.options_.senders ? codec.n_ : 0)},
          signs{pieces.take<std::uint32_t>(codec.options_.signs ? codec.sent_ : 0)},
          chunk_sums{pieces.take<double>(codec.options_.signs ? codec.chunks_.size() : 0)} {}
    View<float, Space::cuda> sums;             ///< of coefficients over ranks
    View<std::uint32_t, Space::cuda> senders;  ///< of each coefficient, where the mean is over them
    View<std::uint32_t, Space::cuda> signs;    ///< of each coefficient that is sent
    View<double, Space::cuda> chunk_sums;      ///< of the magnitudes that are sent of each chunk
  };

  /// Adds payload after payload, so that sums have the order of ranks.
  void gather(Queue<Space::cuda> queue, std::span<const ConstBytes> payloads, Floats sums,
              View<std::uint32_t, Space::cuda> senders) const {
    fill_zero(queue, sums);
    if (!senders.empty()) cuda::fill(queue, as_writable_bytes(senders), 0);
    for (const auto& payload : payloads) {
      const cuda::DemoIn in{.scales = options_.signs ? reinterpret_cast<const float*>(payload.data()) : nullptr,
                            .values = payload.data() + sections_.values,
                            .positions = reinterpret_cast<const std::uint16_t*>(payload.data() + sections_.positions)};
      cuda::launch(queue, "demo gather", cuda::gather_kernel, cuda::blocks_for(chunks_.size(), cuda::kBlockWarpCount),
                   table(), in, sums.data(), senders.data());
    }
  }

  void inverse(Queue<Space::cuda> queue, const float* sums, const cuda::DemoEnd& end, Floats out) const {
    cuda::launch(queue, "demo inverse", cuda::inverse_kernel, cuda::blocks_for(chunks_.size(), 1), table(), sums, end,
                 out.data());
  }

  [[nodiscard]] cuda::DemoTable table() const {
    return {chunks_.get(), chunks_.size(), bases_.get(), folded_.get(), places_.get()};
  }

  DemoOptions options_;
  std::size_t n_;
  std::size_t sent_;
  format::DemoSections sections_;
  DeviceTable<TensorChunk> chunks_;
  DeviceTable<std::uint64_t> first_;  ///< chunk of each tensor, and behind the last
  DeviceTable<std::uint32_t> places_;
  DeviceTable<float> bases_;
  DeviceTable<float> folded_;
};

}  // namespace

extern constinit const GpuFactories demo_gpu{
    .codec = make_method_codec<Space::cuda, CudaDemo>,
    .reducer = make_method_reducer<Space::cuda, DemoReducer<Space::cuda, CudaDemo>>,
};

}  // namespace gradtool
