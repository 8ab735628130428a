#include "lib/comm/udp/control.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace gradtool::udp {
namespace {

struct FrameHeader {
  std::uint32_t type = 0;
  std::uint32_t bytes = 0;
  std::uint64_t message = 0;
};

}  // namespace

Socket::Socket(Socket&& other) noexcept : fd_{std::exchange(other.fd_, -1)} {}

Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

Socket::~Socket() {
  if (fd_ >= 0) ::close(fd_);
}

void ControlLine::send(FrameType type, std::uint64_t message, std::span<const std::byte> body,
                       std::span<const std::byte> more) {
  if (!open() || deaf_) return;
  const FrameHeader header{static_cast<std::uint32_t>(type), static_cast<std::uint32_t>(body.size() + more.size()),
                           message};
  for (const auto piece : {bytes_of(header), body, more}) out_.insert(out_.end(), piece.begin(), piece.end());
  flush();
  if (type == FrameType::feedback || type == FrameType::waiting || has_unsent()) return;
  const FrameHeader nothing{static_cast<std::uint32_t>(FrameType::nothing), 0, 0};
  const auto bytes = bytes_of(nothing);
  out_.insert(out_.end(), bytes.begin(), bytes.end());
  flush();
}

void ControlLine::flush() {
  while (open() && !deaf_ && has_unsent()) {
    const ssize_t n = ::send(fd(), out_.data() + sent_, out_.size() - sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      deaf_ = true;
      break;
    }
    sent_ += static_cast<std::size_t>(n);
  }
  out_.clear();
  sent_ = 0;
}

void ControlLine::read() {
  in_.erase(in_.begin(), in_.begin() + static_cast<std::ptrdiff_t>(taken_));
  taken_ = 0;
  while (open()) {
    constexpr std::size_t kPiece = std::size_t{64} << 10;
    const std::size_t had = in_.size();
    in_.resize(had + kPiece);
    const ssize_t n = ::recv(fd(), in_.data() + had, kPiece, MSG_DONTWAIT);
    in_.resize(had + static_cast<std::size_t>(n > 0 ? n : 0));
    if (n > 0) continue;
    if (n < 0 && errno == EINTR) continue;
    if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) closed_ = true;
    return;
  }
}

std::optional<Frame> ControlLine::next() {
  FrameHeader header;
  if (in_.size() - taken_ < sizeof(header)) return std::nullopt;
  std::memcpy(&header, in_.data() + taken_, sizeof(header));
  if (header.type > static_cast<std::uint32_t>(FrameType::leaving) || header.bytes > kMostBytes) {
    closed_ = true;
    taken_ = in_.size();
    return std::nullopt;
  }
  if (in_.size() - taken_ - sizeof(header) < header.bytes) return std::nullopt;
  const Frame frame{static_cast<FrameType>(header.type), header.message,
                    std::span{in_}.subspan(taken_ + sizeof(header), header.bytes)};
  taken_ += sizeof(header) + header.bytes;
  return frame;
}

}  // namespace gradtool::udp
