#include <cuda_runtime.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/warp.hpp"
#include "lib/analysis/cuda/gpu.hpp"
#include "lib/analysis/variance.hpp"
#include "lib/core/view.hpp"

/// Counts of the variance analysis over all elements of a gradient, in one pass on the GPU.
namespace gradtool::cuda {
namespace {

/// W gradients of the same elements; row r begins at values + r * stride. `values` is 16-byte aligned and `stride` a
/// multiple of 4 elements, so that rows are read in 16-byte accesses.
struct GradientRows {
  const float* values = nullptr;
  std::size_t rows = 0, elements = 0, stride = 0;
};

/// The samples behind an element's mean and variance; see SignalRatio in lib/analysis/variance.hpp.
struct SignalSource {
  const float* second_moment = nullptr;  ///< second moment of the only row, aligned like it, or null
  double micro_batches = 0;              ///< K >= 2 when there is a second moment
  bool over_rows = false;                ///< the W >= 2 rows of one step are the samples
};

/// The sums. The order in which they are joined depends on the number of elements alone.
struct VarianceSums {
  format::CentralMoments moments;
  std::uint64_t non_finite = 0;
  std::uint64_t samples = 0, undefined = 0, inconsistent = 0;
  std::uint64_t passed[3] = {};
};

constexpr std::size_t kVarianceBlocks = 1024;  ///< blocks of variance_kernel, each of which writes partial sums

constexpr unsigned kBlock = 128;  ///< threads of a block; their sums, 160 bytes each, are joined in shared memory
constexpr std::size_t kEach = 8;  ///< values of a row that a thread holds in registers at a time
constexpr std::size_t kTile = kBlock * kEach;

struct Alphas {
  double value[3];
};

__device__ void join_sums(VarianceSums& mine, const VarianceSums& other) {
  format::join(mine.moments, other.moments);
  mine.non_finite += other.non_finite;
  mine.samples += other.samples;
  mine.undefined += other.undefined;
  mine.inconsistent += other.inconsistent;
  for (int a = 0; a < 3; ++a) mine.passed[a] += other.passed[a];
}

/// Joins the sums of the block's threads in a fixed tree; the result is valid in thread 0.
__device__ VarianceSums join_block(const VarianceSums& own) {
  auto* sums = reinterpret_cast<VarianceSums*>(dynamic_shared());
  sums[threadIdx.x] = own;
  __syncthreads();
  for (unsigned half = kBlock / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) join_sums(sums[threadIdx.x], sums[threadIdx.x + half]);
    __syncthreads();
  }
  return sums[0];
}

/// The element that is number j of the kEach that this thread holds of a tile: two groups of four neighbouring
/// elements.
__device__ std::size_t index_of(std::size_t tile, std::size_t j) {
  return tile * kTile + (j / 4) * (kTile / 2) + 4 * threadIdx.x + j % 4;
}

/// x := the thread's elements of the tile. Elements past the end of the row are 0.
__device__ void load(const float* row, std::size_t n, std::size_t tile, float (&x)[kEach]) {
#pragma unroll
  for (std::size_t group = 0; group < kEach / 4; ++group) {
    const std::size_t first = index_of(tile, 4 * group);
    if (first + 4 <= n) {
      const float4 four = *reinterpret_cast<const float4*>(row + first);
      x[4 * group] = four.x;
      x[4 * group + 1] = four.y;
      x[4 * group + 2] = four.z;
      x[4 * group + 3] = four.w;
    } else {
#pragma unroll
      for (std::size_t j = 0; j < 4; ++j) x[4 * group + j] = first + j < n ? row[first + j] : 0.0f;
    }
  }
}

/// Adds the moments of the thread's values. As on the host the mean is computed first and then the deviations from it;
/// meanwhile the values stay in registers.
__device__ void add_values(const float (&x)[kEach], const bool (&inside)[kEach], VarianceSums& sums) {
  format::CentralMoments part;
  double sum = 0;
#pragma unroll
  for (std::size_t j = 0; j < kEach; ++j) {
    if (!inside[j]) continue;
    const double value = static_cast<double>(x[j]);
    const double magnitude = value < 0 ? -value : value;
    if (part.count == 0) part.min = part.max = value;
    part.count += 1;
    sum += value;
    part.abs_sum += magnitude;
    part.square_sum += value * value;
    part.min = value < part.min ? value : part.min;
    part.max = value > part.max ? value : part.max;
    part.zeros += value == 0 ? 1 : 0;
    sums.non_finite += value - value == 0 ? 0 : 1;
  }
  if (part.count == 0) return;
  part.mean = part.min < part.max ? sum / part.count : part.min;
#pragma unroll
  for (std::size_t j = 0; j < kEach; ++j) {
    if (!inside[j]) continue;
    const double d = static_cast<double>(x[j]) - part.mean;
    const double d2 = d * d;
    part.m2 += d2;
    part.m3 += d2 * d;
    part.m4 += d2 * d2;
  }
  format::join(sums.moments, part);
}

__device__ void add_sample(const format::SignalSample& sample, const Alphas& alphas, VarianceSums& sums,
                           unsigned long long* bins) {
  ++sums.samples;
  if (!sample.consistent) {
    ++sums.inconsistent;
    return;
  }
  if (sample.mean_square == 0 && sample.variance == 0) {
    ++sums.undefined;
  } else {
    const std::uint32_t bin = format::ratio_bin(sample);
    if (bin < format::kRatioBins) atomicAdd(bins + bin, 1ull);  // a NaN has no bin
  }
  for (int a = 0; a < 3; ++a) sums.passed[a] += sample.mean_square > alphas.value[a] * sample.threshold ? 1 : 0;
}

/// Block b handles the tiles b, b + gridDim.x and so on, and writes its sums to partial[b]. Ratios are counted in
/// `bins`.
__global__ void variance_kernel(GradientRows gradients, SignalSource source, Alphas alphas, VarianceSums* partial,
                                unsigned long long* bins) {
  VarianceSums sums;
  const std::size_t n = gradients.elements;
  for (std::size_t tile = blockIdx.x; tile * kTile < n; tile += gridDim.x) {
    float x[kEach];
    bool inside[kEach];
    double mean[kEach] = {};
#pragma unroll
    for (std::size_t j = 0; j < kEach; ++j) inside[j] = index_of(tile, j) < n;
    for (std::size_t r = 0; r < gradients.rows; ++r) {
      load(gradients.values + r * gradients.stride, n, tile, x);
      add_values(x, inside, sums);
#pragma unroll
      for (std::size_t j = 0; j < kEach; ++j) mean[j] += static_cast<double>(x[j]);
    }
    if (source.second_moment != nullptr) {
      float v[kEach];
      load(source.second_moment, n, tile, v);
#pragma unroll
      for (std::size_t j = 0; j < kEach; ++j) {
        if (inside[j])
          add_sample(format::sample_of_micro_batches(x[j], v[j], source.micro_batches), alphas, sums, bins);
      }
    } else if (source.over_rows) {
      const double w = static_cast<double>(gradients.rows);
      double squares[kEach] = {};
#pragma unroll
      for (std::size_t j = 0; j < kEach; ++j) mean[j] /= w;
      for (std::size_t r = 0; r < gradients.rows; ++r) {  // the second reading is served by the cache
        load(gradients.values + r * gradients.stride, n, tile, x);
#pragma unroll
        for (std::size_t j = 0; j < kEach; ++j) {
          const double d = static_cast<double>(x[j]) - mean[j];
          squares[j] += d * d;
        }
      }
#pragma unroll
      for (std::size_t j = 0; j < kEach; ++j) {
        if (inside[j]) add_sample(format::sample_of_workers(mean[j], squares[j], w), alphas, sums, bins);
      }
    }
  }
  const VarianceSums all = join_block(sums);
  if (threadIdx.x == 0) partial[blockIdx.x] = all;
}

/// sums := sums joined with the partial sums of all blocks. Runs as one block.
__global__ void join_kernel(const VarianceSums* partial, unsigned count, VarianceSums* sums) {
  VarianceSums own;
  for (unsigned i = threadIdx.x; i < count; i += kBlock) join_sums(own, partial[i]);
  const VarianceSums all = join_block(own);
  if (threadIdx.x == 0) join_sums(*sums, all);
}

/// Adds the rows to `sums` and their ratios to `bins` (format::kRatioBins counts). Both lie on the GPU and start as
/// zero bytes. `partial` is working memory of kVarianceBlocks entries. The work is enqueued and reads every value once
/// from memory. An element passes alphas[a] when its mean squared is above alphas[a] times its noise. With values that
/// are not finite everything but `non_finite` is meaningless.
void add_variance(Queue<Space::cuda> queue, const GradientRows& gradients, const SignalSource& source,
                  const std::array<double, 3>& alphas, VarianceSums* partial, VarianceSums* sums, std::uint64_t* bins) {
  if (gradients.elements == 0 || gradients.rows == 0) return;
  expects(gradients.rows == 1 || gradients.stride % 4 == 0, "variance: rows must lie a multiple of 4 elements apart");
  const unsigned blocks = blocks_for(gradients.elements, kTile, kVarianceBlocks);
  const std::size_t shared = kBlock * sizeof(VarianceSums);
  launch(queue, "variance", variance_kernel, {blocks, kBlock, shared}, gradients, source,
         {{alphas[0], alphas[1], alphas[2]}}, partial, reinterpret_cast<unsigned long long*>(bins));
  launch(queue, "variance sums", join_kernel, {1, kBlock, shared}, partial, blocks, sums);
}

}  // namespace
}  // namespace gradtool::cuda

namespace gradtool {
namespace {

/// Starts one kernel for every step, or for every slice when the samples are the micro-batches of its second moment.
class GpuVariance final : public VarianceAccumulator {
 public:
  GpuVariance(std::shared_ptr<AnalysisGpu> gpu, const Scope& scope, const Part& part)
      : VarianceAccumulator{source_of(scope, scope.tensors.at(part.tensor))},
        gpu_{std::move(gpu)},
        workers_{scope.workers},
        micro_batches_{static_cast<double>(scope.micro_batches)} {
    const auto take = [&](Scratch<Space::cuda> scratch) {
      bins_ = scratch.take<std::uint64_t>(format::kRatioBins);
      partial_ = scratch.take<cuda::VarianceSums>(cuda::kVarianceBlocks);
      sums_ = scratch.take<cuda::VarianceSums>(1);
      return scratch.bytes();
    };
    take(Scratch{gpu_->memory(AnalysisGpu::User::variance, take({}))});
    cuda::fill(gpu_->queue(), as_writable_bytes(bins_), 0);
    cuda::fill(gpu_->queue(), as_writable_bytes(sums_), 0);
  }

  void observe(const Slice& slice) override {
    const GpuSlice& gpu = slice.gpu;
    const bool steps = source_ == VarianceSource::workers;
    if (steps && slice.worker + 1 < workers_) return;
    const cuda::GradientRows rows{steps ? gpu.rows : gpu.rows + slice.worker * gpu.stride, steps ? workers_ : 1,
                                  gpu.elements, gpu.stride};
    cuda::SignalSource source;
    source.over_rows = steps;
    if (source_ == VarianceSource::second_moment) {
      source.second_moment = gpu.second_moment;
      source.micro_batches = micro_batches_;
    }
    cuda::add_variance(gpu.queue, rows, source, kAlphas, partial_.data(), sums_.data(), bins_.data());
  }

  void close() override {
    cuda::VarianceSums sums;
    gpu_->fetch(sums_, {&sums, 1});
    non_finite_ = sums.non_finite;
    if (non_finite_ > 0) return;
    moments_.merge(sums.moments);
    SignalRatio::Counts counts{sums.samples, sums.undefined, sums.inconsistent, {}};
    std::copy(std::begin(sums.passed), std::end(sums.passed), counts.passed.begin());
    ratio_.add(gpu_->fetch(bins_), counts);
  }

 private:
  std::shared_ptr<AnalysisGpu> gpu_;
  std::size_t workers_;
  double micro_batches_;
  View<std::uint64_t, Space::cuda> bins_;
  View<cuda::VarianceSums, Space::cuda> partial_, sums_;
};

}  // namespace

std::unique_ptr<Accumulator> start_gpu_variance(std::shared_ptr<AnalysisGpu> gpu, const Scope& scope,
                                                const Part& part) {
  return std::make_unique<GpuVariance>(std::move(gpu), scope, part);
}

}  // namespace gradtool
