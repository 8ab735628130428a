#include "kernels/cuda/variance.hpp"

#include <cuda_runtime.h>

#include "kernels/cuda/device_warp.hpp"
#include "kernels/cuda/grid.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/law/signal_ratio.hpp"

namespace gradtool::cuda {
namespace {

constexpr unsigned kBlock = 128;  // a block joins its threads' sums in shared memory, 160 bytes each
constexpr std::size_t kEach = 8;  // values of a row that a thread holds at a time
constexpr std::size_t kTile = kBlock * kEach;

struct Alphas {
  double value[3];
};

__device__ void join_sums(VarianceSums& mine, const VarianceSums& other) {
  law::join(mine.moments, other.moments);
  mine.non_finite += other.non_finite;
  mine.samples += other.samples;
  mine.undefined += other.undefined;
  mine.inconsistent += other.inconsistent;
  for (int a = 0; a < 3; ++a) mine.passed[a] += other.passed[a];
}

/// Joins the block's sums in a fixed tree; thread 0 gets them.
__device__ VarianceSums join_block(const VarianceSums& own) {
  auto* room = reinterpret_cast<VarianceSums*>(dynamic_shared());
  room[threadIdx.x] = own;
  __syncthreads();
  for (unsigned half = kBlock / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) join_sums(room[threadIdx.x], room[threadIdx.x + half]);
    __syncthreads();
  }
  return room[0];
}

/// A thread holds two groups of four neighbours of a row of its tile.
__device__ std::size_t index_of(std::size_t tile, std::size_t j) {
  return tile * kTile + (j / 4) * (kTile / 2) + 4 * threadIdx.x + j % 4;
}

/// Values past the end are 0.
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

/// Mean first, then deviations, as on the host; all while the values are in registers.
__device__ void add_values(const float (&x)[kEach], const bool (&inside)[kEach], VarianceSums& sums) {
  law::Moments part;
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
  law::join(sums.moments, part);
}

__device__ void add_sample(const law::SignalSample& sample, const Alphas& alphas, VarianceSums& sums,
                           unsigned long long* bins) {
  ++sums.samples;
  if (!sample.consistent) {
    ++sums.inconsistent;
    return;
  }
  if (sample.mean_square == 0 && sample.variance == 0) {
    ++sums.undefined;
  } else {
    const std::uint32_t bin = law::ratio_bin(sample);
    if (bin < law::kRatioBins) atomicAdd(bins + bin, 1ull);  // what is not a number has no bin
  }
  for (int a = 0; a < 3; ++a) sums.passed[a] += sample.mean_square > alphas.value[a] * sample.threshold ? 1 : 0;
}

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
        if (inside[j]) add_sample(law::sample_of_micro_batches(x[j], v[j], source.micro_batches), alphas, sums, bins);
      }
    } else if (source.over_rows) {
      const double w = static_cast<double>(gradients.rows);
      double squares[kEach] = {};
#pragma unroll
      for (std::size_t j = 0; j < kEach; ++j) mean[j] /= w;
      for (std::size_t r = 0; r < gradients.rows; ++r) {  // from cache
        load(gradients.values + r * gradients.stride, n, tile, x);
#pragma unroll
        for (std::size_t j = 0; j < kEach; ++j) {
          const double d = static_cast<double>(x[j]) - mean[j];
          squares[j] += d * d;
        }
      }
#pragma unroll
      for (std::size_t j = 0; j < kEach; ++j) {
        if (inside[j]) add_sample(law::sample_of_workers(mean[j], squares[j], w), alphas, sums, bins);
      }
    }
  }
  const VarianceSums all = join_block(sums);
  if (threadIdx.x == 0) partial[blockIdx.x] = all;
}

/// One block.
__global__ void join_kernel(const VarianceSums* partial, unsigned count, VarianceSums* sums) {
  VarianceSums own;
  for (unsigned i = threadIdx.x; i < count; i += kBlock) join_sums(own, partial[i]);
  const VarianceSums all = join_block(own);
  if (threadIdx.x == 0) join_sums(*sums, all);
}

}  // namespace

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

}  // namespace gradtool::cuda
