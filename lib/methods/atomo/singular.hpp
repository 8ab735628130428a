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

/// Singular values and those singular vectors of the shorter side that are asked for, of matrices whose shorter side is
/// `order`, from the Gram matrix of that side in float64. Values below some 10^-8 of the largest are rounding errors.
/// Their vectors a are orthonormal all the same, so that the sum of a aᵀ M over all of them is M.
class SingularVectors {
 public:
  explicit SingularVectors(std::size_t order);
  [[nodiscard]] std::size_t scratch_bytes() const;

  /// The matrix that was decomposed last in a scratch.
  class Result {
   public:
    /// Descending; null for a matrix that is not finite, or whose eigenvalues LAPACK does not find.
    [[nodiscard]] const double* values() const { return values_; }
    /// `order` numbers that are valid until the next call; null where LAPACK does not find them.
    [[nodiscard]] const double* vector(std::size_t j);

   private:
    friend class SingularVectors;
    [[nodiscard]] bool is_alone(std::size_t j) const;
    const SingularVectors* singular_ = nullptr;
    PaddedMatrix matrix_;
    HostView<std::byte> scratch_;
    const double* values_ = nullptr;
    enum class Vectors : unsigned char { one_by_one, all, lost } vectors_ = Vectors::one_by_one;
  };
  [[nodiscard]] Result decompose(const PaddedMatrix& matrix, HostView<std::byte> scratch) const;

 private:
  struct Workspace;
  void fill_gram(const PaddedMatrix& matrix, const Workspace& work) const;
  std::size_t order_;
  ChosenEigenvectors eigen_;
};

/// The singular vector of the longer side times its singular value, from the vector a of the shorter side: Mᵀ a for a
/// wide matrix, M a for a tall one. Writes rows + columns - order numbers.
void other_side(const PaddedMatrix& matrix, const double* a, double* out);

}  // namespace gradtool::host
