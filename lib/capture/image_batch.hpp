#pragma once

#include <torch/types.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "lib/capture/dataset.hpp"

namespace gradtool {

/// Turns stored bytes into what a network is fed: (pixel / 255 - mean) / deviation for each channel, with the
/// statistics of the training set. No augmentation: a capture must be explainable from the images and the seed.
class ImageBatch {
 public:
  explicit ImageBatch(const ChannelStatistics& statistics);

  struct Tensors {
    torch::Tensor images;  ///< float32 [batch, channels, height, width]
    torch::Tensor labels;  ///< int64 [batch]
  };
  /// Both on the CPU. `samples` are positions in `dataset`.
  [[nodiscard]] Tensors make(const Dataset& dataset, std::span<const std::uint32_t> samples) const;

 private:
  std::vector<std::array<float, 256>> value_of_;  ///< [channel][byte]
};

}  // namespace gradtool
