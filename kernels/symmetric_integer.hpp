#pragma once

#include <cstdint>

#include "kernels/block_format.hpp"
#include "kernels/draws.hpp"

namespace gradtool::format {

/// An element of a block format: an integer of `Bits` bits from -kMax to kMax; the lowest code is never used.
template <std::uint32_t Bits>
struct SymmetricInt {
  static constexpr std::uint32_t kBits = Bits;
  static constexpr float kMax = static_cast<float>((1u << (Bits - 1)) - 1u);

  GT_HD static std::uint32_t encode(float factor, float x) { return nearest_integer(factor, x, -kMax, kMax) & kMask; }
  /// min(floor(|x| factor + u), kMax) with the sign of x, u being uniform on [0, 1).
  GT_HD static std::uint32_t encode(float factor, float x, std::uint32_t draw) {
    const float y = factor > 0.0f ? float_of(bits_of(x) & 0x7fffffffu) * factor : 0.0f;
    const float magnitude = y + uniform(draw);
    const float inside = magnitude < kMax ? magnitude : kMax;
    const auto whole = static_cast<std::uint32_t>(static_cast<std::int32_t>(inside));
    return (bits_of(x) >> 31 != 0 ? 0u - whole : whole) & kMask;
  }
  GT_HD static float decode(std::uint32_t code) { return signed_integer<Bits>(code); }

 private:
  static constexpr std::uint32_t kMask = (1u << Bits) - 1u;
};

/// An integer of `Bits` bits in two's complement with all of its codes, as ZeRO++ and QuickReduce
/// quantise: the largest magnitude of a
/// block is 2^(Bits-1) units, which only a negative element can reach. Always rounded to nearest.
template <std::uint32_t Bits>
struct TwosComplement {
  static constexpr std::uint32_t kBits = Bits;
  static constexpr float kMax = static_cast<float>(1u << (Bits - 1));

  GT_HD static std::uint32_t encode(float factor, float x) {
    return nearest_integer(factor, x, -kMax, kMax - 1.0f) & ((1u << Bits) - 1u);
  }
  GT_HD static float decode(std::uint32_t code) { return signed_integer<Bits>(code); }
};

}  // namespace gradtool::format
