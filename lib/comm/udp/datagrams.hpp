#pragma once

#include <netinet/in.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "lib/comm/udp/packet.hpp"

namespace gradtool::udp {

/// The UDP socket with what Linux has to save system calls: one call sends up to 44 datagrams of one size (GSO), one
/// call takes up to 16 pieces of 64 kB in which the kernel has joined datagrams of one sender (GRO). Where the kernel
/// or the device lacks GSO, sendmmsg sends them one by one.
class DatagramSocket {
 public:
  static constexpr std::size_t kMostTogether = 44;  ///< datagrams of 1,472 bytes that fit the 64 kB of one call

  struct Outgoing {
    PacketHeader header;
    std::span<const std::byte> data;
  };
  /// bytes of one datagram, whether it carries a congestion mark, and microseconds of the kernel's clock at its arrival
  using Sink = std::function<void(std::span<const std::byte>, bool, std::uint32_t)>;

  /// Sets options of `fd`, which stays the caller's. `room`: bytes of the receive buffer that are asked for.
  explicit DatagramSocket(int fd, std::size_t room = std::size_t{4} << 20);

  /// Bytes of data that the kernel keeps for this process while it does not read.
  [[nodiscard]] std::size_t room() const { return room_; }

  /// Sends datagrams of one size, but for the last, which may be shorter, all with this type of service. Returns how
  /// many the kernel took; fewer when its buffer is full. Throws Fault::backend for other errors, and Fault::usage when
  /// they are larger than the path carries.
  std::size_t send(const sockaddr_in& to, std::span<const Outgoing> datagrams, std::uint8_t service);

  /// Hands every datagram that is there to `sink`, at most `most` calls of the kernel. Returns whether there was one.
  bool receive(const Sink& sink, int most = 8);

  /// Datagrams that the kernel has dropped because its buffer was full.
  [[nodiscard]] std::uint64_t overflowed() const { return overflowed_; }

 private:
  static constexpr std::size_t kPieces = 16;
  static constexpr std::size_t kPieceBytes = std::size_t{64} << 10;

  std::size_t send_together(const sockaddr_in& to, std::span<const Outgoing> datagrams, std::uint8_t service);
  std::size_t send_singly(const sockaddr_in& to, std::span<const Outgoing> datagrams, std::uint8_t service);

  int fd_;
  std::size_t room_ = 0;
  bool segments_ = true;  ///< whether the kernel cuts what send_together gives it
  std::uint64_t overflowed_ = 0;
  std::vector<std::byte> pieces_;
};

}  // namespace gradtool::udp
