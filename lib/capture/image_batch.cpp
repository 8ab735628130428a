#include "lib/capture/image_batch.hpp"

namespace gradtool {

ImageBatch::ImageBatch(const ChannelStatistics& statistics) : value_of_(statistics.mean.size()) {
  for (std::size_t c = 0; c < value_of_.size(); ++c) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const double scaled = static_cast<double>(byte) / 255.0;
      value_of_[c][byte] = static_cast<float>((scaled - statistics.mean[c]) / statistics.deviation[c]);
    }
  }
}

ImageBatch::Tensors ImageBatch::make(const Dataset& dataset, std::span<const std::uint32_t> samples) const {
  const auto count = static_cast<std::int64_t>(samples.size());
  Tensors batch{torch::empty({count, dataset.channels, dataset.height, dataset.width}, torch::kFloat32),
                torch::empty({count}, torch::kInt64)};
  const std::size_t image = dataset.image_bytes();
  const std::size_t plane = image / value_of_.size();
  float* out = batch.images.data_ptr<float>();
  std::int64_t* label = batch.labels.data_ptr<std::int64_t>();
  for (const std::uint32_t sample : samples) {
    const std::uint8_t* pixels = dataset.pixels.data() + sample * image;
    for (const auto& values : value_of_) {
      for (std::size_t i = 0; i < plane; ++i) *out++ = values[*pixels++];
    }
    *label++ = dataset.labels[sample];
  }
  return batch;
}

}  // namespace gradtool
