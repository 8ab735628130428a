#include "kernels/host/slice_basis.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "lib/core/arena.hpp"

namespace gradtool::host {
namespace {

/// Variance below this share of the samples' energy is the rounding of float32.
constexpr double kNoVariance = 1e-15;
/// Eigenvalues below this share of the largest are rounding; their components would be noise.
constexpr double kRelativeZero = 1e-12;

constexpr std::size_t padded(std::size_t bytes) {
  return Arena<Space::host>::padded_size(bytes);
}

/// Columns [first, first + width) of the samples minus their means, in float64, `width` long rows. Returns the energy
/// before.
double centre(const float* rows, std::size_t samples, std::size_t coordinates, std::size_t first, std::size_t width,
              double* out) {
  std::array<double, kTile> mean{};
  double energy = 0.0;
  for (std::size_t t = 0; t < samples; ++t) {
    const float* row = rows + t * coordinates + first;
    for (std::size_t i = 0; i < width; ++i) mean[i] += static_cast<double>(row[i]);
  }
  for (std::size_t i = 0; i < width; ++i) mean[i] /= static_cast<double>(samples);
  for (std::size_t t = 0; t < samples; ++t) {
    const float* row = rows + t * coordinates + first;
    double* to = out + t * width;
    for (std::size_t i = 0; i < width; ++i) {
      const auto x = static_cast<double>(row[i]);
      energy += x * x;
      to[i] = x - mean[i];
    }
  }
  return energy;
}

}  // namespace

bool has_variance(double variance, double energy) {
  return std::isfinite(variance) && variance > kNoVariance * energy;
}

std::size_t components_for(std::span<const double> values, std::size_t coordinates, double lambda) {
  const std::size_t samples = values.size();
  const double largest = values[samples - 1];
  const std::size_t most = std::min(samples - 1, coordinates);
  double left = 0.0;  // what d components leave, summed from the small end
  for (const double value : values) left += std::max(value, 0.0);
  const double allowed = lambda * left;
  std::size_t d = 0;
  while (d < most && left > allowed && values[samples - 1 - d] > kRelativeZero * largest)
    left -= values[samples - 1 - d++];
  return d;
}

BasisFit::BasisFit(std::size_t samples) : samples_{samples}, eigen_{samples} {}

std::size_t BasisFit::scratch_bytes() const {
  return padded(8 * samples_ * samples_) + padded(8 * samples_) + 2 * padded(8 * samples_ * kTile) +
         eigen_.scratch_bytes();
}

std::size_t BasisFit::fit(const float* rows, std::size_t coordinates, double lambda, float* basis,
                          HostView<std::byte> scratch) const {
  std::size_t used = 0;
  const auto take = [&](std::size_t doubles) {
    auto* piece = reinterpret_cast<double*>(scratch.data() + used);
    used += padded(8 * doubles);
    return piece;
  };
  double* gram = take(samples_ * samples_);
  double* values = take(samples_);
  double* block = take(samples_ * kTile);
  double* product = take(samples_ * kTile);

  std::fill_n(gram, samples_ * samples_, 0.0);
  double energy = 0.0;
  for (std::size_t first = 0; first < coordinates; first += kTile) {
    const std::size_t width = std::min(kTile, coordinates - first);
    energy += centre(rows, samples_, coordinates, first, width, block);
    add_gram(block, samples_, width, gram);
  }
  double variance = 0.0;
  for (std::size_t t = 0; t < samples_; ++t) variance += gram[t * samples_ + t];
  if (!has_variance(variance, energy)) return 0;
  if (!eigen_.solve(gram, values, {scratch.data() + used, scratch.size() - used})) return 0;

  const std::size_t d = components_for({values, samples_}, coordinates, lambda);
  const std::size_t least = samples_ - d;  // eigenvectors ascend: the last d are wanted
  for (std::size_t j = least; j < samples_; ++j) {
    double* v = gram + j * samples_;
    std::size_t top = 0;
    for (std::size_t t = 1; t < samples_; ++t) top = std::abs(v[t]) > std::abs(v[top]) ? t : top;
    const double factor = std::copysign(1.0 / std::sqrt(values[j]), v[top]);
    for (std::size_t t = 0; t < samples_; ++t) v[t] *= factor;
  }
  for (std::size_t first = 0; first < coordinates; first += kTile) {
    const std::size_t width = std::min(kTile, coordinates - first);
    centre(rows, samples_, coordinates, first, width, block);
    multiply(gram + least * samples_, block, d, samples_, width, product);
    for (std::size_t at = 0; at < width; at += kBasisBlock) {
      const std::size_t here = std::min(kBasisBlock, width - at);
      float* to = basis + (first + at) * d;
      for (std::size_t j = 0; j < d; ++j, to += kBasisBlock) {
        const double* from = product + (d - 1 - j) * width + at;
        for (std::size_t i = 0; i < here; ++i) to[i] = static_cast<float>(from[i]);
        std::fill(to + here, to + kBasisBlock, 0.0F);
      }
    }
  }
  return d;
}

}  // namespace gradtool::host
