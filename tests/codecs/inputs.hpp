#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <mutex>
#include <numbers>
#include <random>
#include <utility>
#include <vector>

#include "kernels/draws.hpp"

namespace gradtool::test {

/// Draws that are the same everywhere: Philox and exact arithmetic, no library distribution.
inline float uniform_at(std::uint32_t seed, std::uint64_t i) {
  return format::uniform(format::draw4({.seed = seed, .step = 77}, i / 4).bits[i % 4]);
}

/// Bell-shaped (sum of four uniforms) with heteroscedastic scale, like gradients: about 1e-3, exact in any build.
inline std::vector<float> new_gradient_like(std::size_t n, std::uint32_t seed) {
  constexpr std::size_t kTile = 512;  // elements, each of four draws that are made together
  std::vector<float> x(n);
  std::vector<std::uint32_t> draws(4 * kTile);
  for (std::size_t first = 0; first < n; first += kTile) {
    const std::size_t count = std::min(kTile, n - first);
    host::draw_tile({.seed = seed, .step = 77}, 4 * first, 4 * count, draws.data());
    for (std::size_t j = 0; j < count; ++j) {
      float bell = 0.0F;
      for (std::size_t k = 0; k < 4; ++k) bell += format::uniform(draws[4 * j + k]);
      x[first + j] = (bell - 2.0F) * 0x1p-9F * (1.0F + static_cast<float>((first + j) / 64 % 7));
    }
  }
  return x;
}

/// Numbers as new_gradient_like makes them. Up to 64 MiB are kept, because each codec's tests ask for the same ones.
inline std::vector<float> gradient_like(std::size_t n, std::uint32_t seed = 1) {
  constexpr std::size_t kMost = std::size_t{1} << 24;
  static std::mutex lock;
  static std::map<std::pair<std::size_t, std::uint32_t>, std::vector<float>> kept;
  static std::size_t elements = 0;
  const std::lock_guard<std::mutex> held{lock};
  const auto found = kept.find({n, seed});
  if (found != kept.end()) return found->second;
  if (n > kMost) return new_gradient_like(n, seed);
  if ((elements += n) > kMost) {
    kept.clear();
    elements = n;
  }
  return kept[{n, seed}] = new_gradient_like(n, seed);
}

/// Standard normal and Laplace draws for statistics (Box-Muller and inverse transform, in double).
inline std::vector<double> normal(std::size_t n, std::uint32_t seed) {
  std::vector<double> x(n);
  for (std::size_t i = 0; i < n; ++i) {
    const double u = (uniform_at(seed, 2 * i) + 0x1p-25);
    const double v = uniform_at(seed, 2 * i + 1);
    x[i] = std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
  }
  return x;
}

/// Standard normal draws of the library, which may differ between libraries: for properties, not for values.
inline std::vector<float> noise(std::size_t n, std::uint32_t seed) {
  std::mt19937 engine{seed};
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (auto& value : x) value = normal(engine);
  return x;
}

inline double nmse(const std::vector<float>& x, const std::vector<float>& y) {
  double error = 0.0;
  double energy = 0.0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double d = static_cast<double>(x[i]) - static_cast<double>(y[i]);
    error += d * d;
    energy += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  }
  return energy == 0.0 ? (error == 0.0 ? 0.0 : HUGE_VAL) : error / energy;
}

}  // namespace gradtool::test
