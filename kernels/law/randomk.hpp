#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/law/hd.hpp"
#include "kernels/law/philox.hpp"

namespace gradtool::law {

/// What the ring adds up must say itself which elements it belongs to. So behind the values of randomk stand a 1 and
/// the key of the subset in numbers of 12 bits: ranks have the same key, and their sum over the sum of the ones is the
/// key again, exactly, for up to 4096 ranks.
struct RandomKKey {
  static constexpr std::size_t kDigits = 4;
  static constexpr std::uint32_t kDigit = 4096;
  static constexpr float kMostRanks = 4096.0f;
  static constexpr std::size_t kTrailer = 1 + kDigits;

  std::uint64_t seed = 0;
  bool valid = false;

  /// The draws of the subset: those of a tensor 0 at step 0 under the seed that the digits spell.
  GT_HD DrawKey draws() const { return {seed, 0, 0xffffffffu, 0}; }

  /// What all ranks draw alike, written behind the values.
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
  /// Of a payload, or a sum of some; not valid where that is no key.
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

}  // namespace gradtool::law
