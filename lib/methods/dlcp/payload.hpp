#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lib/codecs/codec.hpp"
#include "lib/codecs/layout.hpp"
#include "lib/methods/dlcp/format.hpp"

namespace gradtool {

using format::PacketHeader;

/// How a bucket is cut into packets: each tensor separately, so that only the last packet of a tensor is short.
class PacketLayout {
 public:
  struct Tensor {
    std::size_t first_element = 0;  ///< in the bucket
    std::size_t elements = 0;
    std::size_t packets = 0;
    std::size_t first_packet = 0;  ///< number of its first packet, counted over the bucket
    std::size_t offset = 0;        ///< bytes of all packets before it, headers included
    std::uint8_t layer_class = 0;
    bool back = false;  ///< whether the layer lies in the last third of the model
  };

  /// `elements_each`: float32 values in a full packet.
  PacketLayout(const Layout& bucket, std::size_t elements_each);

  [[nodiscard]] const std::vector<Tensor>& tensors() const { return tensors_; }
  /// Packets of the bucket.
  [[nodiscard]] std::size_t count() const { return count_; }
  /// Bytes of all packets when each is sent once, headers included.
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  /// Size of a payload in which every packet is sent twice.
  [[nodiscard]] std::size_t largest_payload() const {
    return sizeof(format::ChannelHeader) + format::bitmap_bytes(2 * count_) + 2 * bytes_;
  }
  /// The index in the bucket of the first element of packet number `packet` of a tensor.
  [[nodiscard]] std::size_t first_element(const Tensor& tensor, std::size_t packet) const {
    return tensor.first_element + packet * elements_each_;
  }
  [[nodiscard]] std::size_t elements(const Tensor& tensor, std::size_t packet) const {
    return packet + 1 < tensor.packets ? elements_each_ : tensor.elements - packet * elements_each_;
  }
  /// Byte offset of a packet, header included, among all packets.
  [[nodiscard]] std::size_t offset(const Tensor& tensor, std::size_t packet) const {
    return tensor.offset + packet * (sizeof(PacketHeader) + sizeof(float) * elements_each_);
  }

 private:
  std::size_t elements_each_;
  std::vector<Tensor> tensors_;
  std::size_t count_ = 0;
  std::size_t bytes_ = 0;
};

/// The outcome of one transfer for the packets of a bucket. The pointers go into the sender's scratch.
struct Transfer {
  const std::uint8_t* flags = nullptr;     ///< per packet: the flags of its header; kRetransmitted if it was sent twice
  const std::uint32_t* arrived = nullptr;  ///< bitmap over transmissions: all packets, then those sent a second time
  std::size_t transmissions = 0;
  std::size_t resent_bytes = 0;  ///< of the packets sent a second time, headers included
};

/// Writes the payload of a transfer (README.md, "Payload").
void write_payload(Queue<Space::host> queue, const PacketLayout& packets, HostView<const float> gradient,
                   std::int64_t iteration, const Transfer& transfer, HostView<std::byte> payload);

/// out += weight * the values that arrived. Throws Fault::data for a payload that does not belong to this bucket.
void add_payload(Queue<Space::host> queue, const PacketLayout& packets, HostView<const std::byte> payload, float weight,
                 HostView<float> out);

/// Elements in all transmissions, those that were lost included. Throws Fault::data as add_payload does.
[[nodiscard]] std::size_t values_in_payload(const PacketLayout& packets, HostView<const std::byte> payload);

}  // namespace gradtool
