#pragma once

#include "kernels/cuda/device_warp.hpp"
#include "kernels/cuda/dlcp.hpp"

/// Where packets lie. For .cu files.
namespace gradtool::cuda {

/// A packet among those of all tensors.
struct DlcpPlace {
  std::uint32_t tensor;
  std::uint32_t packet;  ///< in the tensor
  std::uint32_t count;   ///< elements
};

/// Elements of packet `packet` of a tensor: the last one is short.
__device__ inline std::uint32_t elements_in(const DlcpTensor& tensor, std::size_t each, std::size_t packet) {
  return static_cast<std::uint32_t>(packet + 1 < tensor.packets ? each : tensor.elements - packet * each);
}

__device__ inline DlcpPlace place_of(const DlcpPackets& packets, std::size_t number) {
  std::size_t low = 0;
  std::size_t high = packets.tensors;  // the last tensor that starts at or before `number` is the one that has it
  while (low + 1 < high) {
    const std::size_t middle = (low + high) / 2;
    (packets.tensor[middle].before <= number ? low : high) = middle;
  }
  const DlcpTensor& tensor = packets.tensor[low];
  const std::size_t packet = number - tensor.before;
  return {static_cast<std::uint32_t>(low), static_cast<std::uint32_t>(packet),
          elements_in(tensor, packets.each, packet)};
}

/// Element that a packet starts with.
__device__ inline std::size_t first_of(const DlcpPackets& packets, const DlcpPlace& place) {
  return packets.tensor[place.tensor].first + place.packet * packets.each;
}

/// Where a packet lies behind the bitmap.
__device__ inline std::size_t offset_of(const DlcpPackets& packets, const DlcpPlace& place) {
  return packets.tensor[place.tensor].offset + place.packet * (sizeof(law::PacketHeader) + 4 * packets.each);
}

}  // namespace gradtool::cuda
