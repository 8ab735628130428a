#include "kernels/cuda/dgc.hpp"

#include <cuda_runtime.h>

#include <cmath>

#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/select_digits.hpp"
#include "kernels/law/keep_nan.hpp"

namespace gradtool::cuda {
namespace {

constexpr unsigned kMostBlocks = 4096;
constexpr std::size_t kNormPiece = law::kDgcNormPiece;
constexpr unsigned kNormLanes = law::kDgcNormLanes;

/// Sums of squares of pieces, in the order of law::kDgcNormLanes. Half a warp for a piece.
__global__ void squares_kernel(const float* x, std::size_t n, double* sums) {
  const unsigned lane = threadIdx.x % kNormLanes;
  const std::size_t pieces = (n + kNormPiece - 1) / kNormPiece;
  // Both halves of a warp go round together, so that all lanes meet in the shuffles.
  for (std::size_t pair = warp_in_grid(); 2 * pair < pieces; pair += warps_in_grid()) {
    const std::size_t piece = 2 * pair + threadIdx.x % schedule::kLanes / kNormLanes;
    const std::size_t first = piece * kNormPiece;
    const std::size_t count = piece >= pieces ? 0 : n - first < kNormPiece ? n - first : kNormPiece;
    const std::size_t whole = count / kNormLanes * kNormLanes;
    double own = 0.0;
#pragma unroll 8
    for (std::size_t i = lane; i < whole; i += kNormLanes)
      own += static_cast<double>(x[first + i]) * static_cast<double>(x[first + i]);
    if (lane == 0) {
      for (std::size_t i = whole; i < count; ++i)
        own += static_cast<double>(x[first + i]) * static_cast<double>(x[first + i]);
    }
    double sum = 0.0;
    for (unsigned from = 0; from < kNormLanes; ++from)
      sum += __shfl_sync(kAllLanes, own, static_cast<int>(from), kNormLanes);
    if (lane == 0 && piece < pieces) sums[piece] = sum;
  }
}

/// One block.
__global__ void scale_kernel(const double* sums, std::size_t pieces, double limit, float* scale) {
  const double sum = block_sum_in_order(sums, 0, pieces);
  if (threadIdx.x != 0) return;
  const double norm = std::sqrt(sum);
  *scale = norm > limit ? static_cast<float>(limit / norm) : 1.0F;
}

__global__ void accumulate_kernel(const DgcPiece* pieces, std::size_t count, law::Dgc law, const float* g,
                                  DgcState state, bool aligned, SelectState* select) {
  __shared__ std::uint32_t counters[kCopies * SelectState::kCounters];
  clear_counters(counters, kCopies * SelectState::kCounters);
  std::uint32_t* own = counters + threadIdx.x % kCopies;
  if (state.scale != nullptr) law.scale = *state.scale;
  const auto step = [&](float gradient, float& u, float& v) {
    const law::Dgc::Step next = law.step(gradient, u);
    u = next.u;
    v = law::one_nan(v + next.increment);
    count_top_digit<kCopies>(__float_as_uint(v), own);
  };
  for (std::size_t i = blockIdx.x; i < count; i += gridDim.x) {
    const DgcPiece piece = pieces[i];
    const float* from = g + piece.first;
    float* u = state.u + piece.first;
    float* v = state.v + piece.first;
    if (piece.dense != DgcPiece::kCompetes) {
      for (std::size_t j = threadIdx.x; j < piece.count; j += kThreads) {
        const law::Dgc::Step next = law.step(from[j], u[j]);
        u[j] = next.u;
        state.dense[piece.dense + j] = law::one_nan(next.increment);
      }
      continue;
    }
    const std::size_t fours = aligned && piece.first % 4 == 0 ? piece.count / 4 : 0;
#pragma unroll 2
    for (std::size_t j = threadIdx.x; j < fours; j += kThreads) {
      const float4 gradient = reinterpret_cast<const float4*>(from)[j];
      float4 velocity = reinterpret_cast<const float4*>(u)[j];
      float4 sum = reinterpret_cast<const float4*>(v)[j];
      step(gradient.x, velocity.x, sum.x);
      step(gradient.y, velocity.y, sum.y);
      step(gradient.z, velocity.z, sum.z);
      step(gradient.w, velocity.w, sum.w);
      reinterpret_cast<float4*>(u)[j] = velocity;
      reinterpret_cast<float4*>(v)[j] = sum;
    }
    for (std::size_t j = 4 * fours + threadIdx.x; j < piece.count; j += kThreads) {
      float velocity = u[j];
      float sum = v[j];
      step(from[j], velocity, sum);
      u[j] = velocity;
      v[j] = sum;
    }
  }
  add_counters<kCopies>(counters, SelectState::kCounters, select->counters[0]);
}

__global__ void sample_kernel(const DgcRun* runs, std::size_t count, const float* v, std::size_t start,
                              std::size_t stride, float* sample, std::size_t taken) {
  for (std::size_t i = thread_in_grid(); i < taken; i += threads_in_grid()) {
    const std::size_t at = start + i * stride;
    std::size_t run = 0;  // the last that starts at or before it
    for (std::size_t left = count; left > 1;) {
      const std::size_t half = left / 2;
      if (runs[run + half].before <= at) run += half;
      left -= half;
    }
    sample[i] = v[runs[run].first + (at - runs[run].before)];
  }
}

__global__ void add_dense_kernel(const DgcPiece* pieces, std::size_t count, const float* dense, float weight,
                                 float* out) {
  for (std::size_t i = blockIdx.x; i < count; i += gridDim.x) {
    const DgcPiece piece = pieces[i];
    if (piece.dense == DgcPiece::kCompetes) continue;
    for (std::size_t j = threadIdx.x; j < piece.count; j += kThreads)
      out[piece.first + j] += weight * dense[piece.dense + j];
  }
}

}  // namespace

std::size_t dgc_norm_bytes(std::size_t n) {
  return 8 * ((n + kNormPiece - 1) / kNormPiece);
}

void dgc_clip(Queue<Space::cuda> queue, View<const float, Space::cuda> gradient, double limit,
              View<std::byte, Space::cuda> sums, float* scale) {
  const std::size_t pieces = (gradient.size() + kNormPiece - 1) / kNormPiece;
  auto* squares = reinterpret_cast<double*>(sums.data());
  launch(queue, "dgc squares", squares_kernel, blocks_for(pieces, 2 * kBlockWarpCount), gradient.data(),
         gradient.size(), squares);
  launch(queue, "dgc scale", scale_kernel, 1, squares, pieces, limit, scale);
}

void dgc_accumulate(Queue<Space::cuda> queue, const DgcPiece* pieces, std::size_t count, law::Dgc law,
                    const float* gradient, const DgcState& state, const Select& select) {
  select.clear();
  const bool aligned = aligned_to(gradient, 16) && aligned_to(state.u, 16) && aligned_to(state.v, 16);
  launch(queue, "dgc accumulate", accumulate_kernel, blocks_for(count, 1, kMostBlocks), pieces, count, law, gradient,
         state, aligned, select.state());
}

void dgc_sample(Queue<Space::cuda> queue, const DgcRun* runs, std::size_t count, const float* v, std::size_t start,
                std::size_t stride, View<float, Space::cuda> sample) {
  launch(queue, "dgc sample", sample_kernel, blocks_for(sample.size(), kThreads), runs, count, v, start, stride,
         sample.data(), sample.size());
}

void dgc_add_dense(Queue<Space::cuda> queue, const DgcPiece* pieces, std::size_t count, const float* dense,
                   float weight, float* out) {
  launch(queue, "dgc dense", add_dense_kernel, blocks_for(count, 1, kMostBlocks), pieces, count, dense, weight, out);
}

}  // namespace gradtool::cuda
