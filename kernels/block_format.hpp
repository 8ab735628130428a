#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/bitpack.hpp"
#include "kernels/float_bits.hpp"
#include "kernels/rotation.hpp"

/// Elements of at most 8 bits in blocks that share a scale, on both processors. A block format is a type with
///   Scale                   what is stored for a block: a float, or a byte where kBlock is not 0
///   kBlock                  elements of a block where the format fixes this number, else 0: blocks of any size, which
///                           may be kWholeUnit
///   Element                 kBits; encode(factor, x) and/or encode(factor, x, draw), which round to nearest and
///                           stochastically; decode(code). A factor of 0 belongs to a block of zeros or one that
///                           decodes to NaN.
///   scaled(measure)         the Scaled<Scale> of a block whose largest magnitude is `measure`. A block that holds a
///   NaN
///                           has a NaN as its largest magnitude.
///   decode_factor(scale)    what decoded elements are multiplied by
///   l2                      optional bool: where it is true, `measure` is the block's L2 norm
///   kSignedMeasure          optional, true: `measure` is the element with the largest magnitude, with its sign; kBlock
///                           is then a power of two from 16 to 128, so that a GPU finds it in one window
///   rotation                optional Rotation: blocks are made of elements whose whole groups were rotated, where it
///   is
///                           on. A block is whole groups, or a group whole blocks; both fit detail::kBlockTile.
///   unit, scale_unit(most)  optional, for blocks of less than a window: a second scale, of the whole unit, which is
///                           sent in front of the others, and the function that sets it and what else `scaled` needs
///                           from the unit's largest magnitude, after the rotation. Receivers set `unit` alone. It is
///                           NaN where that magnitude is not finite; all scales and codes are then zeros.
///   kDrawsRotation          optional, true: the rotation of n elements is drawn from a seed, the draw of element n,
///                           which is sent behind `unit`
///   kLargestScale           optional: a payload with a larger scale of a block is refused by a CPU
/// lib/codecs/block_codec.hpp makes a codec of a format, lib/codecs/gpu_block_codec.hpp its GPU version.
namespace gradtool::format {

/// The value that a block stores, and the factor of its elements before they are rounded.
template <class Scale>
struct Scaled {
  Scale stored{};
  float factor = 0.0f;
};

/// The size of a block that is the whole unit, however many elements that has.
inline constexpr std::size_t kWholeUnit = 0;

/// The payload of n elements: the format's head where it has one, the scales of all blocks, padded with zeros to 4
/// bytes, then the packed codes of all elements. Blocks are whole words of codes; only the last block may be short.
struct BlockLayout {
  std::size_t n;
  std::size_t block;
  std::size_t scale_bytes;
  std::uint32_t bits;
  std::uint32_t head_bytes = 0;

  [[nodiscard]] GT_HD constexpr std::size_t blocks() const {
    if (block == kWholeUnit) return n == 0 ? 0 : 1;
    return (n + block - 1) / block;
  }
  [[nodiscard]] GT_HD constexpr std::size_t scales_offset() const { return n == 0 ? 0 : head_bytes; }
  [[nodiscard]] GT_HD constexpr std::size_t scales_end() const { return scales_offset() + blocks() * scale_bytes; }
  [[nodiscard]] GT_HD constexpr std::size_t codes_offset() const { return (scales_end() + 3) / 4 * 4; }
  [[nodiscard]] GT_HD constexpr std::size_t bytes() const { return codes_offset() + 4 * packed_words(n, bits); }
};

template <class Element>
concept RoundsToNearest = requires(float x) {
  Element::encode(x, x);
};
template <class Element>
concept RoundsStochastically = requires(float x, std::uint32_t draw) {
  Element::encode(x, x, draw);
};

template <class Format>
concept Rotates = requires(const Format& format) {
  format.rotation;
};
template <class Format>
concept ScalesUnit = requires(Format& format) {
  format.scale_unit(1.0f);
};
template <class Format>
concept DrawsRotation = requires {
  requires Format::kDrawsRotation;
};

/// The layout of n elements of a format.
template <class Format>
GT_HD constexpr BlockLayout block_layout(std::size_t n, std::size_t block) {
  constexpr std::uint32_t kHead = (ScalesUnit<Format> ? 4 : 0) + (DrawsRotation<Format> ? 4 : 0);
  return {n, block, sizeof(typename Format::Scale), Format::Element::kBits, kHead};
}

/// The format with the rotation whose seed is in the head of a payload.
template <class Format>
GT_HD Format with_seed(Format format, const std::uint32_t* head) {
  if constexpr (DrawsRotation<Format>) format.rotation = format.rotation.of(head[1]);
  return format;
}
/// The format that decodes the payload with this head.
template <class Format>
GT_HD Format with_head(Format format, const std::uint32_t* head) {
  if constexpr (ScalesUnit<Format>) format.unit = float_of(head[0]);
  return with_seed(format, head);
}

/// True where blocks are measured by their L2 norm instead of their largest magnitude.
template <class Format>
GT_HD constexpr bool uses_l2(const Format& format) {
  if constexpr (requires { format.l2; })
    return format.l2;
  else
    return false;
}
/// True where the scale follows from the element with the largest magnitude and its sign.
template <class Format>
GT_HD constexpr bool signs_measure() {
  if constexpr (requires { Format::kSignedMeasure; })
    return Format::kSignedMeasure;
  else
    return false;
}
/// A number that grows with the magnitude of x, NaN above infinity above numbers, so that the largest of a block says
/// its measure. With a sign its bit is the lowest: of two equal magnitudes the negative one is larger.
template <class Format>
GT_HD std::uint32_t measure_pattern(float x) {
  const std::uint32_t bits = bits_of(x);
  return signs_measure<Format>() ? bits << 1 | bits >> 31 : bits & 0x7fffffffu;
}
/// The measure that the largest pattern of a block stands for.
template <class Format>
GT_HD float measure_of(std::uint32_t pattern) {
  return float_of(signs_measure<Format>() ? pattern >> 1 | pattern << 31 : pattern);
}
/// Partial sums of the L2 norm: partial j adds the squares of elements j, j+32, ... in order, then partial j adds
/// partial j + 16 for j < 16, then j + 8, j + 4, j + 2, j + 1. The order is part of the payload format, so that CPU and
/// GPU get the same norm.
inline constexpr std::uint32_t kNormLanes = 32;

/// A block whose largest magnitude is below this is sent as zeros: the inverse of its scale might overflow.
inline constexpr float kSmallestOfBlock = 0x1p-100f;
/// kMax times the scale of a larger magnitude might round to infinity.
inline constexpr float kLargestOfBlock = 0x1.fffffcp127f;
/// False for NaN and infinities.
GT_HD inline bool is_finite(float x) {
  return (bits_of(x) & 0x7fffffffu) < 0x7f800000u;
}
/// The NaN that payloads hold.
GT_HD inline float quiet_nan() {
  return float_of(0x7fc00000u);
}

/// Blocks store largest/kMax as float32, kMax being the largest value of an element.
template <class IntegerElement>
struct FloatScaled {
  using Scale = float;
  using Element = IntegerElement;
  static constexpr std::size_t kBlock = 0;

  GT_HD static Scaled<Scale> scaled(float largest) {
    // Without branches, so that a loop over blocks becomes vector code.
    const bool some = is_finite(largest) && largest >= kSmallestOfBlock;
    const float unit = (largest < kLargestOfBlock ? largest : kLargestOfBlock) / Element::kMax;
    const float inverse = 1.0f / unit;
    return {some ? unit : is_finite(largest) ? 0.0f : quiet_nan(), some ? inverse : 0.0f};
  }
  GT_HD static float decode_factor(Scale scale) { return scale; }
};

/// x * factor rounded to the nearest integer, ties to even, clamped to [low, high], in two's complement. A factor of 0
/// gives 0, whatever x is. The bounds are below 2^22 in magnitude.
GT_HD inline std::uint32_t nearest_integer(float factor, float x, float low, float high) {
  const float y = factor != 0.0f ? x * factor : 0.0f;
  const float below = y < high ? y : high;
  const float inside = below > low ? below : low;
  return bits_of(inside + 0x1.8p23f);  // Adding 1.5 2^23 leaves the integer in the low bits of the mantissa.
}
/// The signed integer in the low `Bits` bits.
template <std::uint32_t Bits>
GT_HD float signed_integer(std::uint32_t code) {
  return static_cast<float>(static_cast<std::int32_t>(code << (32 - Bits)) >> (32 - Bits));
}

}  // namespace gradtool::format
