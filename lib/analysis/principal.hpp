#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "kernels/eigen.hpp"

namespace gradtool {

/// Computes the eigenvalues of a symmetric n x n matrix, in ascending order; n = values.size(). With `vectors`,
/// `matrix` becomes the eigenvectors, vector j at matrix[j * n]; otherwise its contents are lost.
using Eigensolver = std::function<void(std::span<double> matrix, std::span<double> values, bool vectors)>;

/// Rounding leaves eigenvalues of about this share of the largest where there should be zeros.
inline constexpr double kRelativeZero = 1e-14;

/// The principal components of M samples with K coordinates each, computed from their Gram matrix alone: the M x M
/// matrix of inner products has the same non-zero eigenvalues as the K x K scatter matrix. Float64, O(M^3).
struct PrincipalComponents {
  /// The min(K, M - 1) eigenvalues of the sample covariance (divisor M - 1), in descending order, none of them
  /// negative.
  std::vector<double> eigenvalues;
  double total = 0;  ///< their sum: the variance of the samples

  /// The smallest d such that the first d eigenvalues hold at least `share` of the total; 0 when the total is 0.
  [[nodiscard]] std::size_t components_for(double share) const;
  /// The share of the total in the first k eigenvalues. Needs total > 0.
  [[nodiscard]] double explained(std::size_t k) const;
  /// exp of the entropy of the eigenvalues' shares (Roy and Vetterli 2007); 0 when the total is 0.
  [[nodiscard]] double effective_rank() const;
};

/// `gram` has the M x M inner products of the samples less their mean, `square_norms` the |x|^2 of each sample itself;
/// `coordinates` is K. Samples that differ by rounding only count as equal, with no variance.
[[nodiscard]] PrincipalComponents principal_components(std::span<const double> gram,
                                                       std::span<const double> square_norms, std::size_t coordinates,
                                                       const Eigensolver& eigensolver = host::lapack_eigenvalues);

/// How well a basis that was learned on the first half of the samples represents the second half.
struct Holdout {
  double residual = 0;  ///< sum over test samples of |x - mu - U U^T (x - mu)|^2; mu and U from the training samples
  double energy = 0;    ///< sum over test samples of |x|^2
};

/// U holds the d components of the training samples that explain `share` of their variance. `gram` and `square_norms`
/// as above. With fewer than 4 samples the result is {0, 0}.
[[nodiscard]] Holdout holdout(std::span<const double> gram, std::span<const double> square_norms, double share,
                              const Eigensolver& eigensolver = host::lapack_eigenvalues);

}  // namespace gradtool
