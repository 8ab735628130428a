#pragma once

#include <cstdint>

#include "kernels/block_format.hpp"

namespace gradtool::format {

/// An integer of `Bits` bits in two's complement with all of its codes, as ZeRO++ quantises: the largest magnitude of a
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

template <std::uint32_t Bits>
using QgzFormat = FloatScaled<TwosComplement<Bits>>;

}  // namespace gradtool::format
