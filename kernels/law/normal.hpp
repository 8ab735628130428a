#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/law/philox.hpp"

// Standard normal draws by Box and Muller. Logarithm, sine and cosine are series of +, * and / in float64, so that CPU
// and GPU draw the same bits; they are right to some 10^-15.
namespace gradtool::law {

/// ln(n / 2^24) for n of 1 to 2^24.
GT_HD inline double log_of_24_bits(std::uint32_t n) {
  int halvings = 0;
  for (; n < 1u << 23; n <<= 1) ++halvings;
  double m = static_cast<double>(n) * 0x1p-24;  // 1/2 to 1
  if (m < 0.70710678118654752) {
    m *= 2.0;
    ++halvings;
  }
  // ln m = 2 (s + s^3 / 3 + s^5 / 5 + ...), |s| < 0.172
  const double s = (m - 1.0) / (m + 1.0);
  const double square = s * s;
  double sum = 0.0;
  for (int k = 23; k >= 1; k -= 2) sum = sum * square + 1.0 / static_cast<double>(k);
  return 2.0 * s * sum - static_cast<double>(halvings) * 0.69314718055994531;
}

/// sin or cos of 2 pi k / 2^24, k below 2^24.
GT_HD inline double wave_of_24_bits(std::uint32_t k, bool cosine) {
  // The nearest eighth of a turn is taken off exactly; a cosine is a quarter of a turn ahead.
  const std::uint32_t turn = (k + (cosine ? 1u << 22 : 0u)) & 0xffffffu;
  const std::uint32_t quarter = (turn + (1u << 21)) >> 22;
  const auto rest = static_cast<std::int32_t>(turn) - static_cast<std::int32_t>(quarter << 22);
  const double x = static_cast<double>(rest) * (0x1p-23 * 3.14159265358979324);  // -pi/4 to pi/4
  const double square = x * x;
  double sum = 0.0;
  if (quarter % 2 == 0) {
    for (int j = 17; j >= 3; j -= 2) sum = (1.0 - sum) * square / static_cast<double>(j * (j - 1));
    sum = x * (1.0 - sum);
  } else {
    for (int j = 16; j >= 2; j -= 2) sum = (1.0 - sum) * square / static_cast<double>(j * (j - 1));
    sum = 1.0 - sum;
  }
  return quarter % 4 < 2 ? sum : -sum;
}

/// Element `index` of a standard normal row. Draws come in pairs: radius and angle.
GT_HD inline float normal(const DrawKey& key, std::uint64_t index) {
  const Draws draws = draw4(key, index / 4);
  const bool second = index / 2 % 2 != 0;
  const std::uint32_t radius = (1u << 24) - ((second ? draws.bits[2] : draws.bits[0]) >> 8);
  const std::uint32_t angle = (second ? draws.bits[3] : draws.bits[1]) >> 8;
  return static_cast<float>(sqrt(-2.0 * log_of_24_bits(radius)) * wave_of_24_bits(angle, index % 2 == 0));
}

}  // namespace gradtool::law
