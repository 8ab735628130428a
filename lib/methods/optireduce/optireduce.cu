// OptiReduce on a GPU: sums equal those of optireduce.cpp, bit by bit.
#include <cuda_runtime.h>

#include <algorithm>
#include <bit>

#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/warp.hpp"
#include "kernels/float_bits.hpp"
#include "lib/methods/optireduce/reducer.hpp"

namespace gradtool {
namespace cuda {
namespace {

constexpr std::size_t kSigns = 128;  ///< elements whose signs one call of draw4 gives
constexpr unsigned kWarps = kThreads / kWarpSize;

/// A warp for each kSigns elements: every lane draws their signs, and turns one element of each word.
__global__ void turn_kernel(bool turns, format::DrawKey key, float factor, const float* from, std::size_t n,
                            float* to) {
  const unsigned lane = lane_in_warp();
  for (std::size_t group = warp_in_grid(); kSigns * group < n; group += warps_in_grid()) {
    format::Draws signs{};
    if (turns) signs = format::draw4(key, group);
#pragma unroll
    for (unsigned word = 0; word < 4; ++word) {
      const std::size_t i = kSigns * group + kWarpSize * word + lane;
      if (i >= n) continue;
      const std::uint32_t sign = signs.bits[word] >> lane << 31;
      to[i] = format::one_nan(format::float_of(format::bits_of(factor * from[i]) ^ sign));
    }
  }
}

/// `Stages` stages of the transform at once, the first of which joins rows that are h apart: a thread has the 2^Stages
/// rows of one column that they join in its registers.
template <int Stages>
__global__ void transform_kernel(float* x, std::size_t columns, std::size_t h, std::size_t threads) {
  constexpr unsigned kRows = 1u << Stages;
  for (std::size_t t = thread_in_grid(); t < threads; t += threads_in_grid()) {
    const std::size_t column = t % columns;
    const std::size_t joined = t / columns;  // which rows, counted from the first
    float* first = x + (joined / h * h * kRows + joined % h) * columns + column;
    float row[kRows];
#pragma unroll
    for (unsigned i = 0; i < kRows; ++i) row[i] = first[i * h * columns];
#pragma unroll
    for (unsigned apart = 1; apart < kRows; apart *= 2) {
#pragma unroll
      for (unsigned i = 0; i < kRows; ++i) {
        if ((i & apart) != 0) continue;
        const float sum = row[i] + row[i + apart];
        row[i + apart] = row[i] - row[i + apart];
        row[i] = sum;
      }
    }
#pragma unroll
    for (unsigned i = 0; i < kRows; ++i) first[i * h * columns] = row[i];
  }
}

__global__ void mark_kernel(format::MessageLoss message, std::size_t packets, std::uint8_t* lost) {
  for (std::size_t i = thread_in_grid(); i < packets; i += threads_in_grid()) lost[i] = message.loses(i) ? 1 : 0;
}

/// A thread for each element, which adds in the order of `received`.
__global__ void average_kernel(float* values, std::size_t n, std::size_t each, const float* received,
                               std::size_t others, const std::uint8_t* lost, bool over_all) {
  const std::size_t packets = (n + each - 1) / each;
  for (std::size_t i = thread_in_grid(); i < n; i += threads_in_grid()) {
    const std::uint8_t* lost_here = lost + i / each;
    float sum = values[i];
    std::size_t arrived = 1;
    for (std::size_t k = 0; k < others; ++k) {
      if (lost_here[k * packets] != 0) continue;
      sum = format::one_nan(sum + received[k * n + i]);
      ++arrived;
    }
    values[i] = sum * (1.0f / static_cast<float>(over_all ? others + 1 : arrived));
  }
}

/// A warp for each packet.
__global__ void zero_lost_kernel(format::MessageLoss message, float* values, std::size_t n, std::size_t each) {
  for (std::size_t packet = warp_in_grid(); packet * each < n; packet += warps_in_grid()) {
    if (!message.loses(packet)) continue;
    const std::size_t end = (packet + 1) * each < n ? (packet + 1) * each : n;
    for (std::size_t i = packet * each + lane_in_warp(); i < end; i += kWarpSize) values[i] = 0.0f;
  }
}

}  // namespace
}  // namespace cuda

namespace {

using cuda::blocks_for;
using cuda::kThreads;
using cuda::launch;

/// The steps of OptireduceReducer on a GPU.
struct CudaSteps {
  static void turn(Queue<Space::cuda> queue, const format::DrawKey* key, float factor,
                   View<const float, Space::cuda> from, View<float, Space::cuda> to) {
    if (from.empty()) return;
    launch(queue, "optireduce turn", cuda::turn_kernel, blocks_for(from.size(), cuda::kSigns * cuda::kWarps),
           key != nullptr, key != nullptr ? *key : format::DrawKey{}, factor, from.data(), from.size(), to.data());
  }

  /// Sixteen rows at a time: a vector of blocks of 1024 is read and written three times.
  static void transform(Queue<Space::cuda> queue, const format::RotationShape& shape, View<float, Space::cuda> x) {
    if (x.empty()) return;
    int left = std::countr_zero(shape.order);
    for (std::size_t h = 1; left > 0;) {
      const int stages = std::min(left, 4);
      const std::size_t threads = x.size() >> stages;
      constexpr decltype(&cuda::transform_kernel<1>) kKernels[] = {
          cuda::transform_kernel<1>, cuda::transform_kernel<2>, cuda::transform_kernel<3>, cuda::transform_kernel<4>};
      launch(queue, "optireduce transform", kKernels[stages - 1], blocks_for(threads, kThreads), x.data(),
             shape.columns, h, threads);
      h <<= stages;
      left -= stages;
    }
  }

  static void mark(Queue<Space::cuda> queue, const format::MessageLoss& message, std::size_t packets,
                   std::uint8_t* lost) {
    if (packets == 0) return;
    launch(queue, "optireduce mark", cuda::mark_kernel, blocks_for(packets, kThreads), message, packets, lost);
  }

  static void average(Queue<Space::cuda> queue, const OptireduceShard<Space::cuda>& shard,
                      View<const float, Space::cuda> received, const std::uint8_t* lost, bool over_all) {
    const std::size_t n = shard.values.size();
    if (n == 0) return;
    launch(queue, "optireduce average", cuda::average_kernel, blocks_for(n, kThreads), shard.values.data(), n,
           shard.each, received.data(), received.size() / n, lost, over_all);
  }

  static void zero_lost(Queue<Space::cuda> queue, const format::MessageLoss& message,
                        const OptireduceShard<Space::cuda>& shard) {
    if (shard.values.empty()) return;
    launch(queue, "optireduce lost means", cuda::zero_lost_kernel, blocks_for(shard.packets(), cuda::kWarps), message,
           shard.values.data(), shard.values.size(), shard.each);
  }
};

}  // namespace

extern constinit const GpuFactories optireduce_gpu{
    .reducer = make_method_reducer<Space::cuda, OptireduceReducer<Space::cuda, CudaSteps>>};

}  // namespace gradtool
