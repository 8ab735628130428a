#include "lib/capture/dataset.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "lib/core/error.hpp"

namespace gradtool {

const std::vector<std::string>& dataset_names() {
  static const std::vector<std::string> names{"fashion-mnist", "cifar10"};
  return names;
}

std::string default_data_dir(const std::string& name) {
  return name == "cifar10" ? "cifar-10-batches-bin" : "/usr/share/datasets/fashion-mnist";
}

Dataset load_training_set(const std::string& name, const std::string& folder) {
  if (name == "cifar10") {
    const auto files = find_cifar10_batches(folder);
    if (files.empty()) {
      throw Error{Fault::data,
                  fmt::format("no data_batch_*.bin in '{}'; unpack cifar-10-binary.tar.gz from "
                              "https://www.cs.toronto.edu/~kriz/cifar.html and name its folder with --data-dir",
                              folder)};
    }
    return read_cifar10(files);
  }
  if (!has_idx_pair(folder, "train")) {
    throw Error{Fault::data,
                fmt::format("no train-images-idx3-ubyte and train-labels-idx1-ubyte (or .gz) in '{}'; install "
                            "the Debian package dataset-fashion-mnist or name their folder with --data-dir",
                            folder)};
  }
  return read_idx_pair(folder, "train");
}

std::optional<Dataset> load_test_set(const std::string& name, const std::string& folder) {
  if (name == "cifar10") {
    const auto file = std::filesystem::path{folder} / "test_batch.bin";
    if (!std::filesystem::exists(file)) return std::nullopt;
    return read_cifar10({file.string()});
  }
  if (!has_idx_pair(folder, "t10k")) return std::nullopt;
  return read_idx_pair(folder, "t10k");
}

ChannelStatistics channel_statistics(const Dataset& dataset) {
  const auto channels = static_cast<std::size_t>(dataset.channels);
  const std::size_t plane = dataset.image_bytes() / channels;
  std::vector<std::uint64_t> sum(channels), squares(channels);
  for (std::size_t first = 0, position = 0; first < dataset.pixels.size(); first += plane, ++position) {
    std::uint64_t plane_sum = 0, plane_squares = 0;
    for (std::size_t i = first; i < first + plane; ++i) {
      const std::uint64_t value = dataset.pixels[i];
      plane_sum += value;
      plane_squares += value * value;
    }
    sum[position % channels] += plane_sum;
    squares[position % channels] += plane_squares;
  }
  ChannelStatistics statistics;
  const auto count = static_cast<double>(dataset.size() * plane);
  for (std::size_t c = 0; c < channels; ++c) {
    const double mean = static_cast<double>(sum[c]) / count / 255.0;
    const double variance = static_cast<double>(squares[c]) / count / (255.0 * 255.0) - mean * mean;
    statistics.mean.push_back(mean);
    statistics.deviation.push_back(std::max(std::sqrt(std::max(variance, 0.0)), 1.0 / 255.0));
  }
  return statistics;
}

}  // namespace gradtool
