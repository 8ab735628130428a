#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

/// Datagrams of the bounded-loss transport (DLCP, arXiv 2008.08445): what they say about themselves, and how a receiver
/// tells its own from everybody else's.
namespace gradtool::udp {

/// Secret of a job, known to its ranks alone. Every datagram and every connection proves that its sender knows it.
using JobKey = std::array<std::uint64_t, 2>;

/// SipHash-2-4 of `first` followed by `second` (Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012). Some
/// 1.3 processor cycles a byte.
[[nodiscard]] std::uint64_t siphash(const JobKey& key, std::span<const std::byte> first,
                                    std::span<const std::byte> second = {});

/// In front of the data of every datagram, little-endian. Tensor and packet say where the data belong, so that
/// datagrams may arrive in any order.
struct PacketHeader {
  static constexpr std::uint32_t kMagic = 0x31504c55;  // "ULP1"
  static constexpr std::uint8_t kImportant = 1;        ///< bits of `flags`
  static constexpr std::uint8_t kRetransmitted = 2;

  std::uint32_t magic = kMagic;
  std::uint32_t message = 0;     ///< lower half of the number of this message between these two ranks
  std::uint32_t tensor = 0;      ///< in the message
  std::uint32_t packet = 0;      ///< in the tensor; its data begin at byte packet * (bytes of a full packet)
  std::uint16_t bytes = 0;       ///< of data behind the header
  std::uint8_t layer_class = 0;  ///< 0 (input side) to 6 (output side)
  std::uint8_t flags = 0;
  std::uint32_t packets = 0;  ///< of the tensor
  std::uint16_t from = 0;     ///< ranks
  std::uint16_t to = 0;
  std::uint32_t transmission = 0;  ///< number of this datagram among those of the message, repetitions included
  std::uint32_t sent_us = 0;       ///< clock of the sender when it was sent, for differences of delays
  std::uint32_t reserved = 0;
  std::uint64_t tag = 0;  ///< see seal
};
static_assert(sizeof(PacketHeader) == 48);

/// Sets the tag: SipHash under the job's key of the header, the whole number of the message and the data. It makes
/// damage, other jobs, strangers and datagrams of earlier messages (also those of 2^32 messages ago) recognisable.
void seal(PacketHeader& header, const JobKey& key, std::uint64_t message, std::span<const std::byte> data);
/// Whether the tag is that which `seal` would set.
[[nodiscard]] bool is_sealed(const PacketHeader& header, const JobKey& key, std::uint64_t message,
                             std::span<const std::byte> data);

/// Type-of-service byte of a datagram: DSCP in the upper six bits, ECN in the lower two. A droppable packet is not
/// ECN-capable, so that a switch that runs RED with one threshold drops it there; an important one is, and is marked
/// and kept (specification of DLCP, marking). Layers near the input are needed first and have the higher class
/// selector: CS5 for class 0 down to CS1 for classes 4 to 6. Control traffic has CS6.
[[nodiscard]] constexpr std::uint8_t type_of_service(std::uint8_t layer_class, bool important) {
  const int selector = layer_class >= 4 ? 1 : 5 - layer_class;
  return static_cast<std::uint8_t>(selector << 5 | (important ? 2 : 0));
}
inline constexpr std::uint8_t kControlService = 6 << 5;

}  // namespace gradtool::udp
