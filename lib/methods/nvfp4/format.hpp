#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/block_format.hpp"
#include "kernels/draws.hpp"
#include "kernels/small_float.hpp"

namespace gradtool::format {

/// NVFP4: blocks of 16 elements of E2M1 with a scale in E4M3, and a float32 scale for the whole unit, in the arithmetic
/// of TransformerEngine.
struct Nvfp4 {
  using Element = SmallFloatElement<kE2M1>;
  using BlockScale = SmallFloatElement<kE4M3>;
  static constexpr std::size_t kBlock = 16;
  static constexpr std::size_t kScalesOffset = sizeof(float);  ///< the unit's scale comes first
  static constexpr std::uint32_t kLargestScale = kE4M3.max_code;

  GT_HD static constexpr std::size_t blocks(std::size_t n) { return (n + kBlock - 1) / kBlock; }
  GT_HD static constexpr std::size_t codes_offset(std::size_t n) { return kScalesOffset + (blocks(n) + 3) / 4 * 4; }
  GT_HD static constexpr std::size_t bytes(std::size_t n) {
    return n == 0 ? 0 : codes_offset(n) + 4 * packed_words(n, Element::kBits);
  }
};

/// The factors that follow from the largest magnitude of a unit.
struct Nvfp4Unit {
  float encode = 0.0f;  ///< 6 * 448 / largest, so that the scale of the block with the largest magnitude is 448
  float decode = 0.0f;  ///< the inverse, which is sent

  GT_HD static Nvfp4Unit of(float largest) {
    if (!is_finite(largest)) return {0.0f, quiet_nan()};
    constexpr float kMost = std::numeric_limits<float>::max();
    const float wanted = 6.0f * 448.0f / largest;
    const float encode = largest == 0.0f ? 1.0f : wanted < kMost ? wanted : kMost;
    return {encode, 1.0f / encode};
  }
  /// The scale of a block: its E4M3 code, and what its elements are multiplied by.
  GT_HD Scaled<std::uint8_t> scaled(float largest_of_block) const {
    const std::uint32_t code = Nvfp4::BlockScale::encode(1.0f, largest_of_block * (encode * (1.0f / 6.0f)));
    if (code == 0 || encode == 0.0f) return {};
    constexpr float kMost = std::numeric_limits<float>::max();
    const float factor = 1.0f / block_unit(static_cast<std::uint8_t>(code), decode);
    return {static_cast<std::uint8_t>(code), factor < kMost ? factor : kMost};
  }
  /// The factor of the values of a block's codes. Codes above kLargestScale give some number.
  GT_HD static float block_unit(std::uint8_t code, float decode) { return Nvfp4::BlockScale::decode(code) * decode; }
};

/// A random rotation of blocks of 16: signs, which all blocks share, and a Hadamard transform. A Number is a float, or
/// several of as many blocks.
class Rotation16 {
 public:
  /// Bit i of the signs turns element i; they are the lowest bits of the first draw of the seed.
  explicit Rotation16(std::uint64_t seed) : signs_{draw4(shared_by_ranks({.seed = seed}), 0).bits[0]} {}

  /// x := H S x / 4, with H of order 16 in natural (Sylvester's) order and S the signs.
  template <class Number>
  GT_HD void forward(Number (&x)[16]) const {
    turn(x);
    hadamard(x);
  }
  /// x := S H x / 4, the inverse.
  template <class Number>
  GT_HD void inverse(Number (&x)[16]) const {
    hadamard(x);
    turn(x);
  }

 private:
  template <class Number>
  GT_HD void turn(Number (&x)[16]) const {
    for (std::uint32_t i = 0; i < 16; ++i) x[i] = x[i] * ((signs_ >> i & 1u) != 0 ? -1.0f : 1.0f);
  }
  /// In the order that is part of the payload format: sums of neighbours 1 apart, then 2, 4 and 8, then times 1/4.
  template <class Number>
  GT_HD static void hadamard(Number (&x)[16]) {
    add_pairs<1>(x);
    add_pairs<2>(x);
    add_pairs<4>(x);
    add_pairs<8>(x);
    for (Number& value : x) value = value * 0.25f;
  }
  template <std::uint32_t Apart, class Number>
  GT_HD static void add_pairs(Number (&x)[16]) {
    for (std::uint32_t i = 0; i < 8; ++i) {
      const std::uint32_t low = i / Apart * 2 * Apart + i % Apart;
      const Number sum = x[low] + x[low + Apart];
      x[low + Apart] = x[low] - x[low + Apart];
      x[low] = sum;
    }
  }

  std::uint32_t signs_;
};

}  // namespace gradtool::format
