#include "lib/reduce/ops.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/law/hd.hpp"
#include "lib/core/task_pool.hpp"

namespace gradtool {
namespace {

constexpr std::size_t kGrain = 1 << 15;

GT_SIMD_CLONES void add_range(const float* in, float* out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) out[i] += in[i];
}

GT_SIMD_CLONES void scale_range(float* view, std::size_t count, float factor) {
  for (std::size_t i = 0; i < count; ++i) view[i] *= factor;
}

}  // namespace

void fill_zero(Queue<Space::host> queue, View<float, Space::host> view) {
  parallel_for(queue, view.size(), 16, kGrain,
               [&](std::size_t first, std::size_t last) { std::fill(view.data() + first, view.data() + last, 0.0F); });
}

void add(Queue<Space::host> queue, View<const float, Space::host> in, View<float, Space::host> out) {
  parallel_for(queue, out.size(), 16, kGrain, [&](std::size_t first, std::size_t last) {
    add_range(in.data() + first, out.data() + first, last - first);
  });
}

void scale(Queue<Space::host> queue, View<float, Space::host> view, float factor) {
  parallel_for(queue, view.size(), 16, kGrain,
               [&](std::size_t first, std::size_t last) { scale_range(view.data() + first, last - first, factor); });
}

void read_back(Queue<Space::host> /*queue*/, View<const std::byte, Space::host> from, void* to) {
  if (!from.empty()) std::memcpy(to, from.data(), from.size());
}

void write_size(Queue<Space::host> /*queue*/, std::uint64_t size, View<std::byte, Space::host> to) {
  std::memcpy(to.data(), &size, sizeof size);
}

}  // namespace gradtool
