#include "kernels/cuda/dlcp.hpp"

#include <cuda_runtime.h>

#include "kernels/cuda/dlcp_packets.hpp"
#include "kernels/cuda/grid.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/runtime.hpp"
#include "kernels/law/bitpack.hpp"
#include "lib/core/arena.hpp"

namespace gradtool::cuda {
namespace {

using law::ChannelHeader;
using law::PacketHeader;

constexpr unsigned kWarps = kThreads / schedule::kLanes;
constexpr std::uint32_t kArrived = 0xffffffffu;

/// Which of a tensor's lost packets are sent again: the first `count` of them, whole ones but for its very last.
struct Again {
  std::uint32_t count;
  std::uint32_t before;  ///< of the tensors before it
  std::uint64_t bytes_before;
};

struct Scratch {
  float* mean;               ///< of packets
  std::uint32_t* important;  ///< 0 or 1
  std::uint32_t* lost;       ///< how many of its tensor were lost before it; kArrived for one that was not
  Again* again;              ///< of tensors
  std::size_t bytes = 0;

  Scratch(std::size_t packets, std::size_t tensors, std::byte* base) {
    const auto take = [&](std::size_t size) {
      std::byte* piece = base == nullptr ? nullptr : base + bytes;
      bytes += Arena<Space::cuda>::padded_size(size);
      return piece;
    };
    mean = reinterpret_cast<float*>(take(4 * packets));
    important = reinterpret_cast<std::uint32_t*>(take(4 * packets));
    lost = reinterpret_cast<std::uint32_t*>(take(4 * packets));
    again = reinterpret_cast<Again*>(take(sizeof(Again) * tensors));
  }
};

/// Half a warp for each packet.
__global__ void means_kernel(DlcpPackets packets, const float* gradient, float* mean) {
  const unsigned half = threadIdx.x % schedule::kLanes / law::kPacketLanes;
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
    for (unsigned fold = law::kPacketLanes / 2; fold > 0; fold /= 2)
      sum += __shfl_down_sync(DeviceWarp::kAll, sum, fold);
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

/// What the thread that walks the channel is handed for a packet, and leaves there.
struct Step {
  law::Draws draws;
  std::uint32_t tensor;
  std::uint32_t bytes;  ///< of data
  std::uint32_t important;
  std::uint32_t lost;
};

/// One block: all threads fetch and draw for the packets that one of them then walks.
__global__ void channel_kernel(DlcpPackets packets, DlcpOptions options, law::DrawKey key, Scratch at,
                               DlcpDelivery* delivery, ChannelHeader* header) {
  __shared__ Step steps[kThreads];
  law::LossyChannel channel{options.channel};
  DlcpDelivery sum{};
  std::uint64_t bytes_again = 0;
  std::uint32_t again = 0;
  std::uint32_t lost = 0;  // of the tensor
  std::uint64_t missing = 0;
  // The receiver says stop when at least 1 - bound of the bytes are there.
  const auto end_tensor = [&](std::uint32_t t) {
    const double tolerated = options.bound * static_cast<double>(4 * packets.tensor[t].elements);
    const std::uint64_t whole = 4 * packets.each;
    Again out{0, again, bytes_again};
    while (out.count<lost&& static_cast<double>(missing)> tolerated) {
      const std::uint64_t bytes = missing < whole ? missing : whole;
      missing -= bytes;
      bytes_again += sizeof(PacketHeader) + bytes;
      sum.resent += bytes;
      ++out.count;
    }
    again += out.count;
    at.again[t] = out;
    lost = 0;
    missing = 0;
  };
  for (std::size_t first = 0; first < packets.packets; first += kThreads) {
    const std::size_t own = first + threadIdx.x;
    if (own < packets.packets) {
      const DlcpPlace place = place_of(packets, own);
      Step& step = steps[threadIdx.x];
      if (channel.draws()) step.draws = law::draw4(key, own);
      step.tensor = place.tensor;
      step.bytes = 4 * place.count;
      step.important = at.important[own];
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      for (std::size_t i = 0; i < kThreads && first + i < packets.packets; ++i) {
        Step& step = steps[i];
        const double bytes = static_cast<double>(step.bytes + sizeof(PacketHeader));
        const bool is_lost = channel.loses(first + i, step.draws, bytes, step.important != 0);
        step.lost = is_lost ? lost++ : kArrived;
        missing += is_lost ? step.bytes : 0;
        sum.sent[1] += step.important != 0 ? step.bytes : 0;
        sum.sent[0] += step.important != 0 ? 0 : step.bytes;
        const std::uint32_t there = is_lost ? 0 : step.bytes;
        sum.arrived[1] += step.important != 0 ? there : 0;
        sum.arrived[0] += step.important != 0 ? 0 : there;
        const DlcpTensor& tensor = packets.tensor[step.tensor];
        if (first + i + 1 == tensor.before + tensor.packets) end_tensor(step.tensor);
      }
    }
    __syncthreads();
    if (own < packets.packets) at.lost[own] = steps[threadIdx.x].lost;
    __syncthreads();
  }
  if (threadIdx.x != 0) return;
  const std::size_t transmissions = packets.packets + again;
  *header = {sizeof(ChannelHeader) + law::bitmap_bytes(transmissions) + packets.bytes + bytes_again,
             static_cast<std::uint32_t>(packets.packets), static_cast<std::uint32_t>(transmissions)};
  if (delivery == nullptr) return;
  for (int c = 0; c < 2; ++c) {
    delivery->sent[c] += sum.sent[c];
    delivery->arrived[c] += sum.arrived[c];
  }
  delivery->resent += sum.resent;
}

/// A packet by a warp, to a place that is 4-byte aligned.
__device__ void put(const PacketHeader& head, const float* x, std::uint32_t count, std::byte* to) {
  const unsigned lane = threadIdx.x % schedule::kLanes;
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
__global__ void write_kernel(DlcpPackets packets, const float* gradient, std::uint32_t iteration, Scratch at,
                             DlcpDelivery* delivery, std::byte* payload) {
  const unsigned lane = threadIdx.x % schedule::kLanes;
  const std::size_t transmissions = reinterpret_cast<const ChannelHeader*>(payload)->transmissions;
  auto* bitmap = reinterpret_cast<std::uint32_t*>(payload + sizeof(ChannelHeader));
  std::byte* once = payload + sizeof(ChannelHeader) + law::bitmap_bytes(transmissions);
  for (std::size_t w = warp_in_grid(); 32 * w < transmissions; w += warps_in_grid()) {
    const std::size_t t = 32 * w + lane;
    const bool there = t < transmissions && (t >= packets.packets || at.lost[t] == kArrived);
    const std::uint32_t word = __ballot_sync(DeviceWarp::kAll, there ? 1 : 0);
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
    const Again again = at.again[place.tensor];
    if (rank == kArrived || rank >= again.count) continue;
    if (lane == 0 && delivery != nullptr)
      atomicAdd(&delivery->arrived[head.flags], static_cast<unsigned long long>(head.bytes));
    head.flags |= PacketHeader::kRetransmitted;
    put(head, x, place.count,
        once + packets.bytes + again.bytes_before + rank * (sizeof(PacketHeader) + 4 * packets.each));
  }
}

}  // namespace

std::size_t dlcp_scratch_bytes(std::size_t packets, std::size_t tensors) {
  // Decoding needs 16 bytes for each packet that may come again, and the state of dlcp_decode.cu.
  return std::max(Scratch{packets, tensors, nullptr}.bytes, 256 + Arena<Space::cuda>::padded_size(16 * packets));
}

void dlcp_encode(Queue<Space::cuda> queue, const DlcpPackets& packets, const DlcpOptions& options,
                 const float* gradient, const law::DrawKey& key, std::uint32_t iteration, const DlcpMemory& memory,
                 std::byte* payload, std::byte* scratch) {
  const Scratch at{packets.packets, packets.tensors, scratch};
  if (packets.packets > 0) {
    launch(queue, "dlcp means", means_kernel, blocks_for(packets.packets, 2 * kWarps), packets, gradient, at.mean);
    launch(queue, "dlcp marks", marks_kernel, blocks_for(packets.tensors, 1), packets, at.mean, options.decay,
           memory.running, at.important);
  }
  launch(queue, "dlcp channel", channel_kernel, 1, packets, options, key, at, memory.delivery,
         reinterpret_cast<ChannelHeader*>(payload));
  if (packets.packets == 0) return;
  launch(queue, "dlcp write", write_kernel, blocks_for(packets.packets, kWarps), packets, gradient, iteration, at,
         memory.delivery, payload);
}

}  // namespace gradtool::cuda
