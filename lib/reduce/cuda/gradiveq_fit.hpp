#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kernels/cuda/blas.hpp"
#include "kernels/cuda/device_eigen.hpp"
#include "lib/codecs/params.hpp"
#include "lib/reduce/gradiveq_layers.hpp"

namespace gradtool::gradiveq {

/// As host::BasisFit, on a GPU: Gram matrices by cuBLAS, their eigenvectors by cuSOLVER, both in float64. A basis is
/// stored component after component. How many components there are decides how long messages are, so fitting waits
/// for the GPU: up to four times a layer here, and after that for a digest and for the tables of what moves.
class CudaBasisFit {
 public:
  using Queue = gradtool::Queue<Space::cuda>;
  using Bytes = View<std::byte, Space::cuda>;

  CudaBasisFit(std::span<const Layer> layers, const Params& params);

  [[nodiscard]] std::size_t scratch_bytes() const;
  /// One slice of a layer for every sample: k coordinates, `stride` from sample to sample.
  struct Samples {
    const float* rows;
    std::size_t k, stride;
  };

  /// `means`, the sums of a layer's slices over the samples, become means.
  /// Writes the basis and returns the number of components d, 0 where the layer is to be sent as it is.
  std::size_t fit(Queue queue, View<float, Space::cuda> means, const Samples& samples, float* basis, Bytes scratch);

 private:
  struct Room;
  [[nodiscard]] Room room(Bytes scratch) const;
  [[nodiscard]] std::size_t most_blocks() const;
  /// The Gram matrix of the centred rows. Returns whether the rows have variance and finite means.
  bool fill_gram(Queue queue, const Samples& samples, const Room& room);
  std::size_t count_components(Queue queue, std::size_t k, const Room& room);

  std::size_t samples_;  ///< L_t
  double lambda_;
  double min_ratio_;
  std::size_t longest_ = 0, width_ = 1;
  std::shared_ptr<cuda::Blas> blas_;
  std::shared_ptr<cuda::DeviceEigen> eigen_;
  std::vector<double> values_;
};

}  // namespace gradtool::gradiveq
