#include <cuda_runtime.h>

#include <limits>

#include "kernels/cuda/block_sums.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/warp.hpp"
#include "lib/methods/fft/gpu.hpp"

namespace gradtool::cuda {
namespace {

/// Counts the components outside of the range in use.
__global__ void outside_kernel(DeviceCalibrationState* device, const float* values, std::size_t count,
                               const std::uint32_t* largest, float unit) {
  const CalibrationState& state = device->state;
  if (!state.exceeded_by(*largest, unit)) return;
  const float limit = state.range / unit;
  std::uint32_t outside = 0;
  for (std::size_t i = thread_in_grid(); i < count; i += threads_in_grid()) {
    const float magnitude = format::float_of(format::bits_of(values[i]) & 0x7fffffffu);
    outside += magnitude > limit ? 1u : 0u;
  }
  outside = __reduce_add_sync(kAllLanes, outside);
  if (lane_in_warp() == 0 && outside != 0) atomicAdd(&device->outside, outside);
}

/// One block: thread 0 decides on the step, then all threads store its samples.
__global__ void decide_kernel(Calibration calibration, const float* values, std::size_t count,
                              const std::uint32_t* largest, float unit) {
  __shared__ std::uint32_t first_sample;
  __shared__ bool learns;
  if (threadIdx.x == 0) {
    DeviceCalibrationState& device = *calibration.device;
    device.step = device.state.next(calibration.rules, *largest, unit, device.outside, count);
    device.outside = 0;
    first_sample = device.step.first_sample;
    learns = device.step.learns;
  }
  __syncthreads();
  if (!learns) return;
  const std::size_t samples = CalibrationState::samples_of(count);
  for (std::size_t i = threadIdx.x; i < samples; i += kThreads)
    calibration.samples[first_sample + i] = unit * values[i * count / samples];
}

/// Runs when a calibration is complete: a block for each m adds up the squared error of its format over the samples.
__global__ void errors_kernel(Calibration calibration, const __grid_constant__ format::RangeFormats formats) {
  const CalibrationState& state = calibration.device->state;
  const unsigned mantissa = blockIdx.x;
  if (!calibration.device->step.completes) return;
  double error = 0.0;
  if (formats.has(mantissa)) {
    const format::RangeFloat format = formats.format[mantissa];
    for (std::uint32_t i = threadIdx.x; i < state.samples; i += kThreads) {
      const float x = calibration.samples[i] / state.range;
      const double difference = static_cast<double>(x) - static_cast<double>(format.decode(format.encode(x)));
      error += difference * difference;
    }
  }
  error = block_sum(error);
  if (threadIdx.x == 0)
    calibration.errors[mantissa] = formats.has(mantissa) ? error : std::numeric_limits<double>::infinity();
}

/// Runs when a calibration is complete: one thread takes the m with the least error.
__global__ void choose_kernel(Calibration calibration) {
  if (threadIdx.x != 0 || !calibration.device->step.completes) return;
  std::uint32_t best = calibration.rules.first_mantissa;
  double least = std::numeric_limits<double>::infinity();
  for (std::uint32_t m = 0; m < format::RangeFormats::kMantissas; ++m) {
    if (calibration.errors[m] >= least) continue;
    least = calibration.errors[m];
    best = m;
  }
  calibration.device->state.mantissa = best;
}

}  // namespace

void calibrate(Queue<Space::cuda> queue, const Calibration& calibration, const format::RangeFormats& formats,
               const float* values, std::size_t count, const std::uint32_t* largest, float unit) {
  launch(queue, "fft outside", outside_kernel, blocks_for(count, 8 * kThreads, 1024), calibration.device, values, count,
         largest, unit);
  launch(queue, "fft decide", decide_kernel, 1, calibration, values, count, largest, unit);
  if (!calibration.chooses_mantissa) return;
  launch(queue, "fft errors", errors_kernel, format::RangeFormats::kMantissas, calibration, formats);
  launch(queue, "fft choose m", choose_kernel, {1, kWarpSize}, calibration);
}

}  // namespace gradtool::cuda
