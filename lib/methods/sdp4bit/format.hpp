#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/block_format.hpp"
#include "kernels/draws.hpp"
#include "kernels/symmetric_integer.hpp"

namespace gradtool::format {

template <std::uint32_t Bits>
using Sdp4bitFormat = FloatScaled<SymmetricInt<Bits>>;

/// Elements that are rotated together, whatever the size of a block: 32 consecutive ones.
inline constexpr std::size_t kRotated = 32;
/// 1 / sqrt(32), by which every element is multiplied before the additions, so that only results that are too large
/// overflow. The additions are part of the payload format: pairs of elements whose numbers differ by 1 become their sum
/// and their difference, then by 2, 4, 8 and 16.
inline constexpr float kRotationNorm = 0x1.6a09e6p-3f;

/// Signs of the 32 elements, the same for all groups and on all ranks. Seed 0 turns none.
class RotationSigns {
 public:
  /// Bit i turns element i; they are the first draw of the seed.
  explicit RotationSigns(std::uint64_t seed)
      : bits_{seed == 0 ? 0 : draw4(shared_by_ranks({.seed = seed}), 0).bits[0]} {}
  [[nodiscard]] GT_HD float of(std::uint32_t i) const { return (bits_ >> i % kRotated & 1u) != 0 ? -1.0f : 1.0f; }

 private:
  std::uint32_t bits_;
};

/// Elements of a block at most, so that a block fits what a CPU thread or a warp works on at a time.
inline constexpr std::size_t kSdp4bitLargestBlock = 2048;

}  // namespace gradtool::format
