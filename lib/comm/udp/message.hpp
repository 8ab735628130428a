#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/comm/udp/packet.hpp"

/// One message of the bounded-loss transport: how it is cut into packets, what has arrived of it, what is to be sent.
/// Nothing here knows of sockets or clocks.
namespace gradtool::udp {

/// The part of a tensor in a message, and how much of it may stay missing.
struct TensorPart {
  std::size_t bytes = 0;
  double loss = 0.0;             ///< share of the bytes that may stay missing, 0 to 1
  double loss_important = 0.0;   ///< share of the bytes of important packets that may; at most `loss` takes effect
  std::uint8_t layer_class = 0;  ///< 0 (input side) to 6 (output side)
  bool back = false;  ///< whether the layer lies in the last third of the model: all its packets are important
};

/// How a message is cut: each tensor separately, so that only its last packet is short. Packets are counted over the
/// message. Sender and receiver make the same plan.
class Plan {
 public:
  struct Packet {
    std::uint32_t tensor = 0;
    std::uint32_t number = 0;  ///< in the tensor
    std::size_t offset = 0;    ///< of its data in the message
    std::uint16_t bytes = 0;
  };

  Plan() = default;
  /// `packet_bytes`: data of a full packet, 4 to 65,535 and a multiple of 4. Empty tensors have no packets.
  Plan(std::span<const TensorPart> tensors, std::size_t packet_bytes);

  [[nodiscard]] std::size_t packets() const { return packets_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] std::size_t tensors() const { return tensors_.size(); }
  [[nodiscard]] const TensorPart& tensor(std::size_t i) const { return tensors_[i].part; }
  [[nodiscard]] std::size_t packets_of(std::size_t tensor) const { return tensors_[tensor].packets; }
  /// Number over the message of the first packet of a tensor.
  [[nodiscard]] std::size_t first_packet(std::size_t tensor) const { return tensors_[tensor].first_packet; }
  [[nodiscard]] Packet packet(std::size_t index) const;
  /// False where no tensor may lose anything.
  [[nodiscard]] bool tolerates() const { return tolerates_; }

 private:
  struct Tensor {
    TensorPart part;
    std::size_t packets = 0;
    std::size_t first_packet = 0;
    std::size_t offset = 0;
  };
  std::vector<Tensor> tensors_;
  std::size_t packet_bytes_ = 4;
  std::size_t packets_ = 0;
  std::size_t bytes_ = 0;
  bool tolerates_ = false;
};

using Bits = std::vector<std::uint64_t>;
[[nodiscard]] constexpr std::size_t bit_words(std::size_t bits) {
  return (bits + 63) / 64;
}
[[nodiscard]] inline bool test_bit(std::span<const std::uint64_t> bits, std::size_t i) {
  return (bits[i / 64] >> i % 64 & 1U) != 0;
}
inline void set_bit(std::span<std::uint64_t> bits, std::size_t i) {
  bits[i / 64] |= std::uint64_t{1} << i % 64;
}

/// The fate of a datagram.
enum class Arrival : std::uint8_t {
  placed,     ///< its data are in the destination now
  duplicate,  ///< they were already
  misfit,     ///< it claims a place or a size that this message does not have, or other ranks
  damaged,    ///< its tag is not that of its content under this job's key
};

/// A message on its way in. Data go where their header says, whatever order they come in.
class Inbound {
 public:
  /// `destination` has plan.bytes() bytes and outlives this object. `message` is the whole number of the message.
  Inbound(Plan plan, std::span<std::byte> destination, int from, int to, std::uint64_t message);

  /// Takes a datagram whose header names this message. Never writes outside of the destination, whatever it holds.
  Arrival take(const PacketHeader& header, std::span<const std::byte> data, const JobKey& key);

  /// Which packets the sender calls important, one bit for each; until then every packet that is missing may be one.
  void set_important(std::span<const std::uint64_t> important);

  [[nodiscard]] bool complete() const { return missing_packets_ == 0; }
  /// Whether of every tensor at least (1 - loss) of the bytes have arrived, and of the important ones at least
  /// (1 - loss_important).
  [[nodiscard]] bool satisfied() const;
  /// Sets what is missing to zero, as DLCP fills lost gradients. To be called once, at the end.
  void fill_missing();

  [[nodiscard]] const Plan& plan() const { return plan_; }
  [[nodiscard]] int from() const { return from_; }
  [[nodiscard]] std::uint64_t message() const { return message_; }
  /// One bit for each packet that has arrived.
  [[nodiscard]] std::span<const std::uint64_t> arrived() const { return arrived_; }
  [[nodiscard]] std::size_t missing_packets() const { return missing_packets_; }
  [[nodiscard]] std::size_t missing_bytes() const { return missing_bytes_; }
  /// The smallest share of a tensor's part that has arrived.
  [[nodiscard]] double least_delivered() const;
  [[nodiscard]] bool knows_important() const { return knows_important_; }
  [[nodiscard]] std::span<const std::uint64_t> important() const { return important_; }

 private:
  struct Missing {
    std::size_t bytes = 0;
    std::size_t important = 0;      ///< of them, bytes of packets that are important or may be
    std::size_t all_important = 0;  ///< of the tensor
  };

  Plan plan_;
  std::span<std::byte> destination_;
  int from_, to_;
  std::uint64_t message_;
  Bits arrived_, important_;
  bool knows_important_ = false;
  std::vector<Missing> missing_;
  std::size_t missing_packets_ = 0;
  std::size_t missing_bytes_ = 0;
};

/// A message on its way out: which packets are to be sent next. The first pass sends all of them in order; a later one
/// those that the receiver misses.
class Outbound {
 public:
  /// `data` has plan.bytes() bytes and outlives this object. `important`: one bit for each packet. Empty: none are, but
  /// all where nothing may be lost.
  Outbound(Plan plan, std::span<const std::byte> data, int from, int to, std::uint64_t message, Bits important);

  [[nodiscard]] bool pass_ended() const { return next_ == pass_.size(); }
  /// Packet to be sent next; not at the end of a pass.
  [[nodiscard]] std::size_t next_packet() const { return pass_[next_]; }
  /// Header and data of packet next_packet(), sealed, and moves on. `now_us` is the sender's clock.
  PacketHeader take(const JobKey& key, std::uint32_t now_us);
  /// Takes back the last `count` packets, which the kernel has not taken. Not over the beginning of a pass.
  void give_back(std::size_t count) {
    next_ -= count;
    transmissions_ -= static_cast<std::uint32_t>(count);
  }
  [[nodiscard]] std::span<const std::byte> data_of(std::size_t packet) const;
  [[nodiscard]] std::uint8_t service_of(std::size_t packet) const;

  /// Begins a pass over the packets whose bit in `arrived` is not set.
  void repeat_missing(std::span<const std::uint64_t> arrived);

  [[nodiscard]] const Plan& plan() const { return plan_; }
  [[nodiscard]] int to() const { return to_; }
  [[nodiscard]] std::uint64_t message() const { return message_; }
  [[nodiscard]] std::span<const std::uint64_t> important() const { return important_; }
  [[nodiscard]] std::uint32_t transmissions() const { return transmissions_; }
  /// Passes that have begun; 1 until something is repeated.
  [[nodiscard]] int passes() const { return passes_; }

 private:
  Plan plan_;
  std::span<const std::byte> data_;
  int from_, to_;
  std::uint64_t message_;
  Bits important_;
  std::vector<std::uint32_t> pass_;
  std::size_t next_ = 0;
  std::uint32_t transmissions_ = 0;
  int passes_ = 1;
};

/// The reciprocal of the ring's depth: with `hops` transfers in a row that lose a share each, all of which destroy what
/// they carry, at most `loss` is lost in all when each loses 1 - (1 - loss)^(1 / hops).
[[nodiscard]] double loss_of_hop(double loss, int hops);

}  // namespace gradtool::udp
