#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/law/dlcp.hpp"
#include "kernels/law/lossy_channel.hpp"
#include "lib/core/view.hpp"

/// dlcp on the GPU, the bytes of lib/codecs/dlcp.cpp. Enqueued. The channel is a chain from packet to packet, so one
/// thread walks it; everything else is done by all.
namespace gradtool::cuda {

struct DlcpTensor {
  std::uint64_t first = 0;  ///< element
  std::uint64_t elements = 0;
  std::uint64_t packets = 0;
  std::uint64_t before = 0;  ///< packets of the tensors before it
  std::uint64_t offset = 0;  ///< bytes of those, headers included
  std::uint32_t layer_class = 0;
  std::uint32_t back = 0;  ///< in the last third of the model
};

/// How a unit is cut into packets; `tensor` is in device memory.
struct DlcpPackets {
  const DlcpTensor* tensor = nullptr;
  std::size_t tensors = 0;
  std::size_t each = 0;     ///< elements of a whole packet
  std::size_t packets = 0;  ///< of all tensors
  std::size_t bytes = 0;    ///< of all of them, headers included
};

struct DlcpOptions {
  law::LossyChannel::Options channel;
  double bound = 0.0;  ///< share of a tensor's bytes that may stay lost
  float decay = 0.0f;
};

/// Bytes of data, by class, since the last reset.
struct DlcpDelivery {
  unsigned long long sent[2];     ///< [important]
  unsigned long long arrived[2];  ///< [important]
  unsigned long long resent;
};

/// What a rank keeps between steps, in device memory; null for an encoder without a memory.
struct DlcpMemory {
  law::RunningMedian* running = nullptr;  ///< one for each tensor
  DlcpDelivery* delivery = nullptr;
};

/// Scratch of both calls.
[[nodiscard]] std::size_t dlcp_scratch_bytes(std::size_t packets, std::size_t tensors);

/// Writes a whole payload, which says its own size. Reads the gradient twice.
void dlcp_encode(Queue<Space::cuda> queue, const DlcpPackets& packets, const DlcpOptions& options,
                 const float* gradient, const law::DrawKey& key, std::uint32_t iteration, const DlcpMemory& memory,
                 std::byte* payload, View<std::byte, Space::cuda> scratch);

/// out[i] += weight * what arrived. The payload's size is read on the GPU and is at most payload.size(). Where the
/// header or the packets sent again are none that dlcp writes, NaN is added to everything.
void dlcp_decode_add(Queue<Space::cuda> queue, const DlcpPackets& packets, View<const std::byte, Space::cuda> payload,
                     float weight, float* out, View<std::byte, Space::cuda> scratch);

}  // namespace gradtool::cuda
