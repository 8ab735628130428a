#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/draws.hpp"
#include "kernels/float_bits.hpp"

namespace gradtool::format {

/// Neighbours that a count sketch hashes together: a block. An element is a lane of its block.
inline constexpr std::size_t kSketchLanes = 16;

struct SketchHash {
  std::uint32_t bucket = 0;  ///< the cell of the block's first lane in a row
  std::uint32_t signs = 0;   ///< bit l is set where lane l is added with a minus sign
};
GT_HD inline SketchHash sketch_hash(std::uint64_t seed, std::uint32_t row, std::size_t block, std::size_t columns) {
  const Draws draws = draw4(shared_by_ranks({.seed = seed, .step = row}), block);
  return {static_cast<std::uint32_t>(std::uint64_t{draws.bits[0]} * columns >> 32), draws.bits[1] & 0xffffu};
}
/// x with the sign of a lane.
GT_HD inline float with_sign(float x, std::uint32_t signs, std::size_t lane) {
  return float_of(bits_of(x) ^ (signs >> lane << 31));
}

/// The median of an odd number of values, which it sorts: odd-even transposition sort.
template <std::size_t Rows>
GT_HD inline float sketch_median(float (&v)[Rows]) {
  for (std::size_t pass = 0; pass < Rows; ++pass) {
    for (std::size_t r = pass % 2; r + 1 < Rows; r += 2) {
      const float low = v[r + 1] < v[r] ? v[r + 1] : v[r];
      const float high = v[r + 1] < v[r] ? v[r] : v[r + 1];
      v[r] = low;
      v[r + 1] = high;
    }
  }
  return v[Rows / 2];
}

}  // namespace gradtool::format
