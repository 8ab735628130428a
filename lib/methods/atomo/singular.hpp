#pragma once

#include <cstddef>

#include "kernels/blas.hpp"
#include "kernels/eigen.hpp"
#include "lib/core/scratch.hpp"

namespace gradtool::host {

/// A row-major matrix of which only the first `elements` numbers are stored; the rest of it is zero.
struct PaddedMatrix {
  const float* data = nullptr;
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::size_t elements = 0;

  [[nodiscard]] std::size_t order() const { return rows < columns ? rows : columns; }
};

/// Singular values and the singular vectors of the shorter side of matrices whose shorter side is `order`, from the
/// eigen-decomposition of the Gram matrix of that side in float64. Values below some 10^-8 of the largest are rounding
/// errors. Their vectors a are orthonormal all the same, so that the sum of a aᵀ M over all of them is M.
class SingularVectors {
 public:
  explicit SingularVectors(std::size_t order);
  [[nodiscard]] std::size_t scratch_bytes() const;

  /// The results' places in the scratch. Values descend; vector j has `order` numbers from vectors + j * order on.
  struct Result {
    double* values = nullptr;
    double* vectors = nullptr;
  };
  /// Null pointers for a matrix that is not finite, or whose eigen-decomposition does not converge.
  [[nodiscard]] Result decompose(const PaddedMatrix& matrix, HostView<std::byte> scratch) const;

 private:
  struct Workspace;
  std::size_t order_;
  SymmetricEigen eigen_;
};

/// The singular vector of the longer side times its singular value, from the vector a of the shorter side: Mᵀ a for a
/// wide matrix, M a for a tall one. Writes rows + columns - order numbers.
void other_side(const PaddedMatrix& matrix, const double* a, double* out);

}  // namespace gradtool::host
