#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/law/hd.hpp"

namespace gradtool::law {

/// Sub-tables of a peeling table, in each of which an element has a cell.
inline constexpr std::size_t kPeelingHashes = 3;

struct PeelingCell {
  std::size_t at;
  float sign;
};
/// The cell of an element of a block and a lane in sub-table `hash`; `draws` are the block's four.
GT_HD inline PeelingCell peeling_cell(const std::uint32_t* draws, std::size_t hash, std::size_t rows_each,
                                      std::size_t lanes, std::size_t lane) {
  const auto row = static_cast<std::size_t>(std::uint64_t{draws[hash]} * rows_each >> 32);
  return {(hash * rows_each + row) * lanes + lane, (draws[3] >> hash & 1U) != 0 ? -1.0f : 1.0f};
}

/// The middle one of three.
GT_HD inline float median_of_three(float a, float b, float c) {
  const float low = b < a ? b : a, high = a < b ? b : a;
  const float rest = c < high ? c : high;
  return low < rest ? rest : low;
}

}  // namespace gradtool::law
