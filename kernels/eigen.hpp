#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "lib/core/view.hpp"

/// Eigen-decomposition of symmetric matrices in float64: LAPACK on the CPU, cuSOLVER on the GPU. The two do not agree
/// to the bit, and eigenvectors of equal eigenvalues are any basis of their space; each is the same from run to run.

namespace gradtool::host {

/// The decomposition of matrices of one order by divide and conquer (DSYEVD), in working memory of the caller's and on
/// one thread: ranks are threads, and codecs cut their own work into pieces.
class SymmetricEigen {
 public:
  explicit SymmetricEigen(std::size_t order);
  [[nodiscard]] std::size_t scratch_bytes() const;
  /// `matrix` (column-major, of which the lower triangle is read) becomes its eigenvectors, one behind the other, and
  /// `values` its eigenvalues, ascending. False when it did not converge. The matrix must be finite.
  [[nodiscard]] bool solve(double* matrix, double* values, HostView<std::byte> scratch) const;

 private:
  std::size_t order_;
  int work_ = 0;      ///< float64 numbers that LAPACK works in
  int integers_ = 0;  ///< integers that LAPACK works in
};

/// All eigenvalues of matrices of one order and those eigenvectors that are asked for, where these are few: reducing a
/// matrix to a tridiagonal one takes O(n³), but less than the vectors of all, and each vector of that O(n²) more. On
/// one thread, in working memory of the caller's.
class ChosenEigenvectors {
 public:
  explicit ChosenEigenvectors(std::size_t order);
  [[nodiscard]] std::size_t scratch_bytes() const;
  /// `values` become the eigenvalues of `matrix` (column-major, of which the lower triangle is read), ascending
  /// (DSYTRD, DSTERF). `matrix` becomes what find_vector takes. False when it did not converge. The matrix must be
  /// finite.
  [[nodiscard]] bool find_values(double* matrix, double* values, HostView<std::byte> scratch) const;
  /// The eigenvector of values[index], after find_values and with its matrix and scratch (DSTEMR, DORMTR). Rounding
  /// mixes it with those of other eigenvalues by some 2^-52 |values| / distance, and differently than these are mixed
  /// with it: use find_vectors where eigenvalues are so close that this matters. False when it did not converge.
  [[nodiscard]] bool find_vector(const double* matrix, std::size_t index, double* vector,
                                 HostView<std::byte> scratch) const;
  /// `matrix`, as before find_values, becomes all its eigenvectors, orthonormal, and `values` its eigenvalues (DSYEV).
  [[nodiscard]] bool find_vectors(double* matrix, double* values, HostView<std::byte> scratch) const;

 private:
  struct Workspace;
  std::size_t order_;
  int work_ = 0;  ///< float64 numbers that LAPACK works in
};

/// The eigenvalues of a symmetric n x n matrix, n = values.size() >= 1, ascending (DSYEV). With `vectors`, `matrix`
/// becomes the eigenvectors, vector j at matrix[j * n]; without, its contents are lost. Allocates its working memory
/// and may use LAPACK's threads, so it is for analyses. Throws Fault::backend when it does not converge.
void lapack_eigenvalues(std::span<double> matrix, std::span<double> values, bool vectors);

}  // namespace gradtool::host

namespace gradtool::cuda {

/// cuSOLVER's decomposition by divide and conquer (SYEVD) of matrices that lie on the GPU. For one GPU and any of its
/// streams; calls are thread-safe.
class DeviceEigen {
 public:
  /// The calling thread's, for its current GPU, as Blas::of_this_thread.
  [[nodiscard]] static std::shared_ptr<DeviceEigen> of_this_thread();

  ~DeviceEigen();
  DeviceEigen(const DeviceEigen&) = delete;
  DeviceEigen& operator=(const DeviceEigen&) = delete;

  /// Working memory for matrices of `order`. Asks cuSOLVER, so call it before the clock starts.
  [[nodiscard]] std::size_t work_bytes(std::size_t order, bool vectors = true) const;

  /// `matrix` (column-major, of which the lower triangle is read) becomes its eigenvectors, one behind the other;
  /// without `vectors` its contents are lost. `values` become its eigenvalues, ascending. `*info`, on the GPU, is not 0
  /// where the iteration did not converge. The matrix must be finite. Enqueued; cuSOLVER itself may wait for the
  /// stream. `work` holds work_bytes(order, vectors) and is 256-byte aligned.
  void solve(Queue<Space::cuda> queue, std::size_t order, double* matrix, double* values, int* info,
             View<std::byte, Space::cuda> work, bool vectors = true);

 private:
  struct Handle;
  explicit DeviceEigen(std::unique_ptr<Handle> handle);
  std::unique_ptr<Handle> handle_;
};

/// Solver for matrices on the host, with a stream and GPU memory of its own. Belongs to the GPU that was current when
/// it was made; one thread at a time.
class SymmetricEigen {
 public:
  SymmetricEigen();
  ~SymmetricEigen();
  SymmetricEigen(const SymmetricEigen&) = delete;
  SymmetricEigen& operator=(const SymmetricEigen&) = delete;

  /// Has the contract of host::lapack_eigenvalues. Waits for the GPU. Throws Fault::backend when cuSOLVER does not
  /// converge.
  void solve(std::span<double> matrix, std::span<double> values, bool vectors);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace gradtool::cuda
