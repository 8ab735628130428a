#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/float_bits.hpp"

namespace gradtool::format {

/// The sign words of one shard from every rank. The owner's own signs lie apart from those that it received.
struct Votes {
  std::size_t ranks = 1;
  std::size_t owner = 0;
  std::uint32_t* own = nullptr;             ///< the owner's signs, which the majority replaces
  const std::uint32_t* received = nullptr;  ///< rank r's signs at r * slot; the owner's slot is not read
  std::size_t slot = 0;                     ///< words between the signs of two ranks
  std::size_t words = 0;

  GT_HD const std::uint32_t* row(std::size_t rank) const { return rank == owner ? own : received + rank * slot; }
};

/// A majority vote on bits, 32 of them at a time. The bits of each position are counted in parallel: plane b holds bit
/// b of the counters of all positions of a word. Counters start so high that their top bit says whether more than half
/// of the ranks had the bit set, so a tie leaves the bit clear.
struct Majority {
  std::uint32_t top;    ///< the plane that decides
  std::uint32_t start;  ///< what counters start at: 2^top - (floor(ranks/2) + 1)

  static constexpr std::uint32_t kMaxPlanes = 32;

  static constexpr Majority of(std::uint32_t ranks) {
    const auto top = static_cast<std::uint32_t>(std::bit_width(ranks / 2));
    return {top, (1u << top) - ranks / 2 - 1};
  }
  GT_HD constexpr std::uint32_t planes() const { return top + 1; }
  /// Plane b of counters that have counted no rank yet.
  GT_HD constexpr std::uint32_t initial(std::uint32_t b) const { return start >> b & 1u ? 0xffffffffu : 0u; }
};

}  // namespace gradtool::format
