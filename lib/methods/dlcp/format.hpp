#pragma once

#include <cstddef>
#include <cstdint>

namespace gradtool::format {

/// The first 16 bytes of a payload of dlcp. A bitmap with one bit per transmission follows, which is set when the
/// transmission arrived. Then come all packets in order, and at last those that were sent a second time.
struct ChannelHeader {
  std::uint64_t bytes = 0;          ///< size of the whole payload
  std::uint32_t packets = 0;        ///< into which the bucket is cut
  std::uint32_t transmissions = 0;  ///< `packets`, and those that were sent a second time
};
static_assert(sizeof(ChannelHeader) == 16);

/// The header of every packet. It says where the data belong, so that a receiver may take packets in any order.
struct PacketHeader {
  static constexpr std::uint32_t kMagic = 0x31504c44;  // "DLP1"
  static constexpr std::uint8_t kImportant = 1;        ///< bits of `flags`
  static constexpr std::uint8_t kRetransmitted = 2;

  std::uint32_t magic = kMagic;
  std::uint32_t iteration = 0;
  std::uint32_t tensor = 0;      ///< number of the tensor in the bucket
  std::uint32_t packet = 0;      ///< number of the packet in the tensor
  std::uint16_t bytes = 0;       ///< of data, which follow the header
  std::uint8_t layer_class = 0;  ///< 0 (input side) to 6 (output side), for the priority queues of a switch
  std::uint8_t flags = 0;
  std::uint32_t packets = 0;  ///< of the tensor
};
static_assert(sizeof(PacketHeader) == 24);

/// Size of a bitmap of `bits` bits, which is stored as 32-bit words.
constexpr std::size_t bitmap_bytes(std::size_t bits) {
  return 4 * ((bits + 31) / 32);
}
inline bool test_bit(const std::uint32_t* bitmap, std::size_t i) {
  return (bitmap[i / 32] >> i % 32 & 1U) != 0;
}
inline void set_bit(std::uint32_t* bitmap, std::size_t i) {
  bitmap[i / 32] |= 1U << i % 32;
}

}  // namespace gradtool::format
