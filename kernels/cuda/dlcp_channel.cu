#include <cuda_runtime.h>

#include "kernels/cuda/block_ops.hpp"
#include "kernels/cuda/dlcp_packets.hpp"
#include "kernels/cuda/dlcp_steps.hpp"
#include "kernels/cuda/launch.hpp"

namespace gradtool::cuda {
namespace {

using law::ChannelHeader;
using law::PacketHeader;

/// What the thread that walks the channel is handed for a packet, and leaves there.
struct Step {
  law::Draws draws;
  std::uint32_t tensor;
  std::uint32_t bytes;  ///< of data
  bool important;
  bool is_last;        ///< of its tensor
  std::uint32_t lost;  ///< as in DlcpWork; before, whether it is, where the channel remembers nothing
};

__device__ bool loses(law::LossyChannel& channel, std::size_t packet, const Step& step) {
  const double bytes = static_cast<double>(step.bytes + sizeof(PacketHeader));
  return channel.loses(packet, step.draws, bytes, step.important);
}

/// One block: all threads fetch, draw and count for the packets that one of them then walks.
__global__ void channel_kernel(DlcpPackets packets, DlcpOptions options, law::DrawKey key, DlcpWork at,
                               DlcpDelivery* delivery, ChannelHeader* header) {
  __shared__ Step steps[kThreads];
  law::LossyChannel channel{options.channel};
  const bool remembers = channel.remembers();
  DlcpDelivery sum{};  // of this thread's packets; what is sent again is thread 0's
  std::uint64_t bytes_again = 0;
  std::uint32_t again = 0;
  std::uint32_t lost = 0;  // of the tensor
  std::uint64_t missing = 0;
  // The receiver says stop when at least 1 - bound of the bytes are there.
  const auto end_tensor = [&](std::uint32_t t) {
    const double tolerated = options.bound * static_cast<double>(4 * packets.tensor[t].elements);
    const std::uint64_t whole = 4 * packets.each;
    DlcpAgain out{0, again, bytes_again};
    while (static_cast<double>(missing) > tolerated && out.count < lost) {
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
      const DlcpTensor& tensor = packets.tensor[place.tensor];
      Step& step = steps[threadIdx.x];
      if (channel.draws()) step.draws = law::draw4(key, own);
      step.tensor = place.tensor;
      step.bytes = 4 * place.count;
      step.important = at.important[own] != 0;
      step.is_last = own + 1 == tensor.before + tensor.packets;
      if (!remembers) step.lost = loses(channel, own, step) ? 1 : 0;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      for (std::size_t i = 0; i < kThreads && first + i < packets.packets; ++i) {
        Step& step = steps[i];
        const bool is_lost = remembers ? loses(channel, first + i, step) : step.lost != 0;
        step.lost = is_lost ? lost++ : DlcpWork::kArrived;
        missing += is_lost ? step.bytes : 0;
        if (step.is_last) end_tensor(step.tensor);
      }
    }
    __syncthreads();
    if (own < packets.packets) {
      const Step& step = steps[threadIdx.x];
      at.lost[own] = step.lost;
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const std::uint32_t bytes = step.important == (c == 1) ? step.bytes : 0;
        sum.sent[c] += bytes;
        sum.arrived[c] += step.lost == DlcpWork::kArrived ? bytes : 0;
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    block_sum_through(sum.sent[c], sum.sent[c]);
    block_sum_through(sum.arrived[c], sum.arrived[c]);
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

}  // namespace

void dlcp_walk_channel(Queue<Space::cuda> queue, const DlcpPackets& packets, const DlcpOptions& options,
                       const law::DrawKey& key, const DlcpWork& at, DlcpDelivery* delivery,
                       law::ChannelHeader* header) {
  launch(queue, "dlcp channel", channel_kernel, 1, packets, options, key, at, delivery, header);
}

}  // namespace gradtool::cuda
