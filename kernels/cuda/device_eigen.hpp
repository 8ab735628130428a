#pragma once

#include <cstddef>
#include <memory>

#include "lib/core/view.hpp"

/// Eigen-decomposition of symmetric matrices that lie on the GPU, by cuSOLVER (SYEVD, divide and conquer), in float64.
/// For matrices on the host: eigen.hpp.
namespace gradtool::cuda {

/// cuSOLVER on one GPU, on any stream; calls are thread-safe. The same bits from run to run on one machine; not those
/// of LAPACK, and eigenvectors of equal eigenvalues are any basis of their space.
class DeviceEigen {
 public:
  /// The calling thread's, for its current GPU, as Blas::of_this_thread.
  [[nodiscard]] static std::shared_ptr<DeviceEigen> of_this_thread();

  ~DeviceEigen();
  DeviceEigen(const DeviceEigen&) = delete;
  DeviceEigen& operator=(const DeviceEigen&) = delete;

  /// For matrices of `order`; not in the timed region.
  [[nodiscard]] std::size_t work_bytes(std::size_t order, bool vectors = true) const;

  /// `matrix` (column-major, lower triangle) becomes its eigenvectors, one behind the other, or without `vectors`
  /// nothing of use; `values` ascend. `*info`
  /// is not 0 where it did not converge. The matrix must be finite. Enqueued; cuSOLVER may wait for the stream itself.
  /// `work`: work_bytes(order), 256-byte aligned.
  void solve(Queue<Space::cuda> queue, std::size_t order, double* matrix, double* values, int* info,
             View<std::byte, Space::cuda> work, bool vectors = true);

 private:
  struct Handle;
  explicit DeviceEigen(std::unique_ptr<Handle> handle);
  std::unique_ptr<Handle> handle_;
};

}  // namespace gradtool::cuda
