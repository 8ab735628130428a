#include <cuda_runtime.h>

#include "kernels/cuda/block_ops.hpp"
#include "kernels/cuda/dlcp_packets.hpp"
#include "kernels/cuda/dlcp_steps.hpp"
#include "kernels/cuda/launch.hpp"

namespace gradtool::cuda {
namespace {

using law::ChannelHeader;
using law::PacketHeader;

/// What the payload turns out to be.
struct Found {
  std::uint64_t once;   ///< where packets start
  std::uint32_t again;  ///< packets sent again
  std::uint32_t valid;
};

/// A packet sent again: its number among those of all tensors, and where it lies.
struct alignas(16) Repeated {
  std::uint64_t number;
  std::uint64_t at;
};

/// Pieces of the scratch.
struct Work {
  Work(std::size_t packets, View<std::byte, Space::cuda> scratch) {
    ScratchPieces pieces{scratch};
    pieces.take(found, 1);
    pieces.take(repeated, packets);
    bytes = pieces.bytes();
  }
  Found* found;
  Repeated* repeated;  ///< each packet may come again
  std::size_t bytes;
};

/// Whether the packet at `at` can be one sent again, in a payload of `bytes`; where it can, which one and how long.
__device__ bool readable(const DlcpPackets& packets, const std::byte* payload, std::uint64_t bytes, std::uint64_t at,
                         const std::uint32_t* arrived, std::uint64_t* number, std::uint32_t* size) {
  if (at + sizeof(PacketHeader) > bytes) return false;
  const auto* words = reinterpret_cast<const std::uint32_t*>(payload + at);
  const std::uint32_t tensor = words[2];
  const std::uint32_t packet = words[3];
  if (words[0] != PacketHeader::kMagic || tensor >= packets.tensors) return false;
  const DlcpTensor& own = packets.tensor[tensor];
  if (packet >= own.packets) return false;
  *number = own.before + packet;
  *size = 4 * elements_in(own, packets.each, packet);
  return (words[4] & 0xffffu) == *size && at + sizeof(PacketHeader) + *size <= bytes && !law::bit_of(arrived, *number);
}

/// One warp: the header, and then the chain of packets sent again. Nearly all of them are whole, so 32 are looked at
/// where they lie if they are; a short one, the last of its tensor, makes the next 32 start behind it.
__global__ void look_kernel(DlcpPackets packets, const std::byte* payload, std::uint64_t room, Found* found,
                            Repeated* repeated) {
  const unsigned lane = threadIdx.x % schedule::kLanes;
  const ChannelHeader header = *reinterpret_cast<const ChannelHeader*>(payload);
  Found out{sizeof(ChannelHeader) + law::bitmap_bytes(header.transmissions), 0, 0};
  const bool fits = header.packets == packets.packets && header.transmissions >= header.packets &&
                    header.transmissions <= 2 * std::uint64_t{header.packets} && header.bytes <= room &&
                    header.bytes >= out.once + packets.bytes;
  if (fits) {
    out.again = header.transmissions - header.packets;
    const auto* arrived = reinterpret_cast<const std::uint32_t*>(payload + sizeof(ChannelHeader));
    const std::uint64_t whole = sizeof(PacketHeader) + 4 * packets.each;
    std::uint64_t at = out.once + packets.bytes;
    std::uint64_t next = 0;  // packets of all tensors that may come again
    std::uint32_t done = 0;
    while (done < out.again) {
      const std::uint64_t own = at + lane * whole;
      std::uint64_t number = 0;
      std::uint32_t size = 0;
      bool good = done + lane < out.again && readable(packets, payload, header.bytes, own, arrived, &number, &size);
      const std::uint64_t before = __shfl_up_sync(kAllLanes, number, 1);
      good = good && number >= (lane == 0 ? next : before + 1);
      const bool full = size == 4 * packets.each;
      const unsigned all_good = __ballot_sync(kAllLanes, good ? 1 : 0);
      const unsigned not_full = ~__ballot_sync(kAllLanes, good && full ? 1 : 0);
      // Lanes up to the first that is not a whole one, and that one if it is short but good.
      const unsigned leading = not_full == 0 ? 32u : static_cast<unsigned>(__ffs(static_cast<int>(not_full)) - 1);
      const unsigned taken = leading < 32 && (all_good >> leading & 1u) != 0 ? leading + 1 : leading;
      if (taken == 0) break;
      if (lane < taken) repeated[done + lane] = {number, own};
      const std::uint64_t end = own + sizeof(PacketHeader) + size;
      at = __shfl_sync(kAllLanes, end, static_cast<int>(taken - 1));
      next = __shfl_sync(kAllLanes, number, static_cast<int>(taken - 1)) + 1;
      done += taken;
    }
    out.valid = done == out.again && at == header.bytes ? 1 : 0;
  }
  if (lane == 0) *found = out;
}

/// A warp for each packet, once or again: every element is in one of them at most.
__global__ void add_kernel(DlcpPackets packets, const std::byte* payload, const Found* found, const Repeated* repeated,
                           float weight, float* out) {
  const unsigned lane = threadIdx.x % schedule::kLanes;
  const Found at = *found;
  const auto* arrived = reinterpret_cast<const std::uint32_t*>(payload + sizeof(ChannelHeader));
  const std::size_t all = packets.packets + (at.valid != 0 ? at.again : 0);
  for (std::size_t t = warp_in_grid(); t < all; t += warps_in_grid()) {
    const bool once = t < packets.packets;
    if (at.valid != 0 && once && !law::bit_of(arrived, t)) continue;
    const Repeated again = once ? Repeated{t, 0} : repeated[t - packets.packets];
    const DlcpPlace place = place_of(packets, again.number);
    float* to = out + first_of(packets, place);
    if (at.valid == 0) {
      for (std::uint32_t i = lane; i < place.count; i += schedule::kLanes) to[i] += law::float_of(0x7fc00000u);
      continue;
    }
    const std::size_t from = once ? at.once + offset_of(packets, place) : again.at;
    const auto* x = reinterpret_cast<const float*>(payload + from + sizeof(PacketHeader));
#pragma unroll 4
    for (std::uint32_t i = lane; i < place.count; i += schedule::kLanes) to[i] += weight * x[i];
  }
}

}  // namespace

std::size_t dlcp_decode_scratch_bytes(std::size_t packets) {
  return Work{packets, {}}.bytes;
}

void dlcp_decode_add(Queue<Space::cuda> queue, const DlcpPackets& packets, View<const std::byte, Space::cuda> payload,
                     float weight, float* out, View<std::byte, Space::cuda> scratch) {
  if (packets.packets == 0) return;
  const Work at{packets.packets, scratch};
  launch(queue, "dlcp look", look_kernel, {1, schedule::kLanes}, packets, payload.data(), payload.size(), at.found,
         at.repeated);
  launch(queue, "dlcp add", add_kernel, blocks_for(packets.packets, kBlockWarpCount), packets, payload.data(), at.found,
         at.repeated, weight, out);
}

}  // namespace gradtool::cuda
