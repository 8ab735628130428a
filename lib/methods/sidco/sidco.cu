#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/block_ops.hpp"
#include "kernels/cuda/launch.hpp"
#include "lib/codecs/gpu_sparse_codec.hpp"
#include "lib/methods/sidco/format.hpp"

namespace gradtool::cuda {
namespace {

constexpr std::uint32_t kMagnitude = 0x7fffffffu;
constexpr std::uint32_t kInfinity = 0x7f800000u;
constexpr std::uint32_t kOne = 127u << 23;
constexpr std::uint32_t kSmallestNormal = 0x00800000u;
constexpr unsigned kMostBlocks = 1024;
constexpr unsigned kFours = 4;  // loads of 16 bytes that a thread has under way; their numbers are added in float32

/// The moments that a block adds to a fit.
struct BlockMoments {
  SidcoMoments moments;
  std::uint32_t largest;  ///< pattern
  std::uint32_t unused;
};

/// The memory in which the stages leave results for each other.
struct Fitting {
  format::SidcoStages stages;
  std::uint32_t ticket;  ///< of last_block
  BlockMoments parts[kMostBlocks];
};

/// A thread's sums over the magnitudes whose patterns are in [low, infinity), less the origin. For the sum of
/// logarithms, exponents are added and mantissas multiplied, so that one logarithm serves many elements.
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
  /// Moves what was added in float32 to float64. Called after a few numbers, which also keeps the product of mantissas
  /// from overflowing.
  __device__ void settle() {
    sum += static_cast<double>(run);
    run = 0.0F;
    if constexpr (Fit == SidcoFit::gamma) {
      if (mantissas < 0x1p900) return;
      logs += std::log(mantissas);
      mantissas = 1.0;
    }
  }
  __device__ SidcoMoments moments() {
    settle();
    if constexpr (Fit == SidcoFit::gamma)
      logs += std::log(mantissas) + static_cast<double>(exponents) * 0.6931471805599453;
    return {static_cast<double>(count), sum, squares, logs};
  }
};

/// Sums over the block; all threads get them.
__device__ BlockMoments block_moments(const SidcoMoments& own, std::uint32_t largest) {
  BlockMoments all{};
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

/// Stores the moments of this block. The last block to get here adds those of all blocks and moves the threshold.
template <SidcoFit Fit>
__device__ void finish(Sums<Fit>& sums, Fitting* fitting, std::size_t elements, bool first, bool last) {
  const BlockMoments own = block_moments(sums.moments(), sums.largest);
  if (threadIdx.x == 0) fitting->parts[blockIdx.x] = own;
  if (!last_block(&fitting->ticket)) return;
  SidcoMoments moments;
  std::uint32_t largest = 0;
  for (unsigned i = threadIdx.x; i < gridDim.x; i += kThreads) {
    const volatile BlockMoments& part = fitting->parts[i];
    moments.count += part.moments.count;
    moments.sum += part.moments.sum;
    moments.squares += part.moments.squares;
    moments.log_sum += part.moments.log_sum;
    largest = part.largest > largest ? part.largest : largest;
  }
  const BlockMoments all = block_moments(moments, largest);
  if (threadIdx.x != 0) return;
  format::SidcoStages stages = fitting->stages;
  stages.advance(Fit, all.moments, all.largest, elements, first, last);
  fitting->stages = stages;
  fitting->ticket = 0;
}

template <SidcoFit Fit>
__device__ Sums<Fit> sums_of(const Fitting* fitting) {
  return {.low = Fit == SidcoFit::gamma ? kSmallestNormal : fitting->stages.threshold,
          .origin = fitting->stages.origin};
}

/// A stage over all numbers.
template <SidcoFit Fit>
__global__ void sidco_numbers_kernel(const float* x, std::size_t n, bool aligned, bool first, bool last,
                                     Fitting* fitting) {
  if (fitting->stages.done) return;
  Sums<Fit> sums = sums_of<Fit>(fitting);
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
  finish(sums, fitting, n, first, last);
}

/// A stage over the candidates of a selection, which hold every number that reaches the threshold.
template <SidcoFit Fit>
__global__ void sidco_candidates_kernel(SelectTiles candidates, bool last, Fitting* fitting) {
  if (fitting->stages.done) return;
  Sums<Fit> sums = sums_of<Fit>(fitting);
  for (std::size_t tile = warp_in_grid(); tile < candidates.size; tile += warps_in_grid()) {
    const std::uint32_t count = candidates.counts[tile];
    for (std::uint32_t i = threadIdx.x % kWarpSize; i < count; i += kWarpSize)
      sums.add(candidates.patterns[tile * SelectTiles::kTile + i]);
    sums.settle();
  }
  finish(sums, fitting, 0, false, last);
}

__global__ void start_kernel(double ratio, Fitting* fitting) {
  if (thread_in_grid() != 0) return;
  format::SidcoStages stages;
  stages.left = ratio;
  fitting->stages = stages;
  fitting->ticket = 0;
}

void fit_numbers(Queue<Space::cuda> queue, SidcoFit fit, View<const float, Space::cuda> numbers, bool first, bool last,
                 Fitting* fitting) {
  const auto kernel = fit == SidcoFit::gamma    ? sidco_numbers_kernel<SidcoFit::gamma>
                      : fit == SidcoFit::pareto ? sidco_numbers_kernel<SidcoFit::pareto>
                                                : sidco_numbers_kernel<SidcoFit::exponential>;
  launch(queue, "sidco moments", kernel, blocks_for(numbers.size(), 4 * kFours * kThreads, kMostBlocks), numbers.data(),
         numbers.size(), aligned_to(numbers.data(), 16), first, last, fitting);
}

void fit_candidates(Queue<Space::cuda> queue, SidcoFit fit, const SelectTiles& candidates, bool last,
                    Fitting* fitting) {
  const auto kernel = fit == SidcoFit::pareto ? sidco_candidates_kernel<SidcoFit::pareto>
                                              : sidco_candidates_kernel<SidcoFit::exponential>;
  launch(queue, "sidco tail", kernel, blocks_for(candidates.size, kBlockWarpCount, kMostBlocks), candidates, last,
         fitting);
}

class Sidco final : public GpuSparseCodec {
 public:
  explicit Sidco(const Params& params) : GpuSparseCodec{"sidco", params}, options_{params} {}

  void encode(Queue<Space::cuda> queue, ConstFloats gradient, const EncodeContext& /*context*/, Bytes payload,
              Bytes scratch) const override {
    Fitting* fitting = elements<Fitting>(rule_scratch(gradient.size(), scratch), 0, 1).data();
    const std::uint32_t* threshold = &fitting->stages.threshold;
    send(queue, gradient, payload, scratch, [&](const Select& select) {
      launch(queue, "sidco start", start_kernel, {1, kWarpSize}, options_.ratio, fitting);
      const int stages = options_.stages;
      int stage = 0;
      // One stage lets a quarter of the numbers pass, two a sixteenth: so few that the later stages, if there are any,
      // are quicker over a gathered list of them.
      for (; stage < std::min(stages, 2); ++stage)
        fit_numbers(queue, options_.fit_of(stage), gradient, stage == 0, stage + 1 == stages, fitting);
      select.at_least(threshold);
      for (; stage < stages; ++stage)
        fit_candidates(queue, options_.fit_of(stage), select.candidates(), stage + 1 == stages, fitting);
      if (stages > 2) select.narrow(threshold);
    });
  }

 private:
  [[nodiscard]] std::size_t rule_bytes(std::size_t /*n*/) const override { return sizeof(Fitting); }

  SidcoOptions options_;
};

}  // namespace
}  // namespace gradtool::cuda

namespace gradtool {

extern constinit const GpuFactories sidco_gpu{.codec = make_method_codec<Space::cuda, cuda::Sidco>};

}  // namespace gradtool
