#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/law/hd.hpp"

namespace gradtool::law {

/// What THC's codes stand for: code q is value[q] of a scale of `top` + 1 whole numbers, which covers -t to t of a
/// number that is about normal with variance 1. Values ascend from 0 to `top`, so sums over ranks stay whole numbers.
template <std::uint32_t Bits>
struct ThcTable {
  static constexpr std::uint32_t kLevels = 1u << Bits;
  float value[kLevels];
  float width[kLevels - 1];  ///< value[q + 1] - value[q]
  float top;
  float t;
};

/// A code and its value.
struct ThcCode {
  std::uint32_t code;
  float value;
};

/// Stochastic rounding of x in [0, top] to a value of the table, up where the draw u in [0, 1) is below the share of
/// the step that x has gone. A step that x lies above counts whatever u is, one that it lies below never: no search.
template <std::uint32_t Bits>
GT_HD inline ThcCode thc_encode(const ThcTable<Bits>& table, float x, float u) {
  std::uint32_t code = 0;
  float value = 0.0f;
  for (std::uint32_t q = 0; q + 1 < ThcTable<Bits>::kLevels; ++q) {
    const bool above = x > table.value[q] + u * table.width[q];
    code += above ? 1u : 0u;
    value = above ? table.value[q + 1] : value;
  }
  return {code, value};
}

/// [0, top] around the middle, NaN to the middle of nothing: 0.
GT_HD inline float thc_clamp(float x, float top) {
  x = x > 0.0f ? x : 0.0f;
  return x < top ? x : top;
}

}  // namespace gradtool::law
