#pragma once

#include <cmath>
#include <numbers>
#include <string>
#include <vector>

#include "lib/codecs/codec.hpp"
#include "tests/codecs/inputs.hpp"

namespace gradtool::test {

inline const EncodeContext kGoldenContext{.key = {.seed = 2026, .step = 5, .rank = 2, .tensor = 11}, .iteration = 500};

/// Inputs by name. All but `tones` are made of exact arithmetic. `tones` is for transform codecs with a fixed range: 24
/// frequencies whose components lie inside a code, so that any correct transform gives the same payload. `impulse` is
/// for those that scale to the largest component: it is every component of the spectrum, exactly.
inline std::vector<float> golden_input(const std::string& name) {
  if (name == "empty") return {};
  if (name == "one") return {-0.37F};
  if (name == "impulse") {
    std::vector<float> x(256, 0.0F);
    x[0] = 0.77F;  // times its reciprocal rounded to nearest is below 1 in float32
    return x;
  }
  if (name == "seven") return gradient_like(7, 3);
  if (name == "gradient1025") return gradient_like(1025, 7);
  if (name == "gradient100003") return gradient_like(100'003, 8);
  if (name == "specials") {  // zeros of both signs, subnormals, extremes of normal range
    auto x = gradient_like(2048, 9);
    x[0] = 0.0F;
    x[1] = -0.0F;
    x[2] = 1e-41F;
    x[3] = -1e-41F;
    x[4] = 0x1p-126F;
    x[5] = 60000.0F;
    x[6] = -0x1p-15F;
    return x;
  }
  if (name == "tones") {
    const std::size_t n = 1000;
    std::vector<float> x(n, 0.0F);
    for (std::size_t t = 0; t < n; ++t) {
      double sum = 0.0;
      for (int k = 1; k <= 24; ++k) {
        // Unitary components (64 + j + 1/4)/64 2^-e: a quarter of a code above its lower border, for any m up to 6 and
        // for both roundings, and far from the next border in units of a transform's error.
        const double re = std::ldexp((64.0 + (k * 5) % 64 + 0.25) / 64.0, -1 - k / 6);
        const double im = std::ldexp((64.0 + (k * 11) % 64 + 0.25) / 64.0, -2 - k / 6) * (k % 2 == 0 ? 1.0 : -1.0);
        const double angle = 2.0 * std::numbers::pi * static_cast<double>(17 * k * t % n) / static_cast<double>(n);
        sum += re * std::cos(angle) - im * std::sin(angle);
      }
      x[t] = static_cast<float>(sum * 2.0 / std::sqrt(static_cast<double>(n)));
    }
    return x;
  }
  return {};
}

}  // namespace gradtool::test
