#pragma once

#include <cstddef>
#include <span>

#include "kernels/host/blas.hpp"
#include "lib/core/view.hpp"

// GradiVeQ's compressor of one convolution layer (Yu et al., NeurIPS 2018, eqs. 3-6): the d leading principal
// components of its slices, and the products with them.
namespace gradtool::host {

/// Coordinates that are handled together, and how many of these blocks make a tile. Components are stored block by
/// block, in each block one component behind the other, and the last block is padded with zeros: both products then
/// read them front to back.
inline constexpr std::size_t kBasisBlock = 64;
inline constexpr std::size_t kTileBlocks = 8;
inline constexpr std::size_t kTile = kBasisBlock * kTileBlocks;

[[nodiscard]] constexpr std::size_t basis_blocks(std::size_t coordinates) {
  return (coordinates + kBasisBlock - 1) / kBasisBlock;
}
/// Floats of d components of `coordinates` coordinates.
[[nodiscard]] constexpr std::size_t basis_size(std::size_t coordinates, std::size_t d) {
  return basis_blocks(coordinates) * kBasisBlock * d;
}

/// Whether samples with this variance (the trace of their Gram matrix) and energy vary by more than the rounding of
/// float32. False where either is not finite.
[[nodiscard]] bool has_variance(double variance, double energy);
/// The smallest number of components that leave at most the share `lambda` of the variance (eq. 6), no more than
/// min(samples - 1, coordinates), none of them rounding. `values`: eigenvalues of the Gram matrix, ascending.
[[nodiscard]] std::size_t components_for(std::span<const double> values, std::size_t coordinates, double lambda);

/// Fits bases to `samples` samples each. Float64 throughout, components rounded to float32 at the end.
class BasisFit {
 public:
  explicit BasisFit(std::size_t samples);
  [[nodiscard]] std::size_t scratch_bytes() const;

  /// `rows`: one sample of `coordinates` values behind the other. Returns d, the smallest number of components that
  /// leave at most the share `lambda` of the variance (eq. 6), and writes them to `basis`, which has room for
  /// min(samples - 1, coordinates). 0 when there is nothing to learn: a sample that is not finite, or no variance
  /// beyond the rounding of float32.
  ///
  /// By the Gram matrix of the centred samples, samples x samples, which has the covariance's non-zero eigenvalues:
  /// component j = Xᵀ v_j / sqrt(s_j). The largest component of every v_j is positive, so that signs are defined.
  [[nodiscard]] std::size_t fit(const float* rows, std::size_t coordinates, double lambda, float* basis,
                                HostView<std::byte> scratch) const;

 private:
  std::size_t samples_;
  SymmetricEigen eigen_;
};

/// Slices that one call of the products below works on, at most.
inline constexpr std::size_t kSlicesAtOnce = 4;

/// y[m * y_stride + j] += component j of slice m for a tile: slices of kTile floats in `x`, one behind the other, zero
/// past the end of the coordinates. `basis` is the tile's first block, `blocks` <= kTileBlocks.
void project_tile(const float* basis, std::size_t blocks, std::size_t d, const float* x, std::size_t slices, float* y,
                  std::size_t y_stride);

/// x (slices of kTile floats) := the sum of components times y[m * y_stride + j].
void rebuild_tile(const float* basis, std::size_t blocks, std::size_t d, const float* y, std::size_t y_stride,
                  std::size_t slices, float* x);

}  // namespace gradtool::host
