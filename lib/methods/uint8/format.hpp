#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/float_bits.hpp"
#include "kernels/sums.hpp"

/// The arithmetic of uint8, on both processors. Moments are summed in the order of kernels/sums.hpp. The sums behind
/// the codebook are integers, so that any order gives the same bits.
namespace gradtool::format {

inline constexpr std::size_t kUint8Buckets = 256;
inline constexpr std::size_t kUint8CodesOffset = sizeof(float) * kUint8Buckets;
/// Bytes of the payload of n elements: the codebook, then a byte an element, padded to 4.
GT_HD constexpr std::size_t uint8_bytes(std::size_t n) {
  return n == 0 ? 0 : kUint8CodesOffset + (n + 3) / 4 * 4;
}

/// How the elements of a unit become codes and integers.
struct Uint8Unit {
  float mean;
  float per_width;     ///< 1 / width of a bucket of values; 0 where all elements are as good as equal: all get code 128
  float to_integer;    ///< a power of two, which makes integers below 2^30 in magnitude of the elements
  double of_integer;   ///< its inverse
  std::uint32_t good;  ///< 0: something is not finite, and all elements decode to NaN

  /// From the sums of the elements and of their squares, and the pattern of the largest magnitude.
  GT_HD static Uint8Unit of(double sum, double squares, std::uint32_t largest, std::size_t n) {
    constexpr float kSigmas = 6.0f;            // the width of all buckets together
    constexpr float kNarrowest = 0x1p-100f;    // the inverse of a narrower bucket might overflow
    constexpr std::int32_t kIntegerBits = 30;  // without the sign
    const auto count = static_cast<double>(n);
    const double mean = sum / count;
    const double spread = squares - count * mean * mean;
    const double variance = n < 2 ? spread * 0.0 : (spread < 0.0 ? 0.0 : spread) / (count - 1.0);
    Uint8Unit unit{};
    unit.good = variance - variance == 0.0 ? 1 : 0;
    unit.mean = static_cast<float>(mean);
    // In float32, unless that overflows.
    const double deviation = sqrt(variance);
    const float width = deviation < 0x1p125
                            ? kSigmas * static_cast<float>(deviation) / static_cast<float>(kUint8Buckets)
                            : static_cast<float>(kSigmas * deviation / static_cast<double>(kUint8Buckets));
    unit.per_width = width < kNarrowest ? 0.0f : 1.0f / width;
    // The largest is below 2^(exponent - 126), its exponent being that of its pattern. Powers stay those of normal
    // floats.
    const std::int32_t exponent = 127 + 126 + kIntegerBits - static_cast<std::int32_t>(largest >> 23);
    unit.to_integer = float_of(static_cast<std::uint32_t>(exponent < 253 ? exponent : 253) << 23);
    unit.of_integer = 1.0 / static_cast<double>(unit.to_integer);
    return unit;
  }

  /// The bucket of values that x falls into: (x - mean) / width, rounded to nearest even, plus 128, within a byte.
  GT_HD std::uint32_t code(float x) const {
    const float y = (x - mean) * per_width;
    const float above = y < 127.0f ? y : 127.0f;
    const float inside = above > -128.0f ? above : -128.0f;
    // Adding 1.5 2^23 leaves the rounded integer in the low bits of the significand.
    return (bits_of(inside + 0x1.8p23f) + 128u) & 0xffu;
  }
  /// x in units of `of_integer`, cut off towards zero.
  GT_HD std::int32_t integer(float x) const { return static_cast<std::int32_t>(x * to_integer); }
  /// The mean of the `count` elements of a bucket whose integers add up to `sum`.
  GT_HD float entry(std::int64_t sum, std::uint64_t count) const {
    if (good == 0) return float_of(0x7fc00000u);
    return stored_mean(static_cast<double>(sum) * of_integer, count);
  }
};

}  // namespace gradtool::format
