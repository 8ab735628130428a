#include "lib/codecs/dlcp_payload.hpp"

#include <cstring>

#include "kernels/law/hd.hpp"
#include "lib/codecs/payload.hpp"
#include "lib/core/task_pool.hpp"

namespace gradtool {
namespace {

using law::bit_of;
using law::bitmap_bytes;
using law::ChannelHeader;

[[noreturn]] void bad(const char* what) {
  throw Error{Fault::data, fmt::format("dlcp payload: {}", what)};
}

GT_SIMD_CLONES void add_packet(const float* x, float weight, float* out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) out[i] += weight * x[i];
}

PacketHeader header_of(const Packets& packets, const Packets::Tensor& tensor, std::size_t number, std::size_t packet,
                       std::int64_t iteration, std::uint8_t flags) {
  return {.iteration = static_cast<std::uint32_t>(iteration),
          .tensor = static_cast<std::uint32_t>(number),
          .packet = static_cast<std::uint32_t>(packet),
          .bytes = static_cast<std::uint16_t>(4 * packets.elements_in(tensor, packet)),
          .layer_class = tensor.layer_class,
          .flags = flags,
          .packets = static_cast<std::uint32_t>(tensor.packets)};
}

}  // namespace

void DlcpPayload::write(Queue<Space::host> queue, HostView<const float> gradient, std::int64_t iteration,
                        const DlcpSent& sent, HostView<std::byte> payload) const {
  const std::size_t base = sizeof(ChannelHeader) + bitmap_bytes(sent.transmissions);
  const ChannelHeader header{base + packets_.bytes() + sent.resent_bytes, static_cast<std::uint32_t>(packets_.count()),
                             static_cast<std::uint32_t>(sent.transmissions)};
  std::memcpy(payload.data(), &header, sizeof header);
  std::memcpy(payload.data() + sizeof header, sent.arrived, bitmap_bytes(sent.transmissions));
  const auto put = [&](const Packets::Tensor& tensor, std::size_t number, std::size_t i, std::byte* to,
                       std::uint8_t flags) {
    const PacketHeader head = header_of(packets_, tensor, number, i, iteration, flags);
    std::memcpy(to, &head, sizeof head);
    std::memcpy(to + sizeof head, gradient.data() + tensor.first + i * packets_.elements_each(), head.bytes);
    return sizeof head + head.bytes;
  };
  std::byte* again = payload.data() + base + packets_.bytes();
  std::size_t number = 0;
  for (const auto& tensor : packets_.tensors()) {
    parallel_for(queue, tensor.packets, 1, 64, [&](std::size_t first, std::size_t last) {
      for (std::size_t i = first; i < last; ++i)
        put(tensor, number, i, payload.data() + base + packets_.offset(tensor, i),
            sent.marks[tensor.before + i] & DlcpSent::kImportant);
    });
    for (std::size_t i = 0; i < tensor.packets; ++i) {
      const std::uint8_t flags = sent.marks[tensor.before + i];
      if ((flags & DlcpSent::kResent) != 0) again += put(tensor, number, i, again, flags);
    }
    ++number;
  }
}

ChannelHeader DlcpPayload::read_header(HostView<const std::byte> payload) const {
  ChannelHeader header;
  if (payload.size() < sizeof header) bad("too short for its header");
  std::memcpy(&header, payload.data(), sizeof header);
  if (header.bytes != payload.size()) bad("its length is not the one it states");
  if (header.packets != packets_.count() || header.transmissions < header.packets ||
      header.transmissions > 2 * std::uint64_t{header.packets})
    bad("it does not have this gradient's packets");
  const std::size_t least = sizeof header + bitmap_bytes(header.transmissions) + packets_.bytes() +
                            (header.transmissions - header.packets) * sizeof(PacketHeader);
  if (payload.size() < least) bad("too short for its packets");
  return header;
}

void DlcpPayload::check_packet(HostView<const std::byte> payload, std::size_t at, const Packets::Tensor& tensor,
                               std::uint32_t number, std::size_t packet, bool again) const {
  PacketHeader head;
  std::memcpy(&head, payload.data() + at, sizeof head);
  if (head.magic != PacketHeader::kMagic || head.tensor != number || head.packet != packet ||
      head.bytes != 4 * packets_.elements_in(tensor, packet) || head.packets != tensor.packets ||
      ((head.flags & PacketHeader::kRetransmitted) != 0) != again)
    bad("a packet is not the one that belongs there");
}

void DlcpPayload::add(Queue<Space::host> queue, HostView<const std::byte> payload, float weight,
                      HostView<float> out) const {
  const ChannelHeader header = read_header(payload);
  const auto* arrived = section<std::uint32_t>(payload, sizeof header);
  const std::size_t base = sizeof header + bitmap_bytes(header.transmissions);
  std::uint32_t number = 0;
  for (const auto& tensor : packets_.tensors()) {
    parallel_for(queue, tensor.packets, 1, 64, [&](std::size_t first, std::size_t last) {
      for (std::size_t i = first; i < last; ++i) {
        const std::size_t at = base + packets_.offset(tensor, i);
        check_packet(payload, at, tensor, number, i, false);
        if (!bit_of(arrived, tensor.before + i)) continue;
        add_packet(section<float>(payload, at + sizeof(PacketHeader)), weight,
                   out.data() + tensor.first + i * packets_.elements_each(), packets_.elements_in(tensor, i));
      }
    });
    ++number;
  }
  add_resent(payload, header, base + packets_.bytes(), weight, out);
}

/// Packets sent again: in order, each of one that was lost, all of them arrived.
void DlcpPayload::add_resent(HostView<const std::byte> payload, const ChannelHeader& header, std::size_t at,
                             float weight, HostView<float> out) const {
  const auto* arrived = section<std::uint32_t>(payload, sizeof header);
  std::size_t next = 0;  // packets of all tensors that may come again
  for (std::size_t t = header.packets; t < header.transmissions; ++t) {
    PacketHeader head;
    if (payload.size() - at < sizeof head) bad("too short for the packets sent again");
    std::memcpy(&head, payload.data() + at, sizeof head);
    if (head.tensor >= packets_.tensors().size()) bad("a packet of no tensor");
    const auto& tensor = packets_.tensors()[head.tensor];
    const std::size_t place = tensor.before + head.packet;
    if (head.packet >= tensor.packets || place < next || bit_of(arrived, place) || !bit_of(arrived, t))
      bad("a packet sent again that was not lost, or out of order");
    check_packet(payload, at, tensor, head.tensor, head.packet, true);
    next = place + 1;
    at += sizeof head;
    if (payload.size() - at < head.bytes) bad("too short for the packets sent again");
    add_packet(section<float>(payload, at), weight, out.data() + tensor.first + head.packet * packets_.elements_each(),
               head.bytes / 4U);
    at += head.bytes;
  }
  if (at != payload.size()) bad("bytes behind its last packet");
}

std::size_t DlcpPayload::values_in(HostView<const std::byte> payload) const {
  const ChannelHeader header = read_header(payload);
  return (payload.size() - sizeof header - bitmap_bytes(header.transmissions) -
          sizeof(PacketHeader) * header.transmissions) /
         4;
}

}  // namespace gradtool
