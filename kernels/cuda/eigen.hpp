#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "lib/core/view.hpp"

namespace gradtool::cuda {

/// Eigenvalues of symmetric matrices by cuSOLVER, in double precision. Belongs to the GPU that was current when it was
/// made; one thread at a time.
class SymmetricEigen {
 public:
  SymmetricEigen();
  ~SymmetricEigen();
  SymmetricEigen(const SymmetricEigen&) = delete;
  SymmetricEigen& operator=(const SymmetricEigen&) = delete;

  /// `matrix` is n x n on the host, n = values.size() >= 1. Eigenvalues ascend in `values`; with `vectors`, `matrix`
  /// becomes them: vector j at matrix[j * n]. Waits for the GPU. Fault::backend when cuSOLVER does not converge.
  void solve(std::span<double> matrix, std::span<double> values, bool vectors);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace gradtool::cuda
