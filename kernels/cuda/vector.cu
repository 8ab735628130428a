#include "kernels/cuda/vector.hpp"

#include <cuda_runtime.h>

#include "kernels/cuda/device_warp.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/unit_launch.hpp"
#include "kernels/schedule/warp.hpp"

namespace gradtool::cuda {
namespace {

using schedule::Four;

/// The first 4 * fours elements by fours, the rest one by one.
__global__ void scale_kernel(float* x, float factor, std::size_t count, std::size_t fours) {
  const std::size_t thread = thread_in_grid();
  const std::size_t stride = threads_in_grid();
  auto* packs = reinterpret_cast<Four<float>*>(x);
  for (std::size_t i = thread; i < fours; i += stride) {
    Four<float> four = packs[i];
#pragma unroll
    for (float& value : four.value) value *= factor;
    packs[i] = four;
  }
  for (std::size_t i = 4 * fours + thread; i < count; i += stride) x[i] *= factor;
}

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

__global__ void write_number_kernel(std::uint64_t* to, std::uint64_t number) {
  if (threadIdx.x == 0) *to = number;
}

}  // namespace

void write_number(Queue<Space::cuda> queue, std::uint64_t number, View<std::byte, Space::cuda> to) {
  expects(to.size() >= sizeof number && aligned_to(to.data(), alignof(std::uint64_t)),
          "a number needs 8 bytes, 8-byte aligned");
  launch(queue, "write_number", write_number_kernel, {1, schedule::kLanes}, reinterpret_cast<std::uint64_t*>(to.data()),
         number);
}

void subtract(Queue<Space::cuda> queue, std::span<const Unit> units) {
  if (!units.empty()) launch_units(queue, "subtract", Subtract{}, units);
}

void scale(Queue<Space::cuda> queue, View<float, Space::cuda> view, float factor) {
  if (view.empty()) return;
  const std::size_t fours = aligned_to(view.data(), 16) ? view.size() / 4 : 0;
  launch(queue, "scale", scale_kernel, blocks_for(view.size(), 4 * kThreads), view.data(), factor, view.size(), fours);
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

}  // namespace gradtool::cuda
