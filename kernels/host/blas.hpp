#pragma once

#include <cstddef>

#include "lib/core/view.hpp"

// The few routines of BLAS and LAPACK that codecs need, on memory that the caller took beforehand. Ranks are threads
// and codecs cut their own work into pieces, so the library's own threads are switched off by the first of these calls.
// OpenBLAS may call malloc inside; the allocation watch counts operator new only.
namespace gradtool::host {

/// gram += rows rowsᵀ for `count` rows of `length`, one behind the other. Only the lower triangle of `gram`
/// (column-major, count x count) is kept. Float64, DSYRK.
void add_gram(const double* rows, std::size_t count, std::size_t length, double* gram);

/// out := weights rows, row-major: `outputs` x `count` times `count` x `length`. Float64, DGEMM.
void multiply(const double* weights, const double* rows, std::size_t outputs, std::size_t count, std::size_t length,
              double* out);

/// The same in float32, SGEMM: what benchmarks compare with.
void multiply(const float* weights, const float* rows, std::size_t outputs, std::size_t count, std::size_t length,
              float* out);
/// out := weights rowsᵀ, row-major: `outputs` x `length` times `length` x `count`, of rows of `length`. SGEMM.
void multiply_transposed(const float* weights, const float* rows, std::size_t outputs, std::size_t length,
                         std::size_t count, float* out);

/// Eigen-decomposition of symmetric matrices of one order, by divide and conquer (DSYEVD).
class SymmetricEigen {
 public:
  explicit SymmetricEigen(std::size_t order);
  [[nodiscard]] std::size_t scratch_bytes() const;
  /// `matrix` (column-major, lower triangle) becomes its eigenvectors, one behind the other; `values` ascend. False
  /// when it did not converge. The matrix must be finite.
  [[nodiscard]] bool solve(double* matrix, double* values, HostView<std::byte> scratch) const;

 private:
  std::size_t order_;
  int work_ = 0;
  int integers_ = 0;
};

}  // namespace gradtool::host
