#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

namespace gradtool {

/// Eigenvalues of a symmetric n x n matrix, n = values.size(), ascending. With `vectors`, `matrix` becomes the
/// eigenvectors: vector j at matrix[j * n]; without, its contents are lost.
using Eigensolver = std::function<void(std::span<double> matrix, std::span<double> values, bool vectors)>;

/// LAPACK dsyev. Throws Fault::backend when it does not converge.
void lapack_eigenvalues(std::span<double> matrix, std::span<double> values, bool vectors);

/// Principal components of M samples of K coordinates, from their Gram matrix alone (the Gram trick: the M x M matrix
/// of inner products has the same non-zero eigenvalues as the K x K scatter matrix). Float64, O(M^3).
struct PrincipalComponents {
  /// Eigenvalues of the sample covariance (divisor M - 1), descending, none negative: min(K, M - 1) of them.
  std::vector<double> eigenvalues;
  double total = 0;  ///< their sum: the variance of the samples

  /// Smallest d whose first d eigenvalues hold at least `share` of the total; 0 when the total is 0.
  [[nodiscard]] std::size_t components_for(double share) const;
  /// Share of the total in the first k. Needs total > 0.
  [[nodiscard]] double explained(std::size_t k) const;
  /// exp of the entropy of the eigenvalues' shares (Roy and Vetterli 2007); 0 when the total is 0.
  [[nodiscard]] double effective_rank() const;
};

/// `gram`: M x M inner products of the samples less their mean over the samples. `square_norms`: |x|^2 of each sample
/// before that. K coordinates. Samples that differ by rounding only have no variance.
[[nodiscard]] PrincipalComponents principal_components(std::span<const double> gram,
                                                       std::span<const double> square_norms, std::size_t coordinates,
                                                       const Eigensolver& eigensolver = lapack_eigenvalues);

/// What a basis learned on the first half of the samples leaves of the second half.
struct Holdout {
  double residual = 0;  ///< sum over test samples of |x - mu - U U^T (x - mu)|^2; mu and U from the training samples
  double energy = 0;    ///< sum over test samples of |x|^2
};

/// U holds the d training components that explain `share` of the training variance. `square_norms`: |x|^2 of each
/// sample. Needs at least 4 samples; fewer give {0, 0}.
[[nodiscard]] Holdout holdout(std::span<const double> gram, std::span<const double> square_norms, double share,
                              const Eigensolver& eigensolver = lapack_eigenvalues);

}  // namespace gradtool
