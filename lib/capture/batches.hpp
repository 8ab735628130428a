#pragma once

#include <torch/types.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/capture/catalogue.hpp"
#include "lib/capture/dataset.hpp"

namespace gradtool {

/// Turns the stored bytes of samples into the input of a network, and their labels.
///
/// Images become (pixel / 255 - mean) / deviation for each channel, with the statistics of the training set, and are
/// then enlarged to the size of `input` where that is larger, by bilinear interpolation (PyTorch's, corners not
/// aligned). There is no augmentation, so that a capture depends on the samples and the seed alone. The tokens of a
/// text stay as they are.
class Batches {
 public:
  /// `input` is model_input() of the data sets, `statistics` those of the training set.
  Batches(const ModelInput& input, const ChannelStatistics& statistics);

  struct Tensors {
    torch::Tensor inputs;  ///< float32 [batch, channels, height, width], or int64 [batch, sequence_length]
    torch::Tensor labels;  ///< int64 [batch], or [batch, sequence_length]: the token behind each
  };
  /// Both on `device`. `samples` are positions in `dataset`.
  [[nodiscard]] Tensors make(const Dataset& dataset, std::span<const std::uint32_t> samples,
                             const torch::Device& device) const;

 private:
  [[nodiscard]] Tensors images(const Dataset& dataset, std::span<const std::uint32_t> samples) const;

  ModelInput input_;
  std::vector<std::array<float, 256>> value_of_;  ///< [channel][byte]
};

}  // namespace gradtool
