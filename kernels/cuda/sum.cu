#include "kernels/cuda/sum.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/runtime.hpp"
#include "kernels/law/half.hpp"
#include "kernels/law/keep_nan.hpp"

namespace gradtool::cuda {
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
    return law::one_nan(a + b);
  } else if constexpr (D == Dtype::f16) {
    return law::f16_from_f32(law::f32_from_f16(a) + law::f32_from_f16(b));
  } else {
    return law::bf16_from_f32(law::f32_from_bf16(a) + law::f32_from_bf16(b));
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
