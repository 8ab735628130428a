#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/block_ops.hpp"
#include "kernels/cuda/select.hpp"
#include "kernels/law/fft_power.hpp"

/// How the kernels of a selection see what they select from, for .cu files: load(i) is what there is of numbers 4i to
/// 4i+3, and patterns() makes of it, once other loads are under way too, their patterns; zeros behind the end.
namespace gradtool::cuda {

struct NumberSource {
  using Loaded = uint4;
  const float* x;
  std::size_t n;
  bool aligned;

  explicit NumberSource(const SelectSource& from) : x{from.x}, n{from.size}, aligned{aligned_to(from.x, 16)} {}
  __device__ Loaded load(std::size_t i) const { return four_patterns(x, i, n, aligned); }
  static __device__ uint4 patterns(const Loaded& loaded) { return loaded; }
};

struct PowerSource {
  struct Loaded {
    schedule::Four<float> half[2];
  };
  const float* pairs;
  std::size_t n;

  explicit PowerSource(const SelectSource& from) : pairs{from.x}, n{from.size} {}
  __device__ Loaded load(std::size_t i) const {
    const auto* halves = reinterpret_cast<const schedule::Four<float>*>(pairs) + 2 * i;
    if (4 * i + 4 <= n) return {{halves[0], halves[1]}};
    Loaded loaded{};
#pragma unroll
    for (unsigned k = 0; k < 4; ++k) {
      if (4 * i + k >= n) continue;
      loaded.half[k / 2].value[k % 2 * 2] = pairs[2 * (4 * i + k)];
      loaded.half[k / 2].value[k % 2 * 2 + 1] = pairs[2 * (4 * i + k) + 1];
    }
    return loaded;
  }
  static __device__ uint4 patterns(const Loaded& loaded) {
    const float* low = loaded.half[0].value;
    const float* high = loaded.half[1].value;
    return {law::power_pattern(low[0], low[1]), law::power_pattern(low[2], low[3]),
            law::power_pattern(high[0], high[1]), law::power_pattern(high[2], high[3])};
  }
};

/// start(source) with the one of them that `from` is.
template <class Start>
void with_source(const SelectSource& from, const Start& start) {
  if (from.pairs) {
    start(PowerSource{from});
  } else {
    start(NumberSource{from});
  }
}

}  // namespace gradtool::cuda
