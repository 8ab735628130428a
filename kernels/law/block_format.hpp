#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/law/bitpack.hpp"
#include "kernels/law/block_int.hpp"
#include "kernels/law/small_float.hpp"

/// Elements of at most 8 bits in blocks that share a scale: what a codec of blocks is made of, on both processors. A
/// block format says
///   Scale                   what is stored for a block,
///   kBlock                  elements of a block where the format fixes it, else 0,
///   Element                 kBits, encode(factor, x), encode(factor, x, draw), decode(code); a factor of 0 is a block
///                           of zeros or one that decodes to NaN, and absent elements are zeros,
///   scaled(largest)         Scaled<Scale> of a block whose largest magnitude is `largest` (a maximum of patterns
///                           without sign, NaN above infinity),
///   decode_factor(scale)    what decoded elements are multiplied by.
namespace gradtool::law {

/// What a block stores, and what its elements are multiplied by before they are rounded.
template <class Stored>
struct Scaled {
  Stored stored{};
  float factor = 0.0f;
};

/// Where things lie in the payload of a block codec: the scales of all blocks, padded to 4 bytes, then the packed codes
/// of all elements. Blocks are whole words of codes; only the last may be short.
struct BlockLayout {
  std::size_t n;
  std::size_t block;
  std::size_t scale_bytes;
  std::uint32_t bits;

  [[nodiscard]] GT_HD constexpr std::size_t blocks() const { return (n + block - 1) / block; }
  [[nodiscard]] GT_HD constexpr std::size_t codes_offset() const { return (blocks() * scale_bytes + 3) / 4 * 4; }
  [[nodiscard]] GT_HD constexpr std::size_t bytes() const { return codes_offset() + 4 * packed_words(n, bits); }
};

/// Blocks store largest/top as float32.
template <class ElementLaw>
struct FloatScaled {
  using Scale = float;
  using Element = ElementLaw;
  static constexpr std::size_t kBlock = 0;

  GT_HD static Scaled<Scale> scaled(float largest) {
    const float stored = BlockScale::stored(largest, Element::kMax);
    return {stored, BlockScale::encode_factor(stored)};
  }
  GT_HD static float decode_factor(Scale scale) { return scale; }
};

/// A format of kernels/law/small_float.hpp as the element of a block format. A factor of 0 gives zero with the sign of
/// x, whatever x is.
template <auto Law>
struct SmallFloatElement {
  static constexpr std::uint32_t kBits = Law.bits;

  GT_HD static std::uint32_t encode(float factor, float x) { return Law.nearest(scaled(factor, x)); }
  GT_HD static std::uint32_t encode(float factor, float x, std::uint32_t draw) {
    return Law.stochastic(scaled(factor, x), draw);
  }
  GT_HD static float decode(std::uint32_t code) { return Law.value(code); }

 private:
  GT_HD static float scaled(float factor, float x) {
    return factor > 0.0f ? x * factor : float_of(bits_of(x) & 0x80000000u);
  }
};

/// FP8 with a float32 scale that maps the block's largest magnitude to the largest value of the format.
template <SmallFloat Law>
struct Fp8Format {
  using Scale = float;
  using Element = SmallFloatElement<Law>;
  static constexpr std::size_t kBlock = 0;
  static constexpr float kSmallest = 0x1p-100f;  ///< a block below this is sent as zero: its scale would be subnormal

  GT_HD static float top() { return Law.value(Law.max_code); }
  GT_HD static Scaled<Scale> scaled(float largest) {
    if (!(largest <= 0x1.fffffep127f)) return {float_of(0x7fc00000u), 0.0f};
    if (largest < kSmallest) return {};
    return {largest / top(), top() / largest};
  }
  GT_HD static float decode_factor(Scale scale) { return scale; }
};

/// OCP Microscaling v1.0, section 6.3: blocks of 32 share a power of two, stored as its biased exponent.
template <auto Law>
struct MxFormat {
  using Scale = std::uint8_t;
  using Element = SmallFloatElement<Law>;
  static constexpr std::size_t kBlock = 32;
  static constexpr std::uint32_t kNan = 255;  ///< E8M0's NaN

  /// floor(log2 of the largest magnitude) - emax, as an E8M0 byte; a block of zeros gets the smallest scale.
  GT_HD static Scaled<Scale> scaled(float largest) {
    const std::uint32_t pattern = bits_of(largest);
    if (pattern >= 0x7f800000u) return {static_cast<Scale>(kNan), 0.0f};
    // The exponent is 0 for subnormals: clamped below all the same.
    const std::int32_t exponent = static_cast<std::int32_t>(pattern >> 23) - Law.largest_exponent;
    const std::int32_t low = exponent < 0 ? 0 : exponent;
    const auto byte = static_cast<std::uint32_t>(low < 254 ? low : 254);
    return {static_cast<Scale>(byte), power(254 - byte)};  // the inverse: E8M0's bias is 127
  }
  GT_HD static float decode_factor(Scale scale) { return scale == kNan ? float_of(0x7fc00000u) : power(scale); }

 private:
  /// 2^(byte - 127); 2^-127 is a subnormal float.
  GT_HD static float power(std::uint32_t byte) { return float_of(byte == 0 ? 0x00400000u : byte << 23); }
};

}  // namespace gradtool::law
