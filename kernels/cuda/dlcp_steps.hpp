#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/dlcp.hpp"
#include "kernels/cuda/scratch_pieces.hpp"

/// The steps that kernels/cuda/dlcp.cu puts together, enqueued.
namespace gradtool::cuda {

/// Which of a tensor's lost packets are sent again: the first `count` of them, whole ones but for its very last.
struct DlcpAgain {
  std::uint32_t count;
  std::uint32_t before;  ///< of the tensors before it
  std::uint64_t bytes_before;
};

/// Pieces of the scratch, and what one step finds out there for the next.
struct DlcpWork {
  static constexpr std::uint32_t kArrived = 0xffffffffu;

  DlcpWork(std::size_t packets, std::size_t tensors, View<std::byte, Space::cuda> scratch) {
    ScratchPieces pieces{scratch};
    pieces.take(mean, packets);
    pieces.take(important, packets);
    pieces.take(lost, packets);
    pieces.take(again, tensors);
    bytes = pieces.bytes();
  }
  float* mean;               ///< of packets: of magnitudes
  std::uint32_t* important;  ///< 0 or 1
  std::uint32_t* lost;       ///< how many of its tensor were lost before it; kArrived for one that was not
  DlcpAgain* again;          ///< of tensors
  std::size_t bytes;
};

/// at.mean and at.important; `running` moves, unless it is null. dlcp_marks.cu.
void dlcp_mark(Queue<Space::cuda> queue, const DlcpPackets& packets, const float* gradient, float decay,
               law::RunningMedian* running, const DlcpWork& at);
/// at.lost and at.again, and the payload's header; adds to *delivery, unless it is null. dlcp_channel.cu.
void dlcp_walk_channel(Queue<Space::cuda> queue, const DlcpPackets& packets, const DlcpOptions& options,
                       const law::DrawKey& key, const DlcpWork& at, DlcpDelivery* delivery, law::ChannelHeader* header);

/// Scratch of decoding.
[[nodiscard]] std::size_t dlcp_decode_scratch_bytes(std::size_t packets);

}  // namespace gradtool::cuda
