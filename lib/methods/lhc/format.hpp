#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/float_bits.hpp"

namespace gradtool::format {

/// Sub-tables of a peeling table (peeling.hpp). Every element has a cell in each of them.
inline constexpr std::uint32_t kPeelingHashes = 3;

struct PeelingCell {
  std::size_t index;  ///< in the table
  float sign;         ///< 1 or -1, which the element's value is multiplied by
};
/// The cell in sub-table `hash` of an element, which is lane `lane` of its block. `draws` are the four random words of
/// the block, `rows` is the number of rows of a sub-table.
GT_HD inline PeelingCell peeling_cell(const std::uint32_t* draws, std::size_t hash, std::size_t rows, std::size_t lanes,
                                      std::size_t lane) {
  const auto row = static_cast<std::size_t>(std::uint64_t{draws[hash]} * rows >> 32);
  return {(hash * rows + row) * lanes + lane, (draws[3] >> hash & 1U) != 0 ? -1.0f : 1.0f};
}

GT_HD inline float median_of_three(float a, float b, float c) {
  const float low = b < a ? b : a, high = a < b ? b : a;
  const float rest = c < high ? c : high;
  return low < rest ? rest : low;
}

}  // namespace gradtool::format
