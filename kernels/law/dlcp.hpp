#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/law/half.hpp"
#include "kernels/law/hd.hpp"

namespace gradtool::law {

/// What a payload of dlcp begins with; the bitmap of arrivals follows, then every packet once, then those sent again.
struct ChannelHeader {
  std::uint64_t bytes = 0;
  std::uint32_t packets = 0;        ///< of the gradient
  std::uint32_t transmissions = 0;  ///< of them and of those sent again
};
static_assert(sizeof(ChannelHeader) == 16);

/// What every packet begins with: enough to place it in any order.
struct PacketHeader {
  static constexpr std::uint32_t kMagic = 0x31504c44;  // "DLP1"
  static constexpr std::uint8_t kImportant = 1;
  static constexpr std::uint8_t kRetransmitted = 2;

  std::uint32_t magic = kMagic;
  std::uint32_t iteration = 0;
  std::uint32_t tensor = 0;
  std::uint32_t packet = 0;  ///< in the tensor
  std::uint16_t bytes = 0;   ///< behind the header
  std::uint8_t layer_class = 0;
  std::uint8_t flags = 0;
  std::uint32_t packets = 0;  ///< of the tensor
};
static_assert(sizeof(PacketHeader) == 24);

GT_HD constexpr std::size_t bitmap_bytes(std::size_t bits) {
  return 4 * ((bits + 31) / 32);
}
GT_HD inline bool bit_of(const std::uint32_t* bitmap, std::size_t i) {
  return (bitmap[i / 32] >> i % 32 & 1U) != 0;
}

/// Partial sums of a packet's magnitudes, in float32: j adds elements j, j+16, ..., then halves are added.
inline constexpr std::size_t kPacketLanes = 16;

/// What a packet's importance is judged by: its mean magnitude, infinity where it is not a number.
GT_HD inline float packet_mean(float sum, std::size_t count) {
  const float mean = sum / static_cast<float>(count);
  return mean == mean ? mean : float_of(0x7f800000u);
}

/// A tensor's median packet of earlier steps.
struct RunningMedian {
  float median = 0.0f;
  std::uint32_t known = 0;

  /// What packets of this step are compared with.
  [[nodiscard]] GT_HD float usual(float middle) const { return known != 0 ? median : middle; }
  GT_HD void move(float middle, float decay) {
    if ((bits_of(middle) & 0x7fffffffu) >= 0x7f800000u) return;
    median = known != 0 ? decay * median + (1.0f - decay) * middle : middle;
    known = 1;
  }
};

}  // namespace gradtool::law
