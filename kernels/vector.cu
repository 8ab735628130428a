#include "kernels/vector.hpp"

#include <cuda_runtime.h>
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/runtime.hpp"
#include "kernels/cuda/unit_launch.hpp"
#include "kernels/cuda/warp.hpp"
#include "kernels/float_bits.hpp"

namespace gradtool::cuda {
namespace {

/// The sums are not kept in the cache: `in` may be there, and what is worked on next to it.
__global__ void add_scaled_kernel(const float* in, float factor, float* out, std::size_t count, std::size_t fours) {
  const std::size_t thread = thread_in_grid();
  const std::size_t stride = threads_in_grid();
  const auto* addends = reinterpret_cast<const float4*>(in);
  auto* sums = reinterpret_cast<float4*>(out);
  for (std::size_t i = thread; i < fours; i += stride) {
    const float4 addend = addends[i];
    float4 sum = __ldcs(sums + i);
    sum.x += factor * addend.x;
    sum.y += factor * addend.y;
    sum.z += factor * addend.z;
    sum.w += factor * addend.w;
    __stcs(sums + i, sum);
  }
  for (std::size_t i = 4 * fours + thread; i < count; i += stride) out[i] += factor * in[i];
}

__global__ void scatter_kernel(const std::uint32_t* positions, std::size_t count, const float* values, float* to) {
  for (std::size_t i = thread_in_grid(); i < count; i += threads_in_grid()) to[positions[i]] = values[i];
}

__global__ void zero_kernel(const std::uint32_t* positions, const std::uint32_t* count, std::size_t most, float* x,
                            float* also) {
  const std::size_t listed = count == nullptr ? most : *count;
  for (std::size_t i = thread_in_grid(); i < listed; i += threads_in_grid()) {
    x[positions[i]] = 0.0f;
    if (also != nullptr) also[positions[i]] = 0.0f;
  }
}

struct Subtract {
  [[nodiscard]] static std::size_t blocks(std::size_t n) { return blocks_for(n, 4 * kThreads); }
  __device__ void run(const Unit& unit, std::uint32_t /*index*/, const Place& place) const {
    const auto* from = static_cast<const float*>(unit.from);
    auto* to = static_cast<float*>(unit.to);
    const std::size_t fours = aligned_to(from, 16) && aligned_to(to, 16) ? unit.n / 4 : 0;
    for (std::size_t i = place.thread(); i < fours; i += place.threads()) {
      const Four<float> less = reinterpret_cast<const Four<float>*>(from)[i];
      Four<float> four = reinterpret_cast<Four<float>*>(to)[i];
#pragma unroll
      for (int k = 0; k < 4; ++k) four.value[k] -= less.value[k];
      reinterpret_cast<Four<float>*>(to)[i] = four;
    }
    for (std::size_t i = 4 * fours + place.thread(); i < unit.n; i += place.threads()) to[i] -= from[i];
  }
};

}  // namespace

void subtract(Queue<Space::cuda> queue, std::span<const Unit> units) {
  if (!units.empty()) launch_units(queue, "subtract", Subtract{}, units);
}

void add_scaled(Queue<Space::cuda> queue, View<const float, Space::cuda> in, float factor,
                View<float, Space::cuda> out) {
  expects(in.size() == out.size(), "a scaled sum needs two views of the same size");
  if (out.empty()) return;
  const std::size_t fours = aligned_to(in.data(), 16) && aligned_to(out.data(), 16) ? out.size() / 4 : 0;
  launch(queue, "add_scaled", add_scaled_kernel, blocks_for(out.size(), 4 * kThreads), in.data(), factor, out.data(),
         out.size(), fours);
}

void scatter_at(Queue<Space::cuda> queue, View<const std::uint32_t, Space::cuda> positions, const float* values,
                float* to) {
  if (positions.empty()) return;
  launch(queue, "scatter", scatter_kernel, blocks_for(positions.size(), kThreads), positions.data(), positions.size(),
         values, to);
}

void zero_at(Queue<Space::cuda> queue, const std::uint32_t* positions, const std::uint32_t* count, std::size_t most,
             float* x, float* also) {
  if (most == 0) return;
  launch(queue, "zero", zero_kernel, blocks_for(most, kThreads), positions, count, most, x, also);
}

namespace {

template <Dtype D>
struct Element {
  using Type = std::uint16_t;
};
template <>
struct Element<Dtype::f32> {
  using Type = float;
};

template <Dtype D>
__device__ typename Element<D>::Type add(typename Element<D>::Type a, typename Element<D>::Type b) {
  if constexpr (D == Dtype::f32) {
    return format::one_nan(a + b);
  } else if constexpr (D == Dtype::f16) {
    return format::f16_from_f32(format::f32_from_f16(a) + format::f32_from_f16(b));
  } else {
    return format::bf16_from_f32(format::f32_from_bf16(a) + format::f32_from_bf16(b));
  }
}

/// 16 bytes of elements, moved by one load or store.
template <Dtype D>
struct alignas(16) Pack {
  typename Element<D>::Type value[16 / sizeof(typename Element<D>::Type)];
};

/// `head` elements up to the first 16-byte border, then `packs` packs, then `tail` elements.
template <Dtype D>
__global__ void sum_packs(typename Element<D>::Type* sum, const typename Element<D>::Type* addend, std::size_t head,
                          std::size_t packs, std::size_t tail) {
  constexpr std::size_t kPack = sizeof(Pack<D>) / sizeof(typename Element<D>::Type);
  const std::size_t thread = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const std::size_t stride = std::size_t{gridDim.x} * blockDim.x;
  auto* sums = reinterpret_cast<Pack<D>*>(sum + head);
  const auto* addends = reinterpret_cast<const Pack<D>*>(addend + head);
  for (std::size_t i = thread; i < packs; i += stride) {
    Pack<D> a = sums[i];
    const Pack<D> b = addends[i];
#pragma unroll
    for (std::size_t k = 0; k < kPack; ++k) a.value[k] = add<D>(a.value[k], b.value[k]);
    sums[i] = a;
  }
  if (thread < head) sum[thread] = add<D>(sum[thread], addend[thread]);
  const std::size_t last = head + packs * kPack + thread;
  if (thread < tail) sum[last] = add<D>(sum[last], addend[last]);
}

/// For pointers that never reach a 16-byte border together.
template <Dtype D>
__global__ void sum_singly(typename Element<D>::Type* sum, const typename Element<D>::Type* addend, std::size_t count) {
  const std::size_t stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    sum[i] = add<D>(sum[i], addend[i]);
  }
}

template <Dtype D>
void sum_elements(Queue<Space::cuda> queue, std::byte* sum_bytes, const std::byte* addend_bytes, std::size_t bytes) {
  using T = typename Element<D>::Type;
  const auto sum_address = reinterpret_cast<std::uintptr_t>(sum_bytes);
  const auto addend_address = reinterpret_cast<std::uintptr_t>(addend_bytes);
  expects(sum_address % sizeof(T) == 0 && addend_address % sizeof(T) == 0 && bytes % sizeof(T) == 0,
          "a sum needs views of whole elements, aligned to the element");
  auto* sum = reinterpret_cast<T*>(sum_bytes);
  const auto* addend = reinterpret_cast<const T*>(addend_bytes);
  const std::size_t count = bytes / sizeof(T);
  if (sum_address % sizeof(Pack<D>) == addend_address % sizeof(Pack<D>)) {
    const std::size_t to_border = (sizeof(Pack<D>) - sum_address % sizeof(Pack<D>)) % sizeof(Pack<D>) / sizeof(T);
    const std::size_t head = std::min(count, to_border);
    const std::size_t packs = (count - head) * sizeof(T) / sizeof(Pack<D>);
    const std::size_t tail = count - head - packs * (sizeof(Pack<D>) / sizeof(T));
    launch(queue, "sum_into", sum_packs<D>, blocks_for(packs, kThreads), sum, addend, head, packs, tail);
  } else {
    launch(queue, "sum_into", sum_singly<D>, blocks_for(count, kThreads), sum, addend, count);
  }
}

}  // namespace

void sum_into(Queue<Space::cuda> queue, View<std::byte, Space::cuda> sum, View<const std::byte, Space::cuda> addend,
              Dtype dtype) {
  expects(sum.size() == addend.size(), "a sum needs two views of the same size");
  if (sum.empty()) return;
  switch (dtype) {
    case Dtype::f32:
      return sum_elements<Dtype::f32>(queue, sum.data(), addend.data(), sum.size());
    case Dtype::f16:
      return sum_elements<Dtype::f16>(queue, sum.data(), addend.data(), sum.size());
    case Dtype::bf16:
      return sum_elements<Dtype::bf16>(queue, sum.data(), addend.data(), sum.size());
  }
}

}  // namespace gradtool::cuda

namespace gradtool {
namespace {

using cuda::aligned_to;
using cuda::blocks_for;
using cuda::kThreads;
using cuda::launch;

/// The first 4 * fours elements four at a time, the rest one by one.
__global__ void scale_kernel(float* x, float factor, std::size_t count, std::size_t fours) {
  const std::size_t thread = cuda::thread_in_grid();
  const std::size_t stride = cuda::threads_in_grid();
  auto* quads = reinterpret_cast<cuda::Four<float>*>(x);
  for (std::size_t i = thread; i < fours; i += stride) {
    cuda::Four<float> four = quads[i];
#pragma unroll
    for (float& value : four.value) value *= factor;
    quads[i] = four;
  }
  for (std::size_t i = 4 * fours + thread; i < count; i += stride) x[i] *= factor;
}

__global__ void subtract_kernel(const float* left, const float* right, float* out, std::size_t count) {
  for (std::size_t i = cuda::thread_in_grid(); i < count; i += cuda::threads_in_grid())
    out[i] = format::one_nan(left[i] - right[i]);
}

__global__ void approach_kernel(const float* to, float share, float* out, std::size_t count) {
  for (std::size_t i = cuda::thread_in_grid(); i < count; i += cuda::threads_in_grid())
    out[i] = format::one_nan(out[i] + share * (to[i] - out[i]));
}

__global__ void write_size_kernel(std::uint64_t* to, std::uint64_t size) {
  if (threadIdx.x == 0) *to = size;
}

}  // namespace

void fill_zero(Queue<Space::cuda> queue, View<float, Space::cuda> view) {
  cuda::fill(queue, as_writable_bytes(view), 0);
}
void add(Queue<Space::cuda> queue, View<const float, Space::cuda> in, View<float, Space::cuda> out) {
  cuda::sum_into(queue, as_writable_bytes(out), as_bytes(in), Dtype::f32);
}
void approach(Queue<Space::cuda> queue, View<const float, Space::cuda> to, float share, View<float, Space::cuda> out) {
  if (out.empty()) return;
  launch(queue, "approach", approach_kernel, blocks_for(out.size(), kThreads), to.data(), share, out.data(),
         out.size());
}
void subtract(Queue<Space::cuda> queue, View<const float, Space::cuda> left, View<const float, Space::cuda> right,
              View<float, Space::cuda> out) {
  if (out.empty()) return;
  launch(queue, "subtract", subtract_kernel, blocks_for(out.size(), kThreads), left.data(), right.data(), out.data(),
         out.size());
}
void scale(Queue<Space::cuda> queue, View<float, Space::cuda> view, float factor) {
  if (view.empty()) return;
  const std::size_t fours = aligned_to(view.data(), 16) ? view.size() / 4 : 0;
  launch(queue, "scale", scale_kernel, blocks_for(view.size(), 4 * kThreads), view.data(), factor, view.size(), fours);
}
void read_back(Queue<Space::cuda> queue, View<const std::byte, Space::cuda> from, void* to) {
  cuda::copy(queue, HostView<std::byte>{static_cast<std::byte*>(to), from.size()}, from);
  cuda::synchronize(queue);
}

template <>
struct ReadBack<Space::cuda>::Memory {
  cuda::PinnedBuffer numbers;
  cuda::Event arrived;
};
template <>
ReadBack<Space::cuda>::ReadBack(std::size_t most) : memory_{new Memory{cuda::PinnedBuffer{8 * most}, cuda::Event{}}} {}
template <>
ReadBack<Space::cuda>::~ReadBack() = default;
template <>
void ReadBack<Space::cuda>::fetch(Queue<Space::cuda> queue, View<const std::byte, Space::cuda> from, std::size_t at) {
  expects(8 * at + from.size() <= memory_->numbers.size(), "more numbers are read back than there is room for");
  cuda::copy(queue, memory_->numbers.bytes().part(8 * at, from.size()), from);
}
template <>
std::span<const std::uint64_t> ReadBack<Space::cuda>::wait(Queue<Space::cuda> queue) {
  memory_->arrived.record(queue);
  memory_->arrived.synchronize();
  return memory_->numbers.as<std::uint64_t>().span();
}

void write_size(Queue<Space::cuda> queue, std::uint64_t size, View<std::byte, Space::cuda> to) {
  expects(to.size() >= sizeof size && aligned_to(to.data(), alignof(std::uint64_t)),
          "a number needs 8 bytes, 8-byte aligned");
  launch(queue, "write size", write_size_kernel, {1, cuda::kWarpSize}, reinterpret_cast<std::uint64_t*>(to.data()),
         size);
}

}  // namespace gradtool
