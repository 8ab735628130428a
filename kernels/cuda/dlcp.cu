#include "kernels/cuda/dlcp.hpp"

#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/block_ops.hpp"
#include "kernels/cuda/dlcp_packets.hpp"
#include "kernels/cuda/dlcp_steps.hpp"
#include "kernels/cuda/launch.hpp"

namespace gradtool::cuda {
namespace {

using law::ChannelHeader;
using law::PacketHeader;

/// A packet by a warp, to a place that is 4-byte aligned.
__device__ void put(const PacketHeader& head, const float* x, std::uint32_t count, std::byte* to) {
  const unsigned lane = lane_in_warp();
  auto* words = reinterpret_cast<std::uint32_t*>(to);
  if (lane == 0) {
    words[0] = head.magic;
    words[1] = head.iteration;
    words[2] = head.tensor;
    words[3] = head.packet;
    words[4] =
        head.bytes | static_cast<std::uint32_t>(head.layer_class) << 16 | static_cast<std::uint32_t>(head.flags) << 24;
    words[5] = head.packets;
  }
  words += sizeof(PacketHeader) / 4;
#pragma unroll 4
  for (std::uint32_t i = lane; i < count; i += schedule::kLanes) words[i] = law::bits_of(x[i]);
}

/// Packets and the bitmap, behind the header that is there.
__global__ void write_kernel(DlcpPackets packets, const float* gradient, std::uint32_t iteration, DlcpWork at,
                             DlcpDelivery* delivery, std::byte* payload) {
  const unsigned lane = lane_in_warp();
  const std::size_t transmissions = reinterpret_cast<const ChannelHeader*>(payload)->transmissions;
  auto* bitmap = reinterpret_cast<std::uint32_t*>(payload + sizeof(ChannelHeader));
  std::byte* once = payload + sizeof(ChannelHeader) + law::bitmap_bytes(transmissions);
  for (std::size_t w = warp_in_grid(); 32 * w < transmissions; w += warps_in_grid()) {
    const std::size_t t = 32 * w + lane;
    const bool there = t < transmissions && (t >= packets.packets || at.lost[t] == DlcpWork::kArrived);
    const std::uint32_t word = __ballot_sync(kAllLanes, there ? 1 : 0);
    if (lane == 0) bitmap[w] = word;
  }
  for (std::size_t number = warp_in_grid(); number < packets.packets; number += warps_in_grid()) {
    const DlcpPlace place = place_of(packets, number);
    const DlcpTensor& tensor = packets.tensor[place.tensor];
    const float* x = gradient + first_of(packets, place);
    PacketHeader head;
    head.iteration = iteration;
    head.tensor = place.tensor;
    head.packet = place.packet;
    head.bytes = static_cast<std::uint16_t>(4 * place.count);
    head.layer_class = static_cast<std::uint8_t>(tensor.layer_class);
    head.flags = static_cast<std::uint8_t>(at.important[number]);
    head.packets = static_cast<std::uint32_t>(tensor.packets);
    put(head, x, place.count, once + offset_of(packets, place));
    const std::uint32_t rank = at.lost[number];
    const DlcpAgain again = at.again[place.tensor];
    if (rank == DlcpWork::kArrived || rank >= again.count) continue;
    if (lane == 0 && delivery != nullptr)
      atomicAdd(&delivery->arrived[head.flags], static_cast<unsigned long long>(head.bytes));
    head.flags |= PacketHeader::kRetransmitted;
    put(head, x, place.count,
        once + packets.bytes + again.bytes_before + rank * (sizeof(PacketHeader) + 4 * packets.each));
  }
}

}  // namespace

std::size_t dlcp_scratch_bytes(std::size_t packets, std::size_t tensors) {
  return std::max(DlcpWork{packets, tensors, {}}.bytes, dlcp_decode_scratch_bytes(packets));
}

void dlcp_encode(Queue<Space::cuda> queue, const DlcpPackets& packets, const DlcpOptions& options,
                 const float* gradient, const law::DrawKey& key, std::uint32_t iteration, const DlcpMemory& memory,
                 std::byte* payload, View<std::byte, Space::cuda> scratch) {
  const DlcpWork at{packets.packets, packets.tensors, scratch};
  if (packets.packets > 0) dlcp_mark(queue, packets, gradient, options.decay, memory.running, at);
  dlcp_walk_channel(queue, packets, options, key, at, memory.delivery, reinterpret_cast<ChannelHeader*>(payload));
  if (packets.packets == 0) return;
  launch(queue, "dlcp write", write_kernel, blocks_for(packets.packets, kBlockWarpCount), packets, gradient, iteration,
         at, memory.delivery, payload);
}

}  // namespace gradtool::cuda
