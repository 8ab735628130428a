#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/block_format.hpp"
#include "kernels/float_bits.hpp"
#include "kernels/symmetric_integer.hpp"

namespace gradtool::format {

/// Integers from -kMax to kMax with a float32 scale of max/kMax, in blocks of any size.
template <std::uint32_t Bits>
using FloatScaledInt = FloatScaled<SymmetricInt<Bits>>;

/// QuickReduce's symmetric groups: 32 elements share a scale in binary16, which is the element of the largest magnitude
/// divided by -2^(Bits-1), so that this element, whatever its sign, becomes the lowest code. A scale beyond binary16 is
/// its largest value, and one that underflows is 0.
template <std::uint32_t Bits>
struct HalfScaledInt {
  using Scale = std::uint16_t;
  using Element = TwosComplement<Bits>;
  static constexpr std::size_t kBlock = 32;
  static constexpr bool kSignedMeasure = true;

  GT_HD static Scaled<Scale> scaled(float extreme) {
    if (!is_finite(extreme)) return {0x7e00u, 0.0f};
    const std::uint16_t wanted = f16_from_f32(extreme / -Element::kMax);
    const bool infinite = (wanted & 0x7fffu) == 0x7c00u;
    const std::uint16_t stored = infinite ? static_cast<std::uint16_t>(wanted - 1u) : wanted;
    if ((stored & 0x7fffu) == 0) return {};
    return {stored, 1.0f / f32_from_f16(stored)};
  }
  GT_HD static float decode_factor(Scale scale) { return f32_from_f16(scale); }
};

}  // namespace gradtool::format
