#include <cuda_runtime.h>

#include "kernels/cuda/block_ops.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/select.hpp"
#include "kernels/sparse.hpp"
#include "lib/codecs/gpu_codec.hpp"
#include "lib/codecs/params.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/core/scratch.hpp"
#include "lib/methods/strom/format.hpp"

/// strom on the GPU. It writes the bytes that strom.cpp writes.
namespace gradtool {
namespace cuda {
namespace {

constexpr unsigned kLoads = 4;  // of 16 bytes, which a thread issues before it needs the first

/// form=dense. A thread makes bytes of four codes, so that a warp reads and writes without gaps.
__global__ void encode_kernel(const float* x, std::size_t n, bool aligned, format::Strom rule, std::uint8_t* codes) {
  const std::size_t bytes = format::Strom::dense_bytes(n);
  for (std::size_t first = std::size_t{blockIdx.x} * (kLoads * kThreads) + threadIdx.x; first < bytes;
       first += std::size_t{gridDim.x} * (kLoads * kThreads)) {
    uint4 loaded[kLoads];
#pragma unroll
    for (unsigned j = 0; j < kLoads; ++j) loaded[j] = four_patterns(x, first + j * kThreads, n, aligned);
#pragma unroll
    for (unsigned j = 0; j < kLoads; ++j) {
      const auto code = [&](std::uint32_t pattern) { return rule.code(__uint_as_float(pattern)); };
      const std::uint32_t all =
          code(loaded[j].x) | code(loaded[j].y) << 2 | code(loaded[j].z) << 4 | code(loaded[j].w) << 6;
      if (first + j * kThreads < bytes) codes[first + j * kThreads] = static_cast<std::uint8_t>(all);
    }
  }
}

__global__ void decode_kernel(const std::uint32_t* words, std::size_t n, bool aligned, float tau, float* out) {
  for (std::size_t i = thread_in_grid(); 4 * i < n; i += threads_in_grid()) {
    const std::uint32_t word = words[i / 4];
    if (word == 0) continue;  // as the CPU does: adding 0 would make -0 a 0
    const std::uint32_t codes = word >> 8 * (i % 4);
    const auto value = [&](std::uint32_t j) { return format::Strom::value_of(codes >> 2 * j & 3u, tau); };
    if (aligned && 4 * i + 4 <= n) {
      float4 sum = reinterpret_cast<const float4*>(out)[i];
      sum.x += value(0);
      sum.y += value(1);
      sum.z += value(2);
      sum.w += value(3);
      reinterpret_cast<float4*>(out)[i] = sum;
    } else {
      for (std::uint32_t j = 0; j < 4 && 4 * i + j < n; ++j) out[4 * i + j] += value(j);
    }
  }
}

/// Sets *not_finite to 1 where one of *count values is not finite.
__global__ void check_kernel(const float* values, const std::uint32_t* count, std::uint32_t* not_finite) {
  const std::size_t k = *count;
  bool found = false;
  for (std::size_t i = thread_in_grid(); i < k; i += threads_in_grid())
    found = found || !format::Strom::finite(values[i]);
  if (found) atomicOr(not_finite, 1u);
}

}  // namespace
}  // namespace cuda

namespace {

format::Strom rule_of(const Params& params) {
  return {static_cast<float>(params.real("tau"))};
}

/// form=dense, the 2-bit compression of MXNet.
class CudaDenseStrom final : public GpuCodec {
 public:
  explicit CudaDenseStrom(const Params& params) : GpuCodec{"strom", params}, rule_{rule_of(params)} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    return {.payload_bytes = format::Strom::dense_bytes(n)};
  }
  void encode(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, const EncodeContext& /*context*/,
              View<std::byte, Space::cuda> payload, View<std::byte, Space::cuda> /*scratch*/) const override {
    if (gradient.empty()) return;
    cuda::launch(queue, "strom encode", cuda::encode_kernel,
                 cuda::blocks_for(gradient.size(), 4 * cuda::kLoads * cuda::kThreads), gradient.data(), gradient.size(),
                 cuda::aligned_to(gradient.data(), 16), rule_, reinterpret_cast<std::uint8_t*>(payload.data()));
  }
  void decode_add(Queue<Space::cuda> queue, View<const std::byte, Space::cuda> payload, float weight,
                  View<float, Space::cuda> out, View<std::byte, Space::cuda> /*scratch*/) const override {
    expect_length("strom", payload.size(), format::Strom::dense_bytes(out.size()));
    if (out.empty()) return;
    cuda::launch(queue, "strom decode", cuda::decode_kernel, cuda::blocks_for(out.size(), 16 * cuda::kThreads),
                 reinterpret_cast<const std::uint32_t*>(payload.data()), out.size(), cuda::aligned_to(out.data(), 16),
                 weight * rule_.tau, out.data());
  }

 private:
  format::Strom rule_;
};

/// form=sparse: positions and signs of the elements that are sent.
class CudaSparseStrom final : public GpuCodec {
 public:
  explicit CudaSparseStrom(const Params& params)
      : GpuCodec{"strom", params},
        rule_{rule_of(params)},
        as_words_{params.is("index", "words")},
        coding_{as_words_ ? "u32" : params.word("index")} {}

  [[nodiscard]] Footprint plan(std::size_t n) const override {
    expect_valid(n <= std::size_t{1} << 31,
                 "codec strom: indices have 31 bits, a unit of more than 2^31 elements needs form=dense");
    return {.payload_bytes = payload_bound(n), .scratch_bytes = planned<Workspace>(*this, n), .exact = false};
  }

  void encode(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, const EncodeContext& /*context*/,
              View<std::byte, Space::cuda> payload, View<std::byte, Space::cuda> scratch) const override {
    const std::size_t n = gradient.size();
    if (n == 0) return cuda::write_empty_sparse(queue, shape(0), payload.data());
    const Workspace work{*this, n, Scratch<Space::cuda>{scratch}};
    const cuda::Select select{queue, gradient, work.select};
    select.at_least(format::bits_of(rule_.tau) + 1);  // the patterns strictly above tau, with those of NaN
    select.write(work.positions.data(), work.values.data());
    cuda::fill(queue, as_writable_bytes(work.not_finite), 0);
    cuda::launch(queue, "strom check", cuda::check_kernel, cuda::blocks_for(n, 4 * cuda::kThreads, 1024),
                 work.values.data(), select.count(), work.not_finite.data());
    cuda::write_sparse(queue, shape(n), work.positions.data(), select.count(), payload.data(), work.sparse, 0,
                       {work.values.data(), work.not_finite.data()});
  }

  void decode_add(Queue<Space::cuda> queue, View<const std::byte, Space::cuda> payload, float weight,
                  View<float, Space::cuda> out, View<std::byte, Space::cuda> scratch) const override {
    const std::size_t n = out.size();
    expect_room("strom", payload.size(), sizeof(SparseHeader), payload_bound(n));
    const Workspace work{*this, n, Scratch<Space::cuda>{scratch}};
    cuda::add_sparse(queue, shape(n), payload, weight * rule_.tau, out.data(), work.sparse);
  }

 private:
  struct Workspace {
    Workspace(const CudaSparseStrom& codec, std::size_t n, Scratch<Space::cuda> scratch)
        : not_finite{scratch.take<std::uint32_t>(1)},
          positions{scratch.take<std::uint32_t>(n)},
          values{scratch.take<float>(n)},
          select{scratch.take_bytes(cuda::Select::scratch_bytes(n))},
          sparse{scratch.take_bytes(cuda::sparse_scratch_bytes(codec.shape(n)))} {}
    View<std::uint32_t, Space::cuda> not_finite;  ///< one number
    View<std::uint32_t, Space::cuda> positions;   ///< of the elements that are sent, ascending
    View<float, Space::cuda> values;
    View<std::byte, Space::cuda> select, sparse;
  };
  [[nodiscard]] cuda::SparseShape shape(std::size_t n) const {
    cuda::SparseShape shape = sparse_shape(coding_, n, n, 1);
    shape.words = as_words_             ? cuda::SparseShape::Words::always
                  : coding_.automatic() ? cuda::SparseShape::Words::smallest
                                        : cuda::SparseShape::Words::never;
    return shape;
  }
  [[nodiscard]] std::size_t payload_bound(std::size_t n) const {
    return sizeof(SparseHeader) + coding_.bound(n, n) + (as_words_ ? 0 : 4 * format::words_of_bits(n));
  }

  format::Strom rule_;
  bool as_words_;
  IndexCoding coding_;
};

std::unique_ptr<Codec<Space::cuda>> make_cuda_strom(const Params& params, const Layout& /*layout*/) {
  if (params.is("form", "dense")) return std::make_unique<CudaDenseStrom>(params);
  return std::make_unique<CudaSparseStrom>(params);
}

}  // namespace

extern constinit const GpuFactories strom_gpu{.codec = make_cuda_strom};

}  // namespace gradtool
