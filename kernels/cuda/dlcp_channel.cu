#include <cuda_runtime.h>

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
  std::uint32_t important;
  std::uint32_t lost;
};

/// One block: all threads fetch and draw for the packets that one of them then walks.
__global__ void channel_kernel(DlcpPackets packets, DlcpOptions options, law::DrawKey key, DlcpWork at,
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
        step.lost = is_lost ? lost++ : DlcpWork::kArrived;
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

}  // namespace

void dlcp_walk_channel(Queue<Space::cuda> queue, const DlcpPackets& packets, const DlcpOptions& options,
                       const law::DrawKey& key, const DlcpWork& at, DlcpDelivery* delivery,
                       law::ChannelHeader* header) {
  launch(queue, "dlcp channel", channel_kernel, 1, packets, options, key, at, delivery, header);
}

}  // namespace gradtool::cuda
