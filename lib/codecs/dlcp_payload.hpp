#pragma once

#include <cstddef>
#include <cstdint>

#include "lib/codecs/codec.hpp"
#include "lib/codecs/dlcp_packets.hpp"
#include "lib/codecs/dlcp_transport.hpp"

namespace gradtool {

/// dlcp's payloads (docs/payload-format.md): a header, a bit for each transmission, every packet, and those sent again.
class DlcpPayload {
 public:
  explicit DlcpPayload(const Packets& packets) : packets_{packets} {}

  void write(Queue<Space::host> queue, HostView<const float> gradient, std::int64_t iteration, const DlcpSent& sent,
             HostView<std::byte> payload) const;

  /// out += weight * what arrived. Fault::data for a payload that is none of this unit.
  void add(Queue<Space::host> queue, HostView<const std::byte> payload, float weight, HostView<float> out) const;
  /// Elements in all transmissions.
  [[nodiscard]] std::size_t values_in(HostView<const std::byte> payload) const;

 private:
  [[nodiscard]] law::ChannelHeader read_header(HostView<const std::byte> payload) const;
  void check_packet(HostView<const std::byte> payload, std::size_t at, const Packets::Tensor& tensor,
                    std::uint32_t number, std::size_t packet, bool again) const;
  void add_resent(HostView<const std::byte> payload, const law::ChannelHeader& header, std::size_t at, float weight,
                  HostView<float> out) const;

  const Packets& packets_;
};

}  // namespace gradtool
