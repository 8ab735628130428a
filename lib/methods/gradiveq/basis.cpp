#include "lib/methods/gradiveq/basis.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "kernels/blas.hpp"
#include "kernels/float_bits.hpp"
#include "kernels/lanes.hpp"

namespace gradtool::gradiveq {
namespace {

/// A variance below this share of the samples' energy is the rounding of float32.
constexpr double kNoVariance = 1e-15;
/// Eigenvalues below this share of the largest are rounding; their components would be noise.
constexpr double kRelativeZero = 1e-12;

/// out := columns [first, first + width) of the samples minus their means, in float64, as rows of `width`. Returns the
/// sum of squares before.
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

// The products keep sixteen partial sums side by side and fold them by halves, so that the bits do not depend on the
// instruction set.
constexpr std::size_t kLanes = 16;
constexpr std::size_t kSteps = kBasisBlock / kLanes;

/// Adds J components of M slices to y, over all blocks of a tile.
template <std::size_t M, std::size_t J>
struct Project {
  template <std::size_t Bytes>
  [[gnu::always_inline]] static void run(const float* basis, std::size_t blocks, std::size_t d, const float* x,
                                         float* y, std::size_t y_stride) {
    host::Lanes<Bytes> sum[J][M];
    for (std::size_t block = 0; block < blocks; ++block) {
      const float* u = basis + block * d * kBasisBlock;
      const float* in = x + block * kBasisBlock;
      for (std::size_t step = 0; step < kSteps; ++step) {
        host::Lanes<Bytes> slice[M];
#pragma GCC unroll 8
        for (std::size_t m = 0; m < M; ++m) slice[m].load(in + m * kTile + step * kLanes);
#pragma GCC unroll 8
        for (std::size_t j = 0; j < J; ++j) {
          host::Lanes<Bytes> component;
          component.load(u + j * kBasisBlock + step * kLanes);
#pragma GCC unroll 8
          for (std::size_t m = 0; m < M; ++m) sum[j][m].add_product(component, slice[m]);
        }
      }
    }
#pragma GCC unroll 8
    for (std::size_t j = 0; j < J; ++j) {
#pragma GCC unroll 8
      for (std::size_t m = 0; m < M; ++m) y[m * y_stride + j] += sum[j][m].sum();
    }
  }
};

/// All components of M slices, four at a time.
template <std::size_t M>
void project_slices(const float* basis, std::size_t blocks, std::size_t d, const float* x, float* y,
                    std::size_t y_stride) {
  std::size_t j = 0;
  for (; j + 4 <= d; j += 4)
    host::run_with_vectors<Project<M, 4>>(basis + j * kBasisBlock, blocks, d, x, y + j, y_stride);
  for (; j < d; ++j) host::run_with_vectors<Project<M, 1>>(basis + j * kBasisBlock, blocks, d, x, y + j, y_stride);
}

/// M slices of a tile from their coefficients.
template <std::size_t M>
struct Rebuild {
  template <std::size_t Bytes>
  [[gnu::always_inline]] static void run(const float* basis, std::size_t blocks, std::size_t d, const float* y,
                                         std::size_t y_stride, float* x) {
    for (std::size_t block = 0; block < blocks; ++block) {
      const float* u = basis + block * d * kBasisBlock;
      host::Lanes<Bytes> sum[M][kSteps];
      for (std::size_t j = 0; j < d; ++j, u += kBasisBlock) {
        host::Lanes<Bytes> component[kSteps];
#pragma GCC unroll 8
        for (std::size_t step = 0; step < kSteps; ++step) component[step].load(u + step * kLanes);
#pragma GCC unroll 8
        for (std::size_t m = 0; m < M; ++m) {
          const float weight = y[m * y_stride + j];
#pragma GCC unroll 8
          for (std::size_t step = 0; step < kSteps; ++step) sum[m][step].add_product(component[step], weight);
        }
      }
#pragma GCC unroll 8
      for (std::size_t m = 0; m < M; ++m) {
#pragma GCC unroll 8
        for (std::size_t step = 0; step < kSteps; ++step)
          sum[m][step].store(x + m * kTile + block * kBasisBlock + step * kLanes);
      }
    }
  }
};

}  // namespace

bool has_variance(double variance, double energy) {
  return std::isfinite(variance) && variance > kNoVariance * energy;
}

std::size_t components_for(std::span<const double> values, std::size_t coordinates, double lambda) {
  const std::size_t samples = values.size();
  const double largest = values[samples - 1];
  const std::size_t most = std::min(samples - 1, coordinates);
  double left = 0.0;  // variance that d components leave, summed from the smallest eigenvalue on
  for (const double value : values) left += std::max(value, 0.0);
  const double allowed = lambda * left;
  std::size_t d = 0;
  while (d < most && left > allowed && values[samples - 1 - d] > kRelativeZero * largest)
    left -= values[samples - 1 - d++];
  return d;
}

std::size_t BasisFit::fit(const float* rows, std::size_t coordinates, double lambda, float* basis,
                          HostView<std::byte> scratch) const {
  const Workspace workspace{*this, Scratch<Space::host>{scratch}};
  double* gram = workspace.gram.data();
  double* values = workspace.values.data();
  double* centred = workspace.centred.data();
  double* product = workspace.product.data();

  std::fill_n(gram, samples_ * samples_, 0.0);
  double energy = 0.0;
  for (std::size_t first = 0; first < coordinates; first += kTile) {
    const std::size_t width = std::min(kTile, coordinates - first);
    energy += centre(rows, samples_, coordinates, first, width, centred);
    host::add_gram(centred, samples_, width, gram);
  }
  double variance = 0.0;
  for (std::size_t t = 0; t < samples_; ++t) variance += gram[t * samples_ + t];
  if (!has_variance(variance, energy)) return 0;
  if (!eigen_.solve(gram, values, workspace.eigen)) return 0;

  const std::size_t d = components_for({values, samples_}, coordinates, lambda);
  const std::size_t least = samples_ - d;  // eigenvectors ascend by eigenvalue, so the last d are wanted
  for (std::size_t j = least; j < samples_; ++j) {
    double* v = gram + j * samples_;
    std::size_t top = 0;
    for (std::size_t t = 1; t < samples_; ++t) top = std::abs(v[t]) > std::abs(v[top]) ? t : top;
    const double factor = std::copysign(1.0 / std::sqrt(values[j]), v[top]);
    for (std::size_t t = 0; t < samples_; ++t) v[t] *= factor;
  }
  for (std::size_t first = 0; first < coordinates; first += kTile) {
    const std::size_t width = std::min(kTile, coordinates - first);
    centre(rows, samples_, coordinates, first, width, centred);
    host::multiply(gram + least * samples_, centred, d, samples_, width, product);
    for (std::size_t block = 0; block < width; block += kBasisBlock) {
      const std::size_t count = std::min(kBasisBlock, width - block);
      float* to = basis + (first + block) * d;
      for (std::size_t j = 0; j < d; ++j, to += kBasisBlock) {
        const double* from = product + (d - 1 - j) * width + block;
        for (std::size_t i = 0; i < count; ++i) to[i] = static_cast<float>(from[i]);
        std::fill(to + count, to + kBasisBlock, 0.0F);
      }
    }
  }
  return d;
}

void project_tile(const float* basis, std::size_t blocks, std::size_t d, const float* x, std::size_t slices, float* y,
                  std::size_t y_stride) {
  switch (slices) {
    case 1:
      return project_slices<1>(basis, blocks, d, x, y, y_stride);
    case 2:
      return project_slices<2>(basis, blocks, d, x, y, y_stride);
    case 3:
      return project_slices<3>(basis, blocks, d, x, y, y_stride);
    default:
      return project_slices<4>(basis, blocks, d, x, y, y_stride);
  }
}

void rebuild_tile(const float* basis, std::size_t blocks, std::size_t d, const float* y, std::size_t y_stride,
                  std::size_t slices, float* x) {
  switch (slices) {
    case 1:
      return host::run_with_vectors<Rebuild<1>>(basis, blocks, d, y, y_stride, x);
    case 2:
      return host::run_with_vectors<Rebuild<2>>(basis, blocks, d, y, y_stride, x);
    case 3:
      return host::run_with_vectors<Rebuild<3>>(basis, blocks, d, y, y_stride, x);
    default:
      return host::run_with_vectors<Rebuild<4>>(basis, blocks, d, y, y_stride, x);
  }
}

}  // namespace gradtool::gradiveq
