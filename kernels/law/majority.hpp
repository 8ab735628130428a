#pragma once

#include <bit>
#include <cstdint>

#include "kernels/law/hd.hpp"

namespace gradtool::law {

/// A majority vote on bits, 32 at a time: bit positions are counted in parallel, plane b holding bit b of all counters
/// of a word. Counters start so high that their top bit says whether more than half of the ranks had the bit set; a
/// tie is not more.
struct Majority {
  std::uint32_t top;    ///< the plane that decides
  std::uint32_t start;  ///< what counters start at: 2^top - (floor(ranks/2) + 1)

  static constexpr std::uint32_t kMaxPlanes = 32;

  static constexpr Majority of(std::uint32_t ranks) {
    const auto top = static_cast<std::uint32_t>(std::bit_width(ranks / 2));
    return {top, (1u << top) - ranks / 2 - 1};
  }
  GT_HD constexpr std::uint32_t planes() const { return top + 1; }
  /// Plane b of counters that have counted nothing.
  GT_HD constexpr std::uint32_t initial(std::uint32_t b) const { return start >> b & 1u ? 0xffffffffu : 0u; }
};

}  // namespace gradtool::law
