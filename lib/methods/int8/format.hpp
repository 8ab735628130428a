#pragma once

#include <cstdint>

#include "kernels/block_format.hpp"
#include "kernels/draws.hpp"

namespace gradtool::format {

/// An integer from -127 to 127; the code -128 is never used.
struct SymmetricInt8 {
  static constexpr std::uint32_t kBits = 8;
  static constexpr float kMax = 127.0f;

  GT_HD static std::uint32_t encode(float factor, float x) { return nearest_integer(factor, x, -kMax, kMax) & 0xffu; }
  /// min(floor(|x| factor + u), 127) with the sign of x, u being uniform on [0, 1).
  GT_HD static std::uint32_t encode(float factor, float x, std::uint32_t draw) {
    const float y = factor > 0.0f ? float_of(bits_of(x) & 0x7fffffffu) * factor : 0.0f;
    const float magnitude = y + uniform(draw);
    const float inside = magnitude < kMax ? magnitude : kMax;
    const auto whole = static_cast<std::uint32_t>(static_cast<std::int32_t>(inside));
    return (bits_of(x) >> 31 != 0 ? 0u - whole : whole) & 0xffu;
  }
  GT_HD static float decode(std::uint32_t code) { return signed_integer<kBits>(code); }
};

using Int8Format = FloatScaled<SymmetricInt8>;

}  // namespace gradtool::format
