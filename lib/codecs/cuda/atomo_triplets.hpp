#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "kernels/cuda/atomo.hpp"
#include "kernels/cuda/blas.hpp"
#include "kernels/cuda/device_eigen.hpp"
#include "lib/codecs/atomo_parts.hpp"
#include "lib/codecs/cuda/per_device.hpp"

namespace gradtool {

/// Eigenvectors and eigenvalues of the Gram matrices of a layout's factored tensors, of the shorter side: products by
/// cuBLAS, vectors by cuSOLVER, on every GPU that a codec works on.
class AtomoTriplets {
 public:
  explicit AtomoTriplets(const AtomoParts& format);

  /// Numbers of all tensors together.
  [[nodiscard]] std::size_t values() const { return values_; }
  [[nodiscard]] std::size_t vectors() const { return vectors_; }
  [[nodiscard]] std::size_t tensors() const { return orders_.size(); }

  /// Starts the libraries on the calling thread's GPU, once; for Codec::plan.
  void make() const;
  /// Of decompose, after make().
  [[nodiscard]] std::size_t scratch_bytes() const;

  /// `room`: vectors, eigenvalues and failed of the part's place; `solved`: cuSOLVER's info, of every tensor. Enqueued.
  void decompose(Queue<Space::cuda> queue, const cuda::AtomoPart& part, const float* gradient,
                 const cuda::AtomoRoom& room, int* solved, View<std::byte, Space::cuda> scratch) const;

 private:
  struct Libraries {
    std::shared_ptr<cuda::Blas> blas;
    std::shared_ptr<cuda::DeviceEigen> eigen;
    std::size_t blas_bytes = 0;  ///< of work areas, asked for once: asking takes the library's time
    std::size_t eigen_bytes = 0;
  };
  struct Work;

  std::vector<std::size_t> orders_;
  std::size_t values_ = 0, vectors_ = 0;
  std::size_t widened_ = 0;  ///< numbers of a matrix in float64 at a time
  PerDevice<Libraries> libraries_;
};

}  // namespace gradtool
