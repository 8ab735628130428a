#include "kernels/cuda/sidco.hpp"

#include <cuda_runtime.h>

#include "kernels/cuda/block_ops.hpp"
#include "kernels/cuda/launch.hpp"

namespace gradtool::cuda {
namespace {

constexpr std::uint32_t kMagnitude = 0x7fffffffu;
constexpr std::uint32_t kInfinity = 0x7f800000u;
constexpr std::uint32_t kOne = 127u << 23;
constexpr std::uint32_t kSmallestNormal = 0x00800000u;
constexpr unsigned kMostBlocks = 1024;
constexpr unsigned kFours = 4;  // loads of 16 bytes that a thread has under way, whose numbers add in float

/// What a block adds to a fit.
struct Part {
  SidcoMoments moments;
  std::uint32_t largest;
  std::uint32_t unused;
};

struct Work {
  law::SidcoStages stages;
  std::uint32_t ticket;
  Part parts[kMostBlocks];
};

/// Sums of a thread over patterns in [low, infinity), counted from the origin. Logarithms add as exponents, and as one
/// product of mantissas for many elements.
template <SidcoFit Fit>
struct Sums {
  std::uint32_t low;
  float origin;
  float run = 0.0F;
  double sum = 0.0, squares = 0.0, mantissas = 1.0, logs = 0.0;
  std::uint32_t count = 0, largest = 0;
  std::int64_t exponents = 0;

  __device__ void add(std::uint32_t pattern) {
    pattern &= kMagnitude;
    if (pattern < low || pattern >= kInfinity) return;
    const float above = __uint_as_float(pattern) - origin;
    run += above;
    ++count;
    largest = pattern > largest ? pattern : largest;
    if constexpr (Fit == SidcoFit::pareto) squares += static_cast<double>(above) * static_cast<double>(above);
    if constexpr (Fit == SidcoFit::gamma) {
      exponents += static_cast<std::int32_t>(pattern >> 23) - 127;
      mantissas *= static_cast<double>(__uint_as_float((pattern & 0x007fffffu) | kOne));
    }
  }
  /// After a few numbers: float sums stay short, and the product far from overflow.
  __device__ void settle() {
    sum += static_cast<double>(run);
    run = 0.0F;
    if constexpr (Fit == SidcoFit::gamma) {
      if (mantissas < 0x1p900) return;
      logs += law::natural_log(mantissas);
      mantissas = 1.0;
    }
  }
  __device__ SidcoMoments moments() {
    settle();
    if constexpr (Fit == SidcoFit::gamma)
      logs += law::natural_log(mantissas) + static_cast<double>(exponents) * 0.6931471805599453;
    return {static_cast<double>(count), sum, squares, logs};
  }
};

/// Sums over the block; all threads get them.
__device__ Part block_part(const SidcoMoments& own, std::uint32_t largest) {
  Part all{};
  block_sum_through(own.count, all.moments.count);
  block_sum_through(own.sum, all.moments.sum);
  block_sum_through(own.squares, all.moments.squares);
  block_sum_through(own.log_sum, all.moments.log_sum);
  __shared__ std::uint32_t most;
  if (threadIdx.x == 0) most = 0;
  __syncthreads();
  atomicMax(&most, largest);
  __syncthreads();
  all.largest = most;
  return all;
}

/// The block's part goes to the others'; the last block adds them all and moves the threshold.
template <SidcoFit Fit>
__device__ void finish(Sums<Fit>& sums, Work* work, std::size_t elements, bool first, bool last) {
  const Part own = block_part(sums.moments(), sums.largest);
  if (threadIdx.x == 0) work->parts[blockIdx.x] = own;
  if (!last_block(&work->ticket)) return;
  SidcoMoments moments;
  std::uint32_t largest = 0;
  for (unsigned i = threadIdx.x; i < gridDim.x; i += kThreads) {
    const volatile Part& part = work->parts[i];
    moments.count += part.moments.count;
    moments.sum += part.moments.sum;
    moments.squares += part.moments.squares;
    moments.log_sum += part.moments.log_sum;
    largest = part.largest > largest ? part.largest : largest;
  }
  const Part all = block_part(moments, largest);
  if (threadIdx.x != 0) return;
  law::SidcoStages stages = work->stages;
  stages.take(Fit, all.moments, all.largest, elements, first, last);
  work->stages = stages;
  work->ticket = 0;
}

template <SidcoFit Fit>
__device__ Sums<Fit> sums_of(const Work* work) {
  return {.low = Fit == SidcoFit::gamma ? kSmallestNormal : work->stages.threshold, .origin = work->stages.origin};
}

template <SidcoFit Fit>
__global__ void numbers_kernel(const float* x, std::size_t n, bool aligned, bool first, bool last, Work* work) {
  if (work->stages.done) return;
  Sums<Fit> sums = sums_of<Fit>(work);
  const std::size_t fours = (n + 3) / 4;
  for (std::size_t at = std::size_t{blockIdx.x} * (kFours * kThreads); at < fours;
       at += std::size_t{gridDim.x} * (kFours * kThreads)) {
    uint4 loaded[kFours];
#pragma unroll
    for (unsigned j = 0; j < kFours; ++j) loaded[j] = four_patterns(x, at + j * kThreads + threadIdx.x, n, aligned);
#pragma unroll
    for (unsigned j = 0; j < kFours; ++j) {
      sums.add(loaded[j].x);
      sums.add(loaded[j].y);
      sums.add(loaded[j].z);
      sums.add(loaded[j].w);
    }
    sums.settle();
  }
  finish(sums, work, n, first, last);
}

template <SidcoFit Fit>
__global__ void candidates_kernel(SelectTiles of, bool last, Work* work) {
  if (work->stages.done) return;
  Sums<Fit> sums = sums_of<Fit>(work);
  for (std::size_t tile = warp_in_grid(); tile < of.size; tile += warps_in_grid()) {
    const std::uint32_t count = of.counts[tile];
    for (std::uint32_t i = threadIdx.x % schedule::kLanes; i < count; i += schedule::kLanes)
      sums.add(of.patterns[tile * SelectTiles::kTile + i]);
    sums.settle();
  }
  finish(sums, work, 0, false, last);
}

__global__ void start_kernel(double ratio, Work* work) {
  if (thread_in_grid() != 0) return;
  law::SidcoStages stages;
  stages.left = ratio;
  work->stages = stages;
  work->ticket = 0;
}

Work* work_in(View<std::byte, Space::cuda> scratch) {
  static_assert(offsetof(Work, stages) == 0);
  expects(scratch.size() >= sizeof(Work), "sidco: scratch is smaller than planned");
  return reinterpret_cast<Work*>(scratch.data());
}

}  // namespace

std::size_t sidco_scratch_bytes() {
  return sizeof(Work);
}

void sidco_start(Queue<Space::cuda> queue, double ratio, View<std::byte, Space::cuda> scratch) {
  launch(queue, "sidco start", start_kernel, {1, schedule::kLanes}, ratio, work_in(scratch));
}

void sidco_stage(Queue<Space::cuda> queue, SidcoFit fit, View<const float, Space::cuda> numbers, bool first, bool last,
                 View<std::byte, Space::cuda> scratch) {
  const auto kernel = fit == SidcoFit::gamma    ? numbers_kernel<SidcoFit::gamma>
                      : fit == SidcoFit::pareto ? numbers_kernel<SidcoFit::pareto>
                                                : numbers_kernel<SidcoFit::exponential>;
  launch(queue, "sidco moments", kernel, blocks_for(numbers.size(), 4 * kFours * kThreads, kMostBlocks), numbers.data(),
         numbers.size(), aligned_to(numbers.data(), 16), first, last, work_in(scratch));
}

void sidco_stage(Queue<Space::cuda> queue, SidcoFit fit, const Select& select, bool last,
                 View<std::byte, Space::cuda> scratch) {
  const auto kernel =
      fit == SidcoFit::pareto ? candidates_kernel<SidcoFit::pareto> : candidates_kernel<SidcoFit::exponential>;
  const SelectTiles& of = select.candidates();
  launch(queue, "sidco tail", kernel, blocks_for(of.size, kBlockWarpCount, kMostBlocks), of, last, work_in(scratch));
}

}  // namespace gradtool::cuda
