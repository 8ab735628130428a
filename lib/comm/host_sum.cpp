#include "lib/comm/host_sum.hpp"

#include <cstdint>
#include <cstring>

#include "kernels/float_bits.hpp"
#include "lib/core/error.hpp"
#include "lib/core/task_pool.hpp"

namespace gradtool {
namespace {

/// Elements that one task of the pool takes at least: for fewer, waking a thread costs more than it saves.
constexpr std::size_t kGrain = std::size_t{1} << 16;

GT_SIMD_CLONES void add_f32(float* __restrict sum, const float* __restrict addend, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) sum[i] += addend[i];
}

GT_SIMD_CLONES void add_f16(std::uint16_t* __restrict sum, const std::uint16_t* __restrict addend, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    sum[i] = format::f16_from_f32(format::f32_from_f16(sum[i]) + format::f32_from_f16(addend[i]));
  }
}

GT_SIMD_CLONES void add_bf16(std::uint16_t* __restrict sum, const std::uint16_t* __restrict addend, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    sum[i] = format::bf16_from_f32(format::f32_from_bf16(sum[i]) + format::f32_from_bf16(addend[i]));
  }
}

template <class T>
void add_all(Queue<Space::host> queue, void (*add)(T* __restrict, const T* __restrict, std::size_t),
             HostView<std::byte> sum, HostView<const std::byte> addend) {
  const auto aligned = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p) % alignof(T) == 0; };
  expects(sum.size() % sizeof(T) == 0 && aligned(sum.data()) && aligned(addend.data()),
          "a sum needs views of whole elements, aligned to the element");
  auto* sums = reinterpret_cast<T*>(sum.data());
  const auto* addends = reinterpret_cast<const T*>(addend.data());
  parallel_for(queue, sum.size() / sizeof(T), 64, kGrain,
               [&](std::size_t first, std::size_t last) { add(sums + first, addends + first, last - first); });
}

}  // namespace

void sum_into(Queue<Space::host> queue, HostView<std::byte> sum, HostView<const std::byte> addend, Dtype dtype) {
  expects(sum.size() == addend.size(), "a sum needs two views of the same size");
  if (sum.empty()) return;
  switch (dtype) {
    case Dtype::f32:
      return add_all<float>(queue, add_f32, sum, addend);
    case Dtype::f16:
      return add_all<std::uint16_t>(queue, add_f16, sum, addend);
    case Dtype::bf16:
      return add_all<std::uint16_t>(queue, add_bf16, sum, addend);
  }
}

void copy_into(Queue<Space::host> queue, HostView<std::byte> to, HostView<const std::byte> from) {
  expects(to.size() == from.size(), "a copy needs two views of the same size");
  if (to.empty() || to.data() == from.data()) return;
  parallel_for(queue, to.size(), 4096, 8 * kGrain, [&](std::size_t first, std::size_t last) {
    std::memcpy(to.data() + first, from.data() + first, last - first);
  });
}

}  // namespace gradtool
