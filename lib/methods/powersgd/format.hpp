#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/draws.hpp"

namespace gradtool::format {

/// Element `index` of a row of standard normal numbers, by the method of Box and Muller: sqrt(-2 ln(1 - u)) times
/// cos(2 pi v) for even indices and sin(2 pi v) for odd ones, where u and v are the uniform draws of elements
/// 2 floor(index/2) and 2 floor(index/2) + 1 of `key`. The functions are the processor's own, so a CPU and a GPU agree
/// to some 10^-15 before the result is rounded to float32, and ranks on processors of one kind draw equal bits.
GT_HD inline float normal(const DrawKey& key, std::uint64_t index) {
  constexpr double kTurn = 2.0 * 3.14159265358979324 * 0x1p-24;  // the angle of one of the 2^24 values of a draw
  const Draws draws = draw4(key, index / 4);
  const bool second = index / 2 % 2 != 0;
  const double u = static_cast<double>((second ? draws.bits[2] : draws.bits[0]) >> 8) * 0x1p-24;
  const double angle = kTurn * static_cast<double>((second ? draws.bits[3] : draws.bits[1]) >> 8);
  const double radius = std::sqrt(-2.0 * std::log(1.0 - u));
  return static_cast<float>(radius * (index % 2 == 0 ? std::cos(angle) : std::sin(angle)));
}

}  // namespace gradtool::format
