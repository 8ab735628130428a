#include "lib/comm/udp/datagrams.hpp"

#include <netinet/udp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "lib/core/throw_error.hpp"

// glibc 2.36 has them; older headers may not.
#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

namespace gradtool::udp {
namespace {

bool set(int fd, int level, int name, int value) {
  return ::setsockopt(fd, level, name, &value, sizeof(value)) == 0;
}

/// Room for the control data of one message: type of service, segment size, time stamp and count of overflows.
constexpr std::size_t kControlBytes = 256;

template <class T>
void append_control(msghdr& message, int level, int type, T value) {
  auto* one = reinterpret_cast<cmsghdr*>(static_cast<std::byte*>(message.msg_control) + message.msg_controllen);
  one->cmsg_level = level;
  one->cmsg_type = type;
  one->cmsg_len = CMSG_LEN(sizeof(value));
  std::memcpy(CMSG_DATA(one), &value, sizeof(value));
  message.msg_controllen += CMSG_SPACE(sizeof(value));
}

/// A datagram's header and data as the kernel takes them.
void point_at(iovec* two, const DatagramSocket::Outgoing& datagram) {
  two[0] = {const_cast<PacketHeader*>(&datagram.header), sizeof(PacketHeader)};
  two[1] = {const_cast<std::byte*>(datagram.data.data()), datagram.data.size()};
}

[[noreturn]] void refuse(int error, std::size_t bytes) {
  if (error == EMSGSIZE) {
    throw_error(Fault::usage,
                "--comm udp: datagrams of {} bytes are larger than the path carries; give a "
                "smaller packet=, such as 1424 for Ethernet's 1500",
                bytes);
  }
  throw_error(Fault::backend, "--comm udp: datagrams cannot be sent: {}", std::strerror(error));
}

/// Errors that pass by themselves: a full buffer, an interrupted call, a reply to an earlier datagram that nobody took.
bool passes(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR || error == ENOBUFS || error == ECONNREFUSED;
}

}  // namespace

DatagramSocket::DatagramSocket(int fd, std::size_t room) : fd_{fd}, pieces_(kPieces * kPieceBytes) {
  const int wanted = static_cast<int>(room);
  // SO_RCVBUFFORCE passes the system's limit (net.core.rmem_max), but only root may set it.
  if (!set(fd, SOL_SOCKET, SO_RCVBUFFORCE, wanted)) set(fd, SOL_SOCKET, SO_RCVBUF, wanted);
  set(fd, SOL_SOCKET, SO_SNDBUF, 1 << 20);
  set(fd, SOL_SOCKET, SO_TIMESTAMPNS, 1);
  set(fd, SOL_SOCKET, SO_RXQ_OVFL, 1);
  set(fd, IPPROTO_IP, IP_RECVTOS, 1);
  set(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO);
  set(fd, IPPROTO_UDP, UDP_GRO, 1);
  int given = 0;
  socklen_t length = sizeof(given);
  ::getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &given, &length);
  // The kernel counts its own structures too: a datagram of 1.5 kB takes up to 2.3 kB, and getsockopt says twice what
  // was asked for.
  room_ = static_cast<std::size_t>(std::max(given, 4096)) / 2;
}

std::size_t DatagramSocket::send(const sockaddr_in& to, std::span<const Outgoing> datagrams, std::uint8_t service) {
  if (datagrams.size() > 1 && segments_) return send_together(to, datagrams, service);
  return send_singly(to, datagrams, service);
}

std::size_t DatagramSocket::send_together(const sockaddr_in& to, std::span<const Outgoing> datagrams,
                                          std::uint8_t service) {
  std::array<iovec, 2 * kMostTogether> pieces{};
  const std::size_t each = sizeof(PacketHeader) + datagrams[0].data.size();
  const std::size_t count = std::min({datagrams.size(), kMostTogether, std::max<std::size_t>(1, 65000 / each)});
  for (std::size_t i = 0; i < count; ++i) point_at(&pieces[2 * i], datagrams[i]);
  alignas(cmsghdr) std::array<std::byte, kControlBytes> control{};
  msghdr message{};
  message.msg_name = const_cast<sockaddr_in*>(&to);
  message.msg_namelen = sizeof(to);
  message.msg_iov = pieces.data();
  message.msg_iovlen = 2 * count;
  message.msg_control = control.data();
  append_control(message, IPPROTO_IP, IP_TOS, int{service});
  append_control(message, IPPROTO_UDP, UDP_SEGMENT, static_cast<std::uint16_t>(each));
  if (::sendmsg(fd_, &message, MSG_DONTWAIT) >= 0) return count;
  if (passes(errno)) return 0;
  if (errno != EIO && errno != EINVAL && errno != EOPNOTSUPP && errno != ENOPROTOOPT) refuse(errno, each);
  segments_ = false;  // the device cannot
  return send_singly(to, datagrams, service);
}

std::size_t DatagramSocket::send_singly(const sockaddr_in& to, std::span<const Outgoing> datagrams,
                                        std::uint8_t service) {
  std::array<iovec, 2 * kMostTogether> pieces{};
  std::array<mmsghdr, kMostTogether> messages{};
  alignas(cmsghdr) std::array<std::byte, kControlBytes> control{};
  const std::size_t count = std::min(datagrams.size(), kMostTogether);
  for (std::size_t i = 0; i < count; ++i) {
    point_at(&pieces[2 * i], datagrams[i]);
    msghdr& message = messages[i].msg_hdr;
    message.msg_name = const_cast<sockaddr_in*>(&to);
    message.msg_namelen = sizeof(to);
    message.msg_iov = &pieces[2 * i];
    message.msg_iovlen = 2;
    message.msg_control = control.data();
    if (i == 0) {
      append_control(message, IPPROTO_IP, IP_TOS, int{service});
    } else {
      message.msg_controllen = messages[0].msg_hdr.msg_controllen;
    }
  }
  const int taken = ::sendmmsg(fd_, messages.data(), static_cast<unsigned>(count), MSG_DONTWAIT);
  if (taken >= 0) return static_cast<std::size_t>(taken);
  if (passes(errno)) return 0;
  refuse(errno, sizeof(PacketHeader) + datagrams[0].data.size());
}

bool DatagramSocket::receive(const Sink& sink, int most) {
  bool any = false;
  for (int call = 0; call < most; ++call) {
    std::array<iovec, kPieces> pieces{};
    std::array<mmsghdr, kPieces> messages{};
    alignas(cmsghdr) std::array<std::array<std::byte, kControlBytes>, kPieces> controls;
    for (std::size_t i = 0; i < kPieces; ++i) {
      pieces[i] = {pieces_.data() + i * kPieceBytes, kPieceBytes};
      messages[i].msg_hdr.msg_iov = &pieces[i];
      messages[i].msg_hdr.msg_iovlen = 1;
      messages[i].msg_hdr.msg_control = controls[i].data();
      messages[i].msg_hdr.msg_controllen = kControlBytes;
    }
    const int count = ::recvmmsg(fd_, messages.data(), kPieces, MSG_DONTWAIT, nullptr);
    if (count < 0 && !passes(errno))
      throw_error(Fault::backend, "--comm udp: datagrams cannot be taken: {}", std::strerror(errno));
    for (int i = 0; i < count; ++i) {
      msghdr& message = messages[static_cast<std::size_t>(i)].msg_hdr;
      std::size_t bytes = messages[static_cast<std::size_t>(i)].msg_len;
      std::size_t each = bytes;
      bool marked = false;
      timespec time{};
      for (cmsghdr* one = CMSG_FIRSTHDR(&message); one != nullptr; one = CMSG_NXTHDR(&message, one)) {
        if (one->cmsg_level == IPPROTO_UDP && one->cmsg_type == UDP_GRO) {
          std::uint16_t size = 0;
          std::memcpy(&size, CMSG_DATA(one), sizeof(size));
          if (size > 0) each = size;
        } else if (one->cmsg_level == IPPROTO_IP && one->cmsg_type == IP_TOS) {
          marked = (*CMSG_DATA(one) & 3) == 3;
        } else if (one->cmsg_level == SOL_SOCKET && one->cmsg_type == SO_TIMESTAMPNS) {
          std::memcpy(&time, CMSG_DATA(one), sizeof(time));
        } else if (one->cmsg_level == SOL_SOCKET && one->cmsg_type == SO_RXQ_OVFL) {
          std::uint32_t dropped = 0;
          std::memcpy(&dropped, CMSG_DATA(one), sizeof(dropped));
          overflowed_ = std::max<std::uint64_t>(overflowed_, dropped);
        }
      }
      const auto arrived_us =
          static_cast<std::uint32_t>(std::uint64_t(time.tv_sec) * 1'000'000 + std::uint64_t(time.tv_nsec) / 1000);
      any = true;
      const std::byte* data = static_cast<const std::byte*>(pieces[static_cast<std::size_t>(i)].iov_base);
      do {  // also once for a datagram without bytes, which is somebody else's
        const std::size_t size = std::min(each, bytes);
        sink({data, size}, marked, arrived_us);
        data += size;
        bytes -= size;
      } while (bytes > 0);
    }
    if (count < static_cast<int>(kPieces)) break;
  }
  return any;
}

}  // namespace gradtool::udp
