#include "lib/methods/dlcp/payload.hpp"

#include <cstring>
#include <string>

#include "kernels/float_bits.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/core/task_pool.hpp"

namespace gradtool {

using format::bitmap_bytes;
using format::ChannelHeader;
using format::test_bit;

PacketLayout::PacketLayout(const Layout& bucket, std::size_t elements_each) : elements_each_{elements_each} {
  constexpr double kClasses = 7.0;  // A switch has eight priority queues, of which one is left to control messages.
  for (const auto& tensor : bucket.tensors) {
    const std::size_t count = (tensor.elements + elements_each_ - 1) / elements_each_;
    tensors_.push_back(
        {.first_element = tensor.first,
         .elements = tensor.elements,
         .packets = count,
         .first_packet = count_,
         .offset = bytes_,
         .layer_class = static_cast<std::uint8_t>(tensor.depth < 1.0 ? tensor.depth * kClasses : kClasses - 1.0),
         .back = tensor.depth >= 2.0 / 3.0});
    count_ += count;
    bytes_ += count * sizeof(PacketHeader) + sizeof(float) * tensor.elements;
  }
}

namespace {

[[noreturn]] void reject(const char* why) {
  throw Error{Fault::data, std::string{"dlcp payload: "} + why};
}

GT_SIMD_CLONES void add_packet(const float* x, float weight, float* out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) out[i] += weight * x[i];
}

/// Writes packet number `packet` of tensor number `number` to `destination` and returns its size, header included.
std::size_t write_packet(const PacketLayout& packets, std::size_t number, std::size_t packet,
                         HostView<const float> gradient, std::int64_t iteration, std::uint8_t flags,
                         std::byte* destination) {
  const PacketLayout::Tensor& tensor = packets.tensors()[number];
  const PacketHeader header{.iteration = static_cast<std::uint32_t>(iteration),
                            .tensor = static_cast<std::uint32_t>(number),
                            .packet = static_cast<std::uint32_t>(packet),
                            .bytes = static_cast<std::uint16_t>(sizeof(float) * packets.elements(tensor, packet)),
                            .layer_class = tensor.layer_class,
                            .flags = flags,
                            .packets = static_cast<std::uint32_t>(tensor.packets)};
  std::memcpy(destination, &header, sizeof header);
  std::memcpy(destination + sizeof header, gradient.data() + packets.first_element(tensor, packet), header.bytes);
  return sizeof header + header.bytes;
}

ChannelHeader read_header(const PacketLayout& packets, HostView<const std::byte> payload) {
  ChannelHeader header;
  if (payload.size() < sizeof header) reject("too short for its header");
  std::memcpy(&header, payload.data(), sizeof header);
  if (header.bytes != payload.size()) reject("its length is not the one it states");
  if (header.packets != packets.count() || header.transmissions < header.packets ||
      header.transmissions > 2 * std::uint64_t{header.packets})
    reject("it does not have this gradient's packets");
  const std::size_t smallest = sizeof header + bitmap_bytes(header.transmissions) + packets.bytes() +
                               (header.transmissions - header.packets) * sizeof(PacketHeader);
  if (payload.size() < smallest) reject("too short for its packets");
  return header;
}

/// Throws unless the packet at byte `offset` is packet number `packet` of tensor number `number`.
void check_packet(const PacketLayout& packets, HostView<const std::byte> payload, std::size_t offset,
                  std::size_t number, std::size_t packet, bool retransmitted) {
  const PacketLayout::Tensor& tensor = packets.tensors()[number];
  PacketHeader header;
  std::memcpy(&header, payload.data() + offset, sizeof header);
  if (header.magic != PacketHeader::kMagic || header.tensor != number || header.packet != packet ||
      header.bytes != sizeof(float) * packets.elements(tensor, packet) || header.packets != tensor.packets ||
      ((header.flags & PacketHeader::kRetransmitted) != 0) != retransmitted)
    reject("a packet is not the one that belongs there");
}

/// Adds the packets that were sent a second time. They start at byte `offset`, are in order, repeat only packets that
/// were lost the first time, and all arrive.
void add_retransmitted(const PacketLayout& packets, HostView<const std::byte> payload, const ChannelHeader& channel,
                       std::size_t offset, float weight, HostView<float> out) {
  const auto* arrived = section<std::uint32_t>(payload, sizeof channel);
  std::size_t next = 0;  // The packets must be in order: the smallest number, over the bucket, that may come next.
  for (std::size_t t = channel.packets; t < channel.transmissions; ++t) {
    PacketHeader header;
    if (payload.size() - offset < sizeof header) reject("too short for the packets sent again");
    std::memcpy(&header, payload.data() + offset, sizeof header);
    if (header.tensor >= packets.tensors().size()) reject("a packet of no tensor");
    const PacketLayout::Tensor& tensor = packets.tensors()[header.tensor];
    const std::size_t place = tensor.first_packet + header.packet;
    if (header.packet >= tensor.packets || place < next || test_bit(arrived, place) || !test_bit(arrived, t))
      reject("a packet sent again that was not lost, or out of order");
    check_packet(packets, payload, offset, header.tensor, header.packet, true);
    next = place + 1;
    offset += sizeof header;
    if (payload.size() - offset < header.bytes) reject("too short for the packets sent again");
    add_packet(section<float>(payload, offset), weight, out.data() + packets.first_element(tensor, header.packet),
               header.bytes / sizeof(float));
    offset += header.bytes;
  }
  if (offset != payload.size()) reject("bytes behind its last packet");
}

}  // namespace

void write_payload(Queue<Space::host> queue, const PacketLayout& packets, HostView<const float> gradient,
                   std::int64_t iteration, const Transfer& transfer, HostView<std::byte> payload) {
  const std::size_t base = sizeof(ChannelHeader) + bitmap_bytes(transfer.transmissions);
  const ChannelHeader header{.bytes = base + packets.bytes() + transfer.resent_bytes,
                             .packets = static_cast<std::uint32_t>(packets.count()),
                             .transmissions = static_cast<std::uint32_t>(transfer.transmissions)};
  std::memcpy(payload.data(), &header, sizeof header);
  std::memcpy(payload.data() + sizeof header, transfer.arrived, bitmap_bytes(transfer.transmissions));
  std::byte* retransmitted = payload.data() + base + packets.bytes();
  for (std::size_t number = 0; number < packets.tensors().size(); ++number) {
    const PacketLayout::Tensor& tensor = packets.tensors()[number];
    const std::uint8_t* flags = transfer.flags + tensor.first_packet;
    parallel_for(queue, tensor.packets, 1, 64, [&](std::size_t first, std::size_t last) {
      for (std::size_t i = first; i < last; ++i) {
        write_packet(packets, number, i, gradient, iteration, flags[i] & PacketHeader::kImportant,
                     payload.data() + base + packets.offset(tensor, i));
      }
    });
    for (std::size_t i = 0; i < tensor.packets; ++i) {
      if ((flags[i] & PacketHeader::kRetransmitted) != 0)
        retransmitted += write_packet(packets, number, i, gradient, iteration, flags[i], retransmitted);
    }
  }
}

void add_payload(Queue<Space::host> queue, const PacketLayout& packets, HostView<const std::byte> payload, float weight,
                 HostView<float> out) {
  const ChannelHeader header = read_header(packets, payload);
  const auto* arrived = section<std::uint32_t>(payload, sizeof header);
  const std::size_t base = sizeof header + bitmap_bytes(header.transmissions);
  for (std::size_t number = 0; number < packets.tensors().size(); ++number) {
    const PacketLayout::Tensor& tensor = packets.tensors()[number];
    parallel_for(queue, tensor.packets, 1, 64, [&](std::size_t first, std::size_t last) {
      for (std::size_t i = first; i < last; ++i) {
        const std::size_t offset = base + packets.offset(tensor, i);
        check_packet(packets, payload, offset, number, i, false);
        if (!test_bit(arrived, tensor.first_packet + i)) continue;
        add_packet(section<float>(payload, offset + sizeof(PacketHeader)), weight,
                   out.data() + packets.first_element(tensor, i), packets.elements(tensor, i));
      }
    });
  }
  add_retransmitted(packets, payload, header, base + packets.bytes(), weight, out);
}

std::size_t values_in_payload(const PacketLayout& packets, HostView<const std::byte> payload) {
  const ChannelHeader header = read_header(packets, payload);
  return (payload.size() - sizeof header - bitmap_bytes(header.transmissions) -
          sizeof(PacketHeader) * header.transmissions) /
         sizeof(float);
}

}  // namespace gradtool
