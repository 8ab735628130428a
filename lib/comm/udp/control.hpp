#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <vector>

/// The reliable channel between two ranks (TCP), which carries everything but gradient data.
namespace gradtool::udp {

/// Owns a file descriptor.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_{fd} {}
  Socket(Socket&& other) noexcept;
  Socket& operator=(Socket&& other) noexcept;
  ~Socket();
  [[nodiscard]] int fd() const { return fd_; }
  [[nodiscard]] bool open() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

enum class FrameType : std::uint32_t {
  ready,     ///< receiver to sender: data of the message may come. Body: ReadyBody
  feedback,  ///< receiver to sender, about once a millisecond. Body: FeedbackBody
  probe,     ///< sender to receiver: everything has been sent once. Body: ProbeBody, bits of the important packets
  bitmap,    ///< receiver to sender: the answer, one bit for each packet that has arrived
  stop,      ///< receiver to sender: enough has arrived
  waiting,   ///< this rank waits for another one, and is alive. Body: its number as int32
  values,    ///< to rank 0: this rank has come to a meeting with these doubles
  result,    ///< from rank 0: their maxima
  failed,    ///< the rank that stands for the message has failed. Body: its text
  nothing,   ///< see ControlLine::send
  leaving,   ///< this rank has come to its end and sends nothing more
};

struct ReadyBody {
  std::uint64_t bytes = 0;   ///< of the message, as the receiver expects it
  std::uint64_t window = 0;  ///< bytes that may be under way, so that they fit the receiver's socket
};
struct FeedbackBody {
  std::uint32_t highest = 0;         ///< transmission number
  std::uint32_t datagrams = 0;       ///< that have come for the message
  std::uint32_t marked = 0;          ///< of them, with ECN's congestion mark
  std::uint32_t sent_us = 0;         ///< of the last one, by the sender's clock
  std::uint32_t queue_delay_us = 0;  ///< of the last one, beyond the fastest ever
  std::uint32_t reserved = 0;
};
struct ProbeBody {
  std::uint32_t round_trip_us = 0;  ///< as the sender knows it: for so long data may still be on their way
  std::uint32_t pass = 0;           ///< which the answer repeats in front of its bits
};

struct Frame {
  FrameType type = FrameType::leaving;
  std::uint64_t message = 0;
  std::span<const std::byte> body;  ///< until the next call on the line
};

/// One end of the channel. Nothing here blocks; what the kernel does not take is kept and sent by `flush`.
class ControlLine {
 public:
  /// The largest body that is accepted: the bitmap of 2^28 packets.
  static constexpr std::size_t kMostBytes = std::size_t{1} << 25;

  ControlLine() = default;
  explicit ControlLine(Socket socket) : socket_{std::move(socket)} {}

  [[nodiscard]] int fd() const { return socket_.fd(); }
  /// False once the other end has closed it or a frame was malformed.
  [[nodiscard]] bool open() const { return socket_.open() && !closed_; }
  [[nodiscard]] bool has_unsent() const { return sent_ < out_.size(); }

  /// Appends a frame and sends as much as the kernel takes. The body may be given in two pieces. Frames that somebody
  /// waits for are followed by one that says nothing, in a segment of its own: where the first is lost, TCP learns it
  /// from the second within a round trip, and not from its timer after 200 ms.
  void send(FrameType type, std::uint64_t message, std::span<const std::byte> body = {},
            std::span<const std::byte> more = {});
  void flush();

  /// Reads what has come. Afterwards `next` gives the frames.
  void read();
  /// The next whole frame; nothing when there is none.
  std::optional<Frame> next();

 private:
  Socket socket_;
  std::vector<std::byte> in_, out_;
  std::size_t taken_ = 0;  ///< bytes of in_ that `next` has given out
  std::size_t sent_ = 0;   ///< bytes of out_ that the kernel has
  bool closed_ = false;
  /// The other end takes nothing more. What it sent before may still be here, such as the stop of the last message.
  bool deaf_ = false;
};

template <class T>
[[nodiscard]] std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span{&value, 1});
}

/// The value at the beginning of a frame's body; nothing where the body is shorter.
template <class T>
[[nodiscard]] std::optional<T> value_in(std::span<const std::byte> body) {
  if (body.size() < sizeof(T)) return std::nullopt;
  T value;
  std::memcpy(&value, body.data(), sizeof(T));
  return value;
}

}  // namespace gradtool::udp
