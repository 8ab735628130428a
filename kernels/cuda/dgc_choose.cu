#include <cuda_runtime.h>

#include "kernels/cuda/dgc.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/select_digits.hpp"

namespace gradtool::cuda {
namespace {

/// The thresholds that corrections can come to, downwards and upwards from the first; how many candidates lie between.
struct Chain {
  static constexpr int kTries = law::DgcCorrection::kTries;
  static constexpr int kSize = 2 * kTries + 1;
  std::uint32_t pattern[kSize];  ///< ascending; the first one in the middle

  __device__ void start(std::uint32_t first) {
    pattern[kTries] = first;
    for (int i = 0; i < kTries; ++i) {
      pattern[kTries + 1 + i] = law::DgcCorrection::moved(pattern[kTries + i], true);
      pattern[kTries - 1 - i] = law::DgcCorrection::moved(pattern[kTries - i], false);
    }
  }
  /// How many of them a pattern reaches.
  __device__ std::uint32_t reached(std::uint32_t magnitude) const {
    std::uint32_t count = 0;
    for (int i = 0; i < kSize; ++i) count += magnitude >= pattern[i] ? 1u : 0u;
    return count;
  }
};

struct Work {
  std::uint32_t start;
  std::uint32_t ticket;
  std::uint32_t between[Chain::kSize + 1];  ///< candidates that reach so many thresholds of the chain
};
static_assert(sizeof(Work) <= kDgcWorkBytes);

/// One block: the leading digit of the k-th largest, and how low a threshold may come to be: where as many lie above it
/// as keep it from being lowered further.
__global__ void low_kernel(law::DgcCorrection correction, const std::uint32_t* sampled, SelectState* state,
                           Work* work) {
  __shared__ std::uint32_t above[SelectState::kCounters];  // numbers with a larger leading digit
  constexpr std::uint32_t kEach = SelectState::kCounters / kThreads;
  const volatile std::uint32_t* counters = state->counters[0];
  const std::uint32_t top = SelectState::kCounters - 1 - threadIdx.x * kEach;
  std::uint32_t own = 0;
  for (std::uint32_t i = 0; i < kEach; ++i) own += counters[top - i];
  std::uint32_t total = 0;
  std::uint32_t sum = block_sum_through(own, total) - own;
  for (std::uint32_t i = 0; i < kEach; ++i) {
    above[top - i] = sum;
    sum += counters[top - i];
  }
  __syncthreads();
  find_digit<SelectState::kCounters>(counters, static_cast<std::uint32_t>(correction.k),
                                     [&](std::uint32_t digit, std::uint32_t left) {
                                       state->prefix = digit;
                                       state->left = left;
                                     });
  if (threadIdx.x != 0) return;
  const std::uint32_t start = sampled == nullptr ? 1u : law::DgcCorrection::clamped(*sampled);
  std::uint32_t low = start;
  for (int i = 0; i < Chain::kTries && correction.few(above[low >> kTopShift]); ++i)
    low = law::DgcCorrection::moved(low, false);
  state->low = low;
  *work = {start, 0, {}};
}

/// How many candidates reach a threshold of the chain.
struct Passing {
  const Chain& chain;
  const std::uint32_t* reach;  ///< of each threshold
  GT_HD std::size_t operator()(std::uint32_t pattern) const {
    std::size_t count = 0;
    for (int i = 0; i < Chain::kSize; ++i) {
      if (chain.pattern[i] == pattern) count = reach[i];
    }
    return count;
  }
};

/// Counts the candidates; the last block corrects the threshold, and where no more than k pass, they are what is
/// chosen.
__global__ void settle_kernel(law::DgcCorrection correction, SelectTiles of, SelectState* state, Work* work) {
  __shared__ Chain chain;
  __shared__ std::uint32_t between[Chain::kSize + 1];
  if (threadIdx.x == 0) chain.start(work->start);
  clear_counters(between, Chain::kSize + 1);
  for (std::size_t tile = warp_in_grid(); tile < of.size; tile += warps_in_grid()) {
    const std::uint32_t count = of.counts[tile];
    for (std::uint32_t i = threadIdx.x % schedule::kLanes; i < count; i += schedule::kLanes)
      atomicAdd(&between[chain.reached(of.patterns[tile * SelectTiles::kTile + i] & kMagnitude)], 1u);
  }
  add_counters<1>(between, Chain::kSize + 1, work->between);
  if (!last_block(&work->ticket)) return;
  if (threadIdx.x != 0) return;
  const volatile std::uint32_t* all = work->between;
  std::uint32_t reach[Chain::kSize];
  std::uint32_t sum = 0;
  for (int i = Chain::kSize - 1; i >= 0; --i) {
    sum += all[i + 1];
    reach[i] = sum;
  }
  const auto settled = correction.settle(work->start, Passing{chain, reach});
  if (settled.count > correction.k) return;  // the exact threshold and its ties are there
  state->threshold = settled.pattern - 1;
  state->ties = 0;
}

}  // namespace

void dgc_choose(Queue<Space::cuda> queue, const law::DgcCorrection& correction, const std::uint32_t* sampled,
                const Select& select, std::byte* work) {
  auto* own = reinterpret_cast<Work*>(work);
  launch(queue, "dgc low", low_kernel, 1, correction, sampled, select.state(), own);
  select.refine();
  const SelectTiles& of = select.candidates();
  launch(queue, "dgc settle", settle_kernel, blocks_for(of.size, kBlockWarpCount, kMostHistograms), correction, of,
         select.state(), own);
  select.count_chosen();
}

}  // namespace gradtool::cuda
