#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/draws.hpp"
#include "kernels/float_bits.hpp"

namespace gradtool::format {

/// Which subset a payload belongs to, in numbers that the ring may add. Behind the values stand a 1 and the key of the
/// subset in four digits of 12 bits. Ranks have the same key, so their sum divided by the sum of the ones is the key
/// again, exactly for up to 4096 ranks.
struct RandomKKey {
  static constexpr std::size_t kDigits = 4;
  static constexpr std::uint32_t kDigit = 4096;  ///< digits are below this
  static constexpr float kMostRanks = 4096.0f;
  static constexpr std::size_t kTrailer = 1 + kDigits;  ///< float32 numbers behind the values

  std::uint64_t seed = 0;
  bool valid = false;

  /// The subset's draws: those of tensor 0 at step 0 for the seed that the digits spell.
  GT_HD DrawKey draws() const { return {seed, 0, 0xffffffffu, 0}; }

  /// The key that all ranks draw alike, written into the trailer.
  GT_HD static RandomKKey written(const DrawKey& key, float* trailer) {
    const Draws digits = draw4(shared_by_ranks(key), 0);
    RandomKKey out{0, true};
    trailer[0] = 1.0f;
    for (std::size_t d = 0; d < kDigits; ++d) {
      const std::uint32_t digit = digits.bits[d] % kDigit;
      trailer[1 + d] = static_cast<float>(digit);
      out.seed |= static_cast<std::uint64_t>(digit) << (12 * d);
    }
    return out;
  }
  /// The key of a payload or of a sum of payloads; not valid where the trailer is that of neither.
  GT_HD static RandomKKey read(const float* trailer) {
    RandomKKey out{0, trailer[0] >= 1.0f && trailer[0] <= kMostRanks};
    for (std::size_t d = 0; d < kDigits && out.valid; ++d) {
      const float digit = trailer[1 + d] / trailer[0];
      out.valid = digit >= 0.0f && digit < static_cast<float>(kDigit);
      if (!out.valid) break;
      const auto whole = static_cast<std::uint32_t>(digit);
      out.valid = static_cast<float>(whole) == digit;
      out.seed |= static_cast<std::uint64_t>(whole) << (12 * d);
    }
    return out;
  }
};

/// Turn i of Floyd's method (Bentley and Floyd, CACM 1987) draws t from 0 .. j: floor(u (j + 1) / 2^64) with
/// u = low + 2^32 high, so that no t is likelier than another by more than 2^-32. j + 1 <= 2^32.
GT_HD inline std::uint64_t subset_place(std::uint32_t low, std::uint32_t high, std::uint64_t j) {
  return (high * (j + 1) + (low * (j + 1) >> 32)) >> 32;  // spares a product of 128 bits
}

/// Turn i with the draws of elements 2i and 2i + 1 of a key.
GT_HD inline std::uint64_t subset_place(const DrawKey& key, std::uint64_t i, std::uint64_t j) {
  const Draws draws = draw4(key, i / 2);
  return i % 2 == 0 ? subset_place(draws.bits[0], draws.bits[1], j) : subset_place(draws.bits[2], draws.bits[3], j);
}

}  // namespace gradtool::format

namespace gradtool::host {

/// Marks `count` of n elements, every subset of that size equally likely: bit i mod 32 of word i div 32 of `marks`,
/// which has ceil(n/32) words. count <= n < 2^32.
///
/// Floyd's method: for j = n - count .. n - 1 draw t from 0 .. j, and mark t, or j where t is marked already. Where
/// more than half of the elements are wanted, those that are not are drawn.
void mark_random_subset(const format::DrawKey& key, std::size_t n, std::size_t count, std::uint32_t* marks);

}  // namespace gradtool::host
