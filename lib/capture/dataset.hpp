#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gradtool {

/// Labelled images, held in memory as the bytes that the files store.
struct Dataset {
  std::int64_t channels = 0, height = 0, width = 0;
  std::int64_t classes = 0;
  std::vector<std::uint8_t> pixels;  ///< [size(), channels, height, width]
  std::vector<std::uint8_t> labels;  ///< [size()], each below `classes`

  [[nodiscard]] std::size_t size() const { return labels.size(); }
  [[nodiscard]] std::size_t image_bytes() const { return static_cast<std::size_t>(channels * height * width); }
};

/// What `--dataset` accepts: fashion-mnist, cifar10.
[[nodiscard]] const std::vector<std::string>& dataset_names();

/// The folder in which `name` is looked for when none is given.
[[nodiscard]] std::string default_data_dir(const std::string& name);

/// The files that `name` may be read from in `folder`, for training and test.
[[nodiscard]] std::vector<std::string> dataset_files(const std::string& name, const std::string& folder);

/// Reads the training images of `name` from `folder`. Throws Fault::data, naming the file, when files are missing or
/// malformed. Memory is not allocated by a size that a file states before that many bytes have been read.
[[nodiscard]] Dataset load_training_set(const std::string& name, const std::string& folder);

/// Reads the test images; nothing when their files are not there. A malformed file throws as above.
[[nodiscard]] std::optional<Dataset> load_test_set(const std::string& name, const std::string& folder);

/// Mean and standard deviation of the pixel values of each channel, pixels scaled to [0, 1]. Sums are exact (integers).
/// The deviation is at least 1/255, so that dividing by it is safe.
struct ChannelStatistics {
  std::vector<double> mean, deviation;
};
[[nodiscard]] ChannelStatistics channel_statistics(const Dataset& dataset);

/// Reads Fashion-MNIST or a data set of the same format: IDX files `<prefix>-images-idx3-ubyte` and
/// `<prefix>-labels-idx1-ubyte` in `folder`, each plain or, when that is absent, with .gz behind it. Labels must be
/// below 10. `prefix` is train or t10k. The format is Y. LeCun's IDX: a big-endian header with a magic number (0, 0,
/// type, number of dimensions) and one 32-bit size for each dimension.
[[nodiscard]] Dataset read_idx_pair(const std::string& folder, const std::string& prefix);
[[nodiscard]] bool has_idx_pair(const std::string& folder, const std::string& prefix);

/// Reads CIFAR-10's binary format: records of one label byte (0 to 9) and 3 x 32 x 32 pixel bytes, any number of them
/// in each file. Files are read in the order given. Throws Fault::data when there is no record at all.
[[nodiscard]] Dataset read_cifar10(const std::vector<std::string>& files);
/// The files data_batch_*.bin of `folder`, sorted by name; empty when there are none.
[[nodiscard]] std::vector<std::string> find_cifar10_batches(const std::string& folder);

}  // namespace gradtool
