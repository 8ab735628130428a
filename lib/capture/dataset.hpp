#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gradtool {

/// The training data, held in memory as the bytes that the files store: labelled images, or a text.
///
/// A sample of text is a sequence of tokens, each with the token behind it as its label. Sequences follow each other
/// without overlap; what is left at the end is not used.
struct Dataset {
  std::int64_t channels = 0, height = 0, width = 0;  ///< of an image; 0 for text
  std::int64_t sequence_length = 0;                  ///< tokens of a sample of text; 0 for images
  std::int64_t classes = 0;                          ///< labels, or tokens of the vocabulary
  std::vector<std::uint8_t> pixels;                  ///< [size(), channels, height, width]
  std::vector<std::uint8_t> labels;                  ///< [size()], each below `classes`
  std::vector<std::uint8_t> tokens;                  ///< of the text, each below `classes`

  [[nodiscard]] bool is_text() const { return sequence_length > 0; }
  /// Samples.
  [[nodiscard]] std::size_t size() const {
    if (!is_text()) return labels.size();
    return tokens.empty() ? 0 : (tokens.size() - 1) / static_cast<std::size_t>(sequence_length);
  }
  [[nodiscard]] std::size_t image_bytes() const { return static_cast<std::size_t>(channels * height * width); }
};

struct DatasetDescription {
  std::string_view name;      ///< as in --dataset
  std::string_view contents;  ///< one line
  std::string_view folder;    ///< in which it is looked for when none is given; empty where one has to be
  std::string_view how;       ///< to get it
  bool is_text = false;
};
/// All data sets, in the order in which they are listed.
[[nodiscard]] std::span<const DatasetDescription> datasets();
/// The names that `--dataset` accepts.
[[nodiscard]] const std::vector<std::string>& dataset_names();
/// Throws Fault::internal for a name that is not in dataset_names().
[[nodiscard]] const DatasetDescription& find_dataset(const std::string& name);

/// The folder in which `name` is looked for when none is given; empty for text.
[[nodiscard]] std::string default_data_dir(const std::string& name);

// In all that follows, `folder` is for text a folder or a file.

/// The files that `name` may be read from in `folder`, for training and test.
[[nodiscard]] std::vector<std::string> dataset_files(const std::string& name, const std::string& folder);
/// Whether the files of the training set are there; whether they are well formed is not looked at.
[[nodiscard]] bool has_training_set(const std::string& name, const std::string& folder);

/// Reads the training samples of `name` from `folder`. Throws Fault::data, naming the file, when files are missing or
/// malformed. Memory is not allocated by a size that a file states before that many bytes have been read.
/// `sequence_length` is of text alone, the first nine tenths of which are for training.
[[nodiscard]] Dataset load_training_set(const std::string& name, const std::string& folder,
                                        std::int64_t sequence_length = 0);

/// Reads the test samples; nothing when their files are not there, or the last tenth of a text is shorter than a
/// sequence. A malformed file throws as above.
[[nodiscard]] std::optional<Dataset> load_test_set(const std::string& name, const std::string& folder,
                                                   std::int64_t sequence_length = 0);

/// Mean and standard deviation of the pixel values of each channel, pixels scaled to [0, 1]. Sums are exact (integers).
/// The deviation is at least 1/255, so that dividing by it is safe. Empty for text.
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

/// The binary formats of CIFAR: records of label bytes, of which the last is used, and 3 x 32 x 32 pixel bytes.
/// CIFAR-100 has the coarse class before the fine one.
struct CifarFormat {
  const char* name;
  std::uint64_t label_bytes;
  std::int64_t classes;
};
inline constexpr CifarFormat kCifar10Format{"CIFAR-10", 1, 10};
inline constexpr CifarFormat kCifar100Format{"CIFAR-100", 2, 100};

/// Reads any number of records from each file. Files are read in the order given. Throws Fault::data when there is no
/// record at all.
[[nodiscard]] Dataset read_cifar(const std::vector<std::string>& files, const CifarFormat& format);
/// The files data_batch_*.bin of `folder`, sorted by name; empty when there are none.
[[nodiscard]] std::vector<std::string> find_cifar10_batches(const std::string& folder);

/// The bytes of a file, or of all files of a folder in the order of their names, without those whose names begin with a
/// dot. Files that are packed with gzip are unpacked. Throws Fault::data when there are none.
[[nodiscard]] std::vector<std::uint8_t> read_text(const std::string& path);

}  // namespace gradtool
