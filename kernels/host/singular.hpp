#pragma once

#include <cstddef>
#include <span>

#include "kernels/host/blas.hpp"

namespace gradtool::host {

/// A row-major matrix of which only the first `elements` exist; the rest of it is zero.
struct PaddedMatrix {
  const float* data = nullptr;
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::size_t elements = 0;

  [[nodiscard]] std::size_t order() const { return rows < columns ? rows : columns; }
};

/// Singular values and the singular vectors of the shorter side, from the eigen-decomposition of the Gram matrix of
/// that side in float64. Values below some 10^-8 of the largest are rounding; the vectors are orthonormal all the same,
/// so that the sum over all of them of a aᵀ M is M.
class SingularVectors {
 public:
  explicit SingularVectors(std::size_t order);
  [[nodiscard]] std::size_t scratch_bytes() const;

  /// Where the results lie in the scratch: values descend, vector j has `order` entries from vectors + j * order on.
  struct Result {
    double* values = nullptr;
    double* vectors = nullptr;
  };
  /// Null pointers for a matrix that is not finite.
  [[nodiscard]] Result decompose(const PaddedMatrix& matrix, HostView<std::byte> scratch) const;

 private:
  std::size_t order_;
  SymmetricEigen eigen_;
};

/// The other side's vector times its singular value: Mᵀ a for a wide matrix, M a for a tall one; rows + columns - order
/// entries.
void other_side(const PaddedMatrix& matrix, const double* a, double* out);

/// law::atomic_probabilities of all values.
void atomic_probabilities(std::span<const double> values, double budget, std::span<double> probabilities);

}  // namespace gradtool::host
