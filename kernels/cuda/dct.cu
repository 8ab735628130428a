#include "kernels/cuda/dct.hpp"

#include <cuda_runtime.h>

#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/select_digits.hpp"

namespace gradtool::cuda {
namespace {

constexpr std::uint32_t kInfinity = 0x7f800000u;
constexpr std::uint32_t kNoDigit = 0xffffffffu;  ///< no pattern begins so

/// A threshold among what is not finite would stop everything else until the next refresh.
__device__ bool renews(const DctThreshold& threshold, bool refresh) {
  return refresh || threshold.pattern == 0 || threshold.pattern >= kInfinity;
}

/// e += g, and the leading digit of all sums where the threshold is wanted.
__global__ void accumulate_kernel(const float* gradient, float* e, std::size_t n, bool aligned, bool refresh,
                                  const DctThreshold* threshold, SelectState* state) {
  __shared__ std::uint32_t counters[kCopies * SelectState::kCounters];
  const bool counts = renews(*threshold, refresh);
  if (counts) clear_counters(counters, kCopies * SelectState::kCounters);
  std::uint32_t* own = counters + threadIdx.x % kCopies;
  const auto step = [&](float g, float& sum) {
    sum += g;
    if (counts) count_top_digit<kCopies>(__float_as_uint(sum), own);
  };
  const std::size_t fours = aligned ? n / 4 : 0;
#pragma unroll 2
  for (std::size_t i = thread_in_grid(); i < fours; i += threads_in_grid()) {
    const float4 g = reinterpret_cast<const float4*>(gradient)[i];
    float4 sum = reinterpret_cast<const float4*>(e)[i];
    step(g.x, sum.x);
    step(g.y, sum.y);
    step(g.z, sum.z);
    step(g.w, sum.w);
    reinterpret_cast<float4*>(e)[i] = sum;
  }
  for (std::size_t i = 4 * fours + thread_in_grid(); i < n; i += threads_in_grid()) {
    float sum = e[i];
    step(gradient[i], sum);
    e[i] = sum;
  }
  if (counts) add_counters<kCopies>(counters, SelectState::kCounters, state->counters[0]);
}

/// One block: what the gather is to look at. Without a new threshold no digit is to be found.
__global__ void low_kernel(std::uint32_t k, bool refresh, DctThreshold* threshold, SelectState* state) {
  const bool finds = renews(*threshold, refresh);
  __syncthreads();
  if (threadIdx.x == 0) {
    threshold->renewed = finds ? 1u : 0u;
    state->prefix = kNoDigit;
    state->left = 0;
    state->low = threshold->pattern;
  }
  __syncthreads();
  if (!finds) return;
  find_digit<SelectState::kCounters>(state->counters[0], k, [&](std::uint32_t digit, std::uint32_t left) {
    state->prefix = digit;
    state->left = left;
    const std::uint32_t low = digit << kTopShift;
    state->low = low < kInfinity ? low : kInfinity;  // an infinity is sent with the NaNs
  });
}

/// One thread: everything that reaches the threshold is chosen, zeros never.
__global__ void settle_kernel(DctThreshold* threshold, SelectState* state) {
  if (threadIdx.x != 0) return;
  if (threshold->renewed != 0) {
    const std::uint32_t found = state->threshold;
    threshold->pattern = found < 1 ? 1u : found < kInfinity ? found : kInfinity;
  }
  state->threshold = threshold->pattern - 1;
  state->ties = 0;
}

}  // namespace

void dct_choose(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, float* e, std::size_t k,
                bool refresh, const Select& select, DctThreshold* threshold) {
  const std::size_t n = gradient.size();
  select.clear();
  const bool aligned = aligned_to(gradient.data(), 16) && aligned_to(e, 16);
  launch(queue, "dct accumulate", accumulate_kernel, blocks_for(n, 16 * kThreads, 2048), gradient.data(), e, n, aligned,
         refresh, threshold, select.state());
  launch(queue, "dct low", low_kernel, 1, static_cast<std::uint32_t>(k), refresh, threshold, select.state());
  select.refine();
  launch(queue, "dct settle", settle_kernel, {1, schedule::kLanes}, threshold, select.state());
  select.count_chosen();
}

}  // namespace gradtool::cuda
