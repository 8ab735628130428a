#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/draws.hpp"

namespace gradtool::format {

/// A vector of n elements in blocks that a Hadamard transform rotates. As a row-major matrix with `order` rows its
/// columns are the blocks, so that a run of consecutive elements, as a packet holds, takes at most a few elements of
/// any block. Missing elements of the last rows are zero.
struct RotationShape {
  std::size_t order = 1;  ///< elements of a block, a power of two
  std::size_t columns = 0;

  /// Blocks are smaller than `block` where the whole vector is.
  RotationShape(std::size_t n, std::size_t block)
      : order{std::min(block, std::bit_ceil(std::max<std::size_t>(n, 1)))}, columns{(n + order - 1) / order} {}
  [[nodiscard]] std::size_t elements() const { return order * columns; }
};

/// Which packets are lost.
enum class PacketLoss : std::uint8_t {
  iid,   ///< each by chance
  tail,  ///< the last ones of each message, which arrive after the receiver has stopped to wait
};

/// The losses of one message, a shard that is cut into packets. `from` is the key of the rank that sends it, and
/// `first` is the number of its first packet in the whole vector: the numbers of a rank's messages do not overlap, and
/// those of its own shard are free for the means that it sends. Can be passed to kernels.
class MessageLoss {
 public:
  GT_HD MessageLoss(PacketLoss model, double loss, const DrawKey& from, std::uint64_t first, std::size_t packets)
      : loss_{model == PacketLoss::iid ? loss : 0.0}, from_{from}, first_{first}, waited_for_{packets} {
    if (model == PacketLoss::iid || packets == 0) return;
    // Rounded up or down at random, so that on average `loss` of all packets are cut, however few a message has.
    const auto cut = static_cast<std::size_t>(loss * static_cast<double>(packets) + uniform_of(first));
    waited_for_ = cut < packets ? packets - cut : 0;
  }

  /// Whether packet number `packet` of the message is lost.
  [[nodiscard]] GT_HD bool loses(std::size_t packet) const {
    return packet >= waited_for_ || (loss_ > 0.0 && uniform_of(first_ + packet) < loss_);
  }

 private:
  [[nodiscard]] GT_HD double uniform_of(std::uint64_t packet) const {
    return static_cast<double>(uniform(draw4(from_, packet).bits[0]));
  }

  double loss_;
  DrawKey from_;
  std::uint64_t first_;
  std::size_t waited_for_;  ///< packets from the start that come before the time-out
};

}  // namespace gradtool::format
