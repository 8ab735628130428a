#pragma once

#include <torch/types.h>

#include <vector>

#include "lib/capture/models.hpp"
#include "lib/io/gradient_file.hpp"

namespace gradtool {

/// The parameters of a network as one flat vector, in forward order and without gaps, shared by all workers' replicas:
/// so averaging, updating and dumping are operations on whole vectors, and replicas cannot drift apart.
class FlatParameters {
 public:
  /// Starts with the values of `model`, on its device.
  explicit FlatParameters(const Model& model);

  [[nodiscard]] const std::vector<TensorInfo>& infos() const noexcept { return infos_; }
  [[nodiscard]] torch::Tensor& values() noexcept { return values_; }  ///< float32 [elements]
  /// A zeroed vector of that size on the same device.
  [[nodiscard]] torch::Tensor zeros() const { return torch::zeros_like(values_); }

  /// Makes the parameters of `replica` (same architecture and device) views of values(), and their gradients views of
  /// `gradient`, to which its backward passes add from now on.
  void bind(Model& replica, const torch::Tensor& gradient) const;

 private:
  std::vector<TensorInfo> infos_;
  torch::Tensor values_;
};

}  // namespace gradtool
