#include <cuda_runtime.h>

#include "kernels/cuda/block_ops.hpp"
#include "kernels/cuda/dlcp_packets.hpp"
#include "kernels/cuda/dlcp_steps.hpp"
#include "kernels/cuda/launch.hpp"

namespace gradtool::cuda {
namespace {

/// Half a warp for each packet.
__global__ void means_kernel(DlcpPackets packets, const float* gradient, float* mean) {
  const unsigned half = lane_in_warp() / law::kPacketLanes;
  const unsigned lane = threadIdx.x % law::kPacketLanes;
  for (std::size_t pair = warp_in_grid(); 2 * pair < packets.packets; pair += warps_in_grid()) {
    const std::size_t number = 2 * pair + half;
    float sum = 0.0f;
    std::uint32_t count = 0;
    if (number < packets.packets) {
      const DlcpPlace place = place_of(packets, number);
      const float* x = gradient + first_of(packets, place);
      count = place.count;
#pragma unroll 8
      for (std::uint32_t i = lane; i < count; i += law::kPacketLanes)
        sum += law::float_of(law::bits_of(x[i]) & 0x7fffffffu);
    }
#pragma unroll
    for (unsigned fold = law::kPacketLanes / 2; fold > 0; fold /= 2) sum += __shfl_down_sync(kAllLanes, sum, fold);
    if (lane == 0 && number < packets.packets) mean[number] = law::packet_mean(sum, count);
  }
}

/// A block for each tensor: its middle packet, digit by digit of the patterns, which are those of numbers >= 0.
__global__ void marks_kernel(DlcpPackets packets, const float* mean, float decay, law::RunningMedian* running,
                             std::uint32_t* important) {
  __shared__ std::uint32_t counts[256];
  __shared__ std::uint32_t found[2];  // the pattern so far, and the rank among those that begin with it
  for (std::size_t t = blockIdx.x; t < packets.tensors; t += gridDim.x) {
    const DlcpTensor tensor = packets.tensor[t];
    if (tensor.packets == 0) continue;
    const float* means = mean + tensor.before;
    if (threadIdx.x == 0) {
      found[0] = 0;
      found[1] = static_cast<std::uint32_t>(tensor.packets / 2);
    }
    for (unsigned digit = 0; digit < 4; ++digit) {
      const unsigned shift = 24 - 8 * digit;
      for (unsigned i = threadIdx.x; i < 256; i += blockDim.x) counts[i] = 0;
      __syncthreads();
      const std::uint32_t prefix = found[0];
      for (std::size_t i = threadIdx.x; i < tensor.packets; i += blockDim.x) {
        const std::uint32_t pattern = law::bits_of(means[i]);
        if (digit == 0 || pattern >> (shift + 8) == prefix) atomicAdd(&counts[pattern >> shift & 255u], 1u);
      }
      __syncthreads();
      if (threadIdx.x == 0) {
        std::uint32_t rank = found[1];
        std::uint32_t value = 0;
        for (; rank >= counts[value]; ++value) rank -= counts[value];
        found[0] = prefix << 8 | value;
        found[1] = rank;
      }
      __syncthreads();
    }
    const float middle = law::float_of(found[0]);
    const float usual = running != nullptr ? running[t].usual(middle) : middle;
    for (std::size_t i = threadIdx.x; i < tensor.packets; i += blockDim.x)
      important[tensor.before + i] = tensor.back != 0 || means[i] >= usual ? 1 : 0;
    __syncthreads();  // all have read the median of before
    if (threadIdx.x == 0 && running != nullptr) running[t].move(middle, decay);
  }
}

}  // namespace

void dlcp_mark(Queue<Space::cuda> queue, const DlcpPackets& packets, const float* gradient, float decay,
               law::RunningMedian* running, const DlcpWork& at) {
  launch(queue, "dlcp means", means_kernel, blocks_for(packets.packets, 2 * kBlockWarpCount), packets, gradient,
         at.mean);
  launch(queue, "dlcp marks", marks_kernel, blocks_for(packets.tensors, 1), packets, at.mean, decay, running,
         at.important);
}

}  // namespace gradtool::cuda
