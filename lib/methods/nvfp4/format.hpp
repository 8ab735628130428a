#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/block_format.hpp"
#include "kernels/draws.hpp"
#include "kernels/small_float.hpp"

namespace gradtool::format {

/// How elements and the scales of their blocks are rounded. `eden` is MS-EDEN (Panferov et al. 2026, arXiv 2601.22813):
/// 128 elements are rotated together and rounded to nearest, their scales are multiplied by what makes the result as
/// long as the gradient along it, and then rounded stochastically.
enum class Nvfp4Rounding : std::uint8_t { nearest, stochastic, eden };

/// The value of the parameter "rounding".
template <class Params>
Nvfp4Rounding nvfp4_rounding(const Params& params) {
  if (params.is("rounding", "eden")) return Nvfp4Rounding::eden;
  return params.is("rounding", "stochastic") ? Nvfp4Rounding::stochastic : Nvfp4Rounding::nearest;
}

/// NVFP4: blocks of 16 elements of E2M1 with a scale in E4M3, and a float32 scale for the whole unit, in the arithmetic
/// of TransformerEngine.
struct Nvfp4 {
  using Element = SmallFloatElement<kE2M1>;
  using BlockScale = SmallFloatElement<kE4M3>;
  static constexpr std::size_t kBlock = 16;
  static constexpr std::size_t kGroup = 128;  ///< elements that MS-EDEN rotates and corrects together
  static constexpr std::uint32_t kLargestScale = kE4M3.max_code;

  GT_HD static constexpr std::size_t blocks(std::size_t n) { return (n + kBlock - 1) / kBlock; }
};

/// Places in the payload of n > 0 elements: the unit's scale, the seed of the rotation where MS-EDEN has one, scales of
/// blocks, and codes.
struct Nvfp4Layout {
  std::size_t n = 0;
  bool seeded = false;

  GT_HD constexpr std::size_t scales_offset() const { return seeded ? 8 : 4; }
  GT_HD constexpr std::size_t codes_offset() const { return scales_offset() + (Nvfp4::blocks(n) + 3) / 4 * 4; }
  GT_HD constexpr std::size_t bytes() const {
    return n == 0 ? 0 : codes_offset() + 4 * packed_words(n, Nvfp4::Element::kBits);
  }
};

/// The ends of the two ranges that numbers are scaled to: those of scales, and those of the elements of a block.
struct Nvfp4Reach {
  float unit = 6.0f * 448.0f;  ///< the unit's largest magnitude becomes this before blocks are scaled
  float block = 1.0f / 6.0f;   ///< the inverse of the largest element of a scaled block

  /// MS-EDEN leaves room above the scales, which it makes larger, and lets the largest elements saturate a little: the
  /// scales of c = 17/16 * 0.93 in the authors' code, 255.99 * 6 / c and c / 6.
  GT_HD static constexpr Nvfp4Reach of(Nvfp4Rounding rounding) {
    return rounding == Nvfp4Rounding::eden ? Nvfp4Reach{1554.3984f, 0.1646875f} : Nvfp4Reach{};
  }
};

/// The factors that follow from the largest magnitude of a unit.
struct Nvfp4Unit {
  float encode = 0.0f;  ///< reach.unit / largest, so that the block with the largest magnitude has the largest scale
  float decode = 0.0f;  ///< the inverse, which is sent
  float block = 0.0f;   ///< reach.block

  GT_HD static Nvfp4Unit of(float largest, Nvfp4Rounding rounding) {
    if (!is_finite(largest)) return {0.0f, quiet_nan(), 0.0f};
    constexpr float kMost = std::numeric_limits<float>::max();
    const Nvfp4Reach reach = Nvfp4Reach::of(rounding);
    const float wanted = reach.unit / largest;
    const float encode = largest == 0.0f ? 1.0f : wanted < kMost ? wanted : kMost;
    return {encode, 1.0f / encode, reach.block};
  }
  /// The scale of a block: its E4M3 code, and what its elements are multiplied by.
  GT_HD Scaled<std::uint8_t> scaled(float largest_of_block) const {
    return with_code(Nvfp4::BlockScale::encode(1.0f, largest_of_block * (encode * block)));
  }
  /// Has the contract of scaled() with a scale that is rounded up, so that no element exceeds 6.
  GT_HD Scaled<std::uint8_t> scaled_up(float largest_of_block) const {
    const float wanted = largest_of_block * (encode * (1.0f / 6.0f));
    const std::uint32_t code = Nvfp4::BlockScale::encode(1.0f, wanted);
    return with_code(Nvfp4::BlockScale::decode(code) < wanted ? code + 1 : code);
  }
  /// The factor of the values of a block's codes. Codes above kLargestScale give some number.
  GT_HD static float block_unit(std::uint8_t code, float decode) { return Nvfp4::BlockScale::decode(code) * decode; }

 private:
  GT_HD Scaled<std::uint8_t> with_code(std::uint32_t code) const {
    if (code == 0 || encode == 0.0f) return {};
    constexpr float kMost = std::numeric_limits<float>::max();
    const float factor = 1.0f / block_unit(static_cast<std::uint8_t>(code), decode);
    return {static_cast<std::uint8_t>(code), factor < kMost ? factor : kMost};
  }
};

/// Neighbours in x whose places differ by Apart become their sum and their difference: one stage of a Hadamard
/// transform in natural (Sylvester's) order. A Number is a float, or several of as many blocks.
template <std::uint32_t Apart, class Number, std::size_t Size>
GT_HD void add_pairs(Number (&x)[Size]) {
  for (std::uint32_t i = 0; i < Size / 2; ++i) {
    const std::uint32_t low = i / Apart * 2 * Apart + i % Apart;
    const Number sum = x[low] + x[low + Apart];
    x[low + Apart] = x[low] - x[low + Apart];
    x[low] = sum;
  }
}

/// draws.bits[which]. Masks instead of an index, or of conditions, which compilers turn into one, keep the four draws
/// in a GPU's registers.
GT_HD inline std::uint32_t draw_at(const Draws& draws, std::uint32_t which) {
  const std::uint32_t odd = 0u - (which & 1u), late = 0u - (which >> 1 & 1u);
  const std::uint32_t low = draws.bits[0] ^ ((draws.bits[0] ^ draws.bits[1]) & odd);
  const std::uint32_t high = draws.bits[2] ^ ((draws.bits[2] ^ draws.bits[3]) & odd);
  return low ^ ((low ^ high) & late);
}

/// A random rotation of blocks of 16 or 128: signs, which all blocks share, and a Hadamard transform.
template <std::size_t Size>
class Rotation {
 public:
  static constexpr std::size_t kSize = Size;
  /// 1 / sqrt(Size) in float32.
  static constexpr float kNorm = Size == 16 ? 0.25f : 0x1.6a09e6p-4f;
  static_assert(Size == 16 || Size == 128);

  /// Bit i mod 32 of draw i div 32 of the seed turns element i. All ranks draw the same.
  GT_HD explicit Rotation(std::uint64_t seed) : signs_{draw4(shared_by_ranks({.seed = seed}), 0)} {}

  /// x := H S x / sqrt(Size), with H a Hadamard matrix in natural order and S the signs.
  template <class Number>
  GT_HD void forward(Number (&x)[Size]) const {
    turn(x);
    hadamard(x);
  }
  /// x := S H x / sqrt(Size), the inverse.
  template <class Number>
  GT_HD void inverse(Number (&x)[Size]) const {
    hadamard(x);
    turn(x);
  }
  GT_HD float sign(std::uint32_t i) const { return (signs_.bits[i / 32] >> i % 32 & 1u) != 0 ? -1.0f : 1.0f; }
  /// The signs of 32 elements, bit by bit, set where one is turned.
  GT_HD std::uint32_t signs(std::uint32_t word) const { return draw_at(signs_, word); }

 private:
  template <class Number>
  GT_HD void turn(Number (&x)[Size]) const {
    for (std::uint32_t i = 0; i < Size; ++i) x[i] = x[i] * sign(i);
  }
  /// In the order that is part of the payload format: sums of neighbours 1 apart, then 2, 4 and so on, then the norm.
  template <class Number>
  GT_HD static void hadamard(Number (&x)[Size]) {
    add_pairs<1>(x);
    add_pairs<2>(x);
    add_pairs<4>(x);
    add_pairs<8>(x);
    if constexpr (Size == 128) {
      add_pairs<16>(x);
      add_pairs<32>(x);
      add_pairs<64>(x);
    }
    for (Number& value : x) value = value * kNorm;
  }

  Draws signs_;
};
using Rotation16 = Rotation<Nvfp4::kBlock>;
using Rotation128 = Rotation<Nvfp4::kGroup>;

/// The draw of one element.
GT_HD inline std::uint32_t draw_of(const DrawKey& key, std::size_t element) {
  return draw_at(draw4(key, element / 4), static_cast<std::uint32_t>(element % 4));
}

/// The seed of MS-EDEN's rotation of n elements, which the payload holds: the draw of the element behind the last.
GT_HD inline std::uint32_t eden_seed(const DrawKey& key, std::size_t n) {
  return draw_of(key, n);
}

/// Sums of a block of MS-EDEN: of the squares of its scaled elements, and of their products with what they were rounded
/// to.
struct EdenSums {
  float squares, products;

  GT_HD EdenSums operator+(const EdenSums& other) const { return {squares + other.squares, products + other.products}; }
  /// In units that all blocks share: a scaled element is in units of its block's scale.
  GT_HD EdenSums times(float factor) const { return {squares * factor, products * factor}; }
  /// The factor of the scales of the group, with which rounded elements have a projection on the gradient as long
  /// as the gradient (EDEN, Vargaftik et al. 2022, arXiv 2108.08842, section 3).
  GT_HD float correction() const { return products > 0.0f ? squares / products : 1.0f; }
};

/// The sums of the scaled elements and rounded values of a block. Element i is added to element i + 8, then 4, 2 and 1
/// apart; the order is part of the payload format.
GT_HD inline EdenSums eden_sums(const float (&scaled)[Nvfp4::kBlock], const float (&rounded)[Nvfp4::kBlock]) {
  float squares[Nvfp4::kBlock];
  float products[Nvfp4::kBlock];
  for (std::size_t i = 0; i < Nvfp4::kBlock; ++i) {
    squares[i] = scaled[i] * scaled[i];
    products[i] = scaled[i] * rounded[i];
  }
  for (std::size_t half = Nvfp4::kBlock / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) {
      squares[i] = squares[i] + squares[i + half];
      products[i] = products[i] + products[i + half];
    }
  }
  return {squares[0], products[0]};
}

/// The stored scale of a block whose scale before was `code`: rounded up with the probability of what is cut off.
GT_HD inline std::uint8_t corrected_scale(std::uint8_t code, float correction, std::uint32_t draw) {
  return static_cast<std::uint8_t>(Nvfp4::BlockScale::encode(1.0f, Nvfp4::BlockScale::decode(code) * correction, draw));
}

}  // namespace gradtool::format
