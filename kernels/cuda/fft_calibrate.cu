#include "kernels/cuda/fft_calibrate.hpp"

#include <cuda_runtime.h>

#include <limits>

#include "kernels/cuda/block_sum.hpp"
#include "kernels/cuda/device_warp.hpp"
#include "kernels/cuda/grid.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/schedule/fft_codes.hpp"

namespace gradtool::cuda {
namespace {

constexpr double kSaturatedShare = 1e-4;

/// How many components lie outside of the range in use.
__global__ void above_kernel(Calibration by, const float* values, std::size_t count, const std::uint32_t* largest,
                             float unit) {
  const float range = by.state->range;
  if (!(range > 0.0f) || !(law::float_of(*largest) * unit > range)) return;
  const float limit = range / unit;
  std::uint32_t above = 0;
  for (std::size_t i = thread_in_grid(); i < count; i += threads_in_grid()) {
    const float size = law::float_of(law::bits_of(values[i]) & 0x7fffffffu);
    above += size > limit ? 1u : 0u;
  }
  above = __reduce_add_sync(kAllLanes, above);
  if (threadIdx.x % schedule::kLanes == 0 && above != 0) atomicAdd(&by.state->above, above);
}

/// The first of a calibration's steps is ahead.
__device__ void start(const Calibration& by, CalibrationState& state) {
  state.range = 0.0f;
  state.largest = 0.0f;
  state.sampled = 0;
  state.steps_left = by.steps;
  state.mantissa = by.mantissa;
}

/// One block; thread 0 decides, in the host's order.
__global__ void decide_kernel(Calibration by, const float* values, std::size_t count, const std::uint32_t* largest,
                              float unit) {
  __shared__ std::uint32_t first_sample;
  __shared__ bool learns;
  const std::size_t take = count < Calibration::kSamples ? count : Calibration::kSamples;
  if (threadIdx.x == 0) {
    CalibrationState& state = *by.state;
    if (state.started == 0) {
      start(by, state);
      state.started = 1;
    }
    const schedule::Scaling own = schedule::scaling_of(*largest, unit, true, true);
    learns = false;
    state.finished = 0;
    if (own.scale > 0.0f && state.range > 0.0f && own.scale > state.range &&
        static_cast<double>(state.above) > kSaturatedShare * static_cast<double>(count)) {
      ++state.recalibrations;
      start(by, state);
    }
    state.above = 0;
    state.factor = own.factor;
    state.scale = own.scale;
    state.coded_with = state.mantissa;
    if (own.scale > 0.0f && state.range > 0.0f) {
      state.factor = unit / state.range;
      state.scale = state.range;
    } else if (own.scale > 0.0f) {  // else zeros, or not finite: nothing to learn from
      learns = true;
      first_sample = state.sampled;
      state.sampled += static_cast<std::uint32_t>(take);
      const float here = unit * law::float_of(*largest);
      state.largest = here > state.largest ? here : state.largest;
      if (--state.steps_left == 0) {
        state.range = state.largest;
        state.finished = by.choose ? 1u : 0u;
      }
    }
  }
  __syncthreads();
  if (!learns) return;
  for (std::size_t i = threadIdx.x; i < take; i += kThreads)
    by.samples[first_sample + i] = unit * values[i * count / take];
}

/// A block for every m: the squared error over the samples.
__global__ void errors_kernel(Calibration by, const __grid_constant__ law::RangeFormats formats) {
  const CalibrationState& state = *by.state;
  if (state.finished == 0) return;
  double error = 0.0;
  if (formats.has(blockIdx.x)) {
    const law::RangeFloat format = formats.format[blockIdx.x];
    for (std::uint32_t i = threadIdx.x; i < state.sampled; i += kThreads) {
      const float x = by.samples[i] / state.range;
      const double off = static_cast<double>(x) - static_cast<double>(format.decode(format.encode(x)));
      error += off * off;
    }
  }
  error = block_sum(error);
  if (threadIdx.x == 0)
    by.errors[blockIdx.x] = formats.has(blockIdx.x) ? error : std::numeric_limits<double>::infinity();
}

/// One thread.
__global__ void choose_kernel(Calibration by) {
  if (threadIdx.x != 0 || by.state->finished == 0) return;
  std::uint32_t best = by.mantissa;
  double least = std::numeric_limits<double>::infinity();
  for (std::uint32_t m = 0; m < law::RangeFormats::kMantissas; ++m) {
    if (by.errors[m] >= least) continue;
    least = by.errors[m];
    best = m;
  }
  by.state->mantissa = best;
  by.state->finished = 0;
}

}  // namespace

void calibrate(Queue<Space::cuda> queue, const Calibration& by, const law::RangeFormats& formats, const float* values,
               std::size_t count, const std::uint32_t* largest, float unit) {
  launch(queue, "fft above", above_kernel, blocks_for(count, 8 * kThreads, 1024), by, values, count, largest, unit);
  launch(queue, "fft decide", decide_kernel, 1, by, values, count, largest, unit);
  if (!by.choose) return;
  launch(queue, "fft errors", errors_kernel, law::RangeFormats::kMantissas, by, formats);
  launch(queue, "fft choose m", choose_kernel, {1, schedule::kLanes}, by);
}

}  // namespace gradtool::cuda
