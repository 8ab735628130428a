#pragma once

#include <cstddef>
#include <span>

#include "kernels/eigen.hpp"
#include "lib/core/scratch.hpp"
#include "lib/core/view.hpp"

/// The basis of one convolution layer (Yu et al., NeurIPS 2018, eqs. 3-6): the d leading principal components of its
/// slices, and on the CPU the products with them.
namespace gradtool::gradiveq {

/// On the CPU coordinates are handled in blocks, and a few blocks make a tile. Components are stored block by block, in
/// each block one component behind the other, and the last block is padded with zeros, so that both products read them
/// front to back.
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

/// Whether samples with this variance (the trace of their Gram matrix) and energy (their sum of squares) vary by more
/// than the rounding of float32. False where either is not finite.
[[nodiscard]] bool has_variance(double variance, double energy);
/// The smallest number of components that leave at most the share `lambda` of the variance (eq. 6), at most
/// min(samples - 1, coordinates). Components whose eigenvalue is rounding do not count. `values` are the eigenvalues of
/// the Gram matrix, ascending, one for each sample.
[[nodiscard]] std::size_t components_for(std::span<const double> values, std::size_t coordinates, double lambda);

/// Fits bases to `samples` samples each, in float64; components are rounded to float32 at the end.
class BasisFit {
 public:
  explicit BasisFit(std::size_t samples) : samples_{samples}, eigen_{samples} {}
  [[nodiscard]] std::size_t scratch_bytes() const { return planned<Workspace>(*this); }

  /// `rows` are the samples, `coordinates` values each, one behind the other. Writes the components to `basis`, which
  /// has memory for min(samples - 1, coordinates) of them, and returns their number d: the smallest number that leaves
  /// at most the share `lambda` of the variance (eq. 6), or 0 when a sample is not finite or nothing varies.
  ///
  /// The Gram matrix of the centred samples X, samples x samples, has the non-zero eigenvalues s of the covariance, and
  /// component j is Xᵀ v_j / sqrt(s_j) for its eigenvector v_j. The entry of largest magnitude in every v_j is made
  /// positive, so that signs are defined.
  [[nodiscard]] std::size_t fit(const float* rows, std::size_t coordinates, double lambda, float* basis,
                                HostView<std::byte> scratch) const;

 private:
  struct Workspace {
    Workspace(const BasisFit& fit, Scratch<Space::host> scratch)
        : gram{scratch.take<double>(fit.samples_ * fit.samples_)},
          values{scratch.take<double>(fit.samples_)},
          centred{scratch.take<double>(fit.samples_ * kTile)},
          product{scratch.take<double>(fit.samples_ * kTile)},
          eigen{scratch.take_bytes(fit.eigen_.scratch_bytes())} {}
    HostView<double> gram;     ///< then its eigenvectors
    HostView<double> values;   ///< its eigenvalues, ascending
    HostView<double> centred;  ///< a tile of the samples minus their mean
    HostView<double> product;  ///< a tile of the components
    HostView<std::byte> eigen;
  };

  std::size_t samples_;
  host::SymmetricEigen eigen_;
};

/// Slices that one call of the products below works on, at most.
inline constexpr std::size_t kSlicesAtOnce = 4;

/// y[m * y_stride + j] += component j of slice m for one tile. `x` are slices of kTile floats, one behind the other,
/// zero behind the end of the coordinates. `basis` is the tile's first block, `blocks` <= kTileBlocks.
void project_tile(const float* basis, std::size_t blocks, std::size_t d, const float* x, std::size_t slices, float* y,
                  std::size_t y_stride);

/// x (slices of kTile floats) := the sum of the components times y[m * y_stride + j] for one tile.
void rebuild_tile(const float* basis, std::size_t blocks, std::size_t d, const float* y, std::size_t y_stride,
                  std::size_t slices, float* x);

}  // namespace gradtool::gradiveq
