#include "lib/capture/batches.hpp"

#include <torch/nn/functional.h>

#include <algorithm>

namespace gradtool {
namespace {

Batches::Tensors text(const Dataset& dataset, std::span<const std::uint32_t> samples) {
  const auto count = static_cast<std::int64_t>(samples.size());
  const auto length = static_cast<std::size_t>(dataset.sequence_length);
  Batches::Tensors batch{torch::empty({count, dataset.sequence_length}, torch::kInt64),
                         torch::empty({count, dataset.sequence_length}, torch::kInt64)};
  auto* input = batch.inputs.data_ptr<std::int64_t>();
  auto* label = batch.labels.data_ptr<std::int64_t>();
  for (const std::uint32_t sample : samples) {
    const std::uint8_t* first = dataset.tokens.data() + sample * length;
    input = std::copy_n(first, length, input);
    label = std::copy_n(first + 1, length, label);
  }
  return batch;
}

}  // namespace

Batches::Batches(const ModelInput& input, const ChannelStatistics& statistics)
    : input_{input}, value_of_(statistics.mean.size()) {
  for (std::size_t c = 0; c < value_of_.size(); ++c) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const double scaled = static_cast<double>(byte) / 255.0;
      value_of_[c][byte] = static_cast<float>((scaled - statistics.mean[c]) / statistics.deviation[c]);
    }
  }
}

Batches::Tensors Batches::images(const Dataset& dataset, std::span<const std::uint32_t> samples) const {
  const auto count = static_cast<std::int64_t>(samples.size());
  Tensors batch{torch::empty({count, dataset.channels, dataset.height, dataset.width}, torch::kFloat32),
                torch::empty({count}, torch::kInt64)};
  const std::size_t image = dataset.image_bytes();
  const std::size_t plane = image / value_of_.size();
  float* out = batch.inputs.data_ptr<float>();
  auto* label = batch.labels.data_ptr<std::int64_t>();
  for (const std::uint32_t sample : samples) {
    const std::uint8_t* pixels = dataset.pixels.data() + sample * image;
    for (const auto& values : value_of_) {
      for (std::size_t i = 0; i < plane; ++i) *out++ = values[*pixels++];
    }
    *label++ = dataset.labels[sample];
  }
  return batch;
}

Batches::Tensors Batches::make(const Dataset& dataset, std::span<const std::uint32_t> samples,
                               const torch::Device& device) const {
  Tensors batch = dataset.is_text() ? text(dataset, samples) : images(dataset, samples);
  batch.inputs = batch.inputs.to(device);
  batch.labels = batch.labels.to(device);
  if (!dataset.is_text() && (dataset.height != input_.height || dataset.width != input_.width)) {
    batch.inputs = torch::upsample_bilinear2d(batch.inputs, {input_.height, input_.width}, false);
  }
  return batch;
}

}  // namespace gradtool
