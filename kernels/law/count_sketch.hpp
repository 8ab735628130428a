#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/law/half.hpp"
#include "kernels/law/hd.hpp"
#include "kernels/law/philox.hpp"

namespace gradtool::law {

/// Neighbours that a count sketch hashes together (lib/reduce/count_sketch.hpp).
inline constexpr std::size_t kSketchLanes = 16;

/// Where a block goes in one row, and its signs: a bit for each lane, 1 is minus.
struct SketchHash {
  std::uint32_t bucket = 0;
  std::uint32_t signs = 0;
};
GT_HD inline SketchHash sketch_hash(std::uint64_t seed, std::uint32_t row, std::size_t block, std::size_t columns) {
  const Draws draws = draw4(shared_by_ranks({.seed = seed, .step = row}), block);
  return {static_cast<std::uint32_t>(std::uint64_t{draws.bits[0]} * columns >> 32), draws.bits[1] & 0xffffu};
}
GT_HD inline float with_sign(float x, std::uint32_t signs, std::size_t lane) {
  return float_of(bits_of(x) ^ (signs >> lane << 31));
}

/// The middle one of Rows numbers, by a sorting network of neighbours.
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

}  // namespace gradtool::law
