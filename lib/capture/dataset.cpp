#include "lib/capture/dataset.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "lib/capture/byte_file.hpp"
#include "lib/core/throw_error.hpp"

namespace gradtool {
namespace {

constexpr std::int64_t kClasses = 10;               // of Fashion-MNIST, and of others in its format
constexpr std::uint32_t kImagesMagic = 0x00000803;  // unsigned bytes, three dimensions
constexpr std::uint32_t kLabelsMagic = 0x00000801;  // unsigned bytes, one dimension
constexpr std::uint32_t kLargestSide = 4096;

/// The path of one of the two IDX files: the plain file, or the one with .gz behind its name when that is absent.
std::string part(const std::string& folder, const std::string& prefix, const char* suffix) {
  const std::string plain = (std::filesystem::path{folder} / (prefix + suffix)).string();
  return std::filesystem::exists(plain) ? plain : plain + ".gz";
}

std::uint32_t read_u32(ByteFile& file) {
  std::array<std::uint8_t, 4> bytes{};
  file.read(bytes, "header");
  return std::uint32_t{bytes[0]} << 24 | std::uint32_t{bytes[1]} << 16 | std::uint32_t{bytes[2]} << 8 | bytes[3];
}

void expect_magic(ByteFile& file, std::uint32_t magic, const char* what) {
  const std::uint32_t found = read_u32(file);
  if (found == magic) return;
  throw_error(Fault::data, "'{}' is no IDX file of {}: its magic number is 0x{:08x}, not 0x{:08x}", file.path(), what,
              found, magic);
}

}  // namespace

bool has_idx_pair(const std::string& folder, const std::string& prefix) {
  return std::filesystem::exists(part(folder, prefix, "-images-idx3-ubyte")) &&
         std::filesystem::exists(part(folder, prefix, "-labels-idx1-ubyte"));
}

Dataset read_idx_pair(const std::string& folder, const std::string& prefix) {
  ByteFile images{part(folder, prefix, "-images-idx3-ubyte")};
  expect_magic(images, kImagesMagic, "images");
  const std::uint32_t count = read_u32(images);
  const std::uint32_t height = read_u32(images);
  const std::uint32_t width = read_u32(images);
  if (count == 0 || height == 0 || width == 0 || height > kLargestSide || width > kLargestSide) {
    throw_error(Fault::data,
                "'{}' claims {} images of {} x {} pixels; at least one image of 1 to {} pixels a side was expected",
                images.path(), count, height, width, kLargestSide);
  }
  ByteFile labels{part(folder, prefix, "-labels-idx1-ubyte")};
  expect_magic(labels, kLabelsMagic, "labels");
  const std::uint32_t label_count = read_u32(labels);
  if (label_count != count) {
    throw_error(Fault::data, "'{}' has {} labels for the {} images of '{}'", labels.path(), label_count, count,
                images.path());
  }
  Dataset dataset;
  dataset.channels = 1;
  dataset.height = height;
  dataset.width = width;
  dataset.classes = kClasses;
  dataset.pixels = images.read_many(std::uint64_t{count} * height * width, "pixels");
  images.expect_end();
  dataset.labels = labels.read_many(count, "labels");
  labels.expect_end();
  const auto bad =
      std::find_if(dataset.labels.begin(), dataset.labels.end(), [](auto label) { return label >= kClasses; });
  if (bad != dataset.labels.end()) {
    throw_error(Fault::data, "'{}' has label {} at position {}; labels are 0 to {}", labels.path(), *bad,
                bad - dataset.labels.begin(), kClasses - 1);
  }
  return dataset;
}

namespace {

constexpr std::uint64_t kPixels = 3 * 32 * 32;

/// Appends the records of the file to `dataset`.
void append(Dataset& dataset, const std::string& path, const CifarFormat& format) {
  std::error_code status;
  const std::uint64_t bytes = std::filesystem::file_size(path, status);
  if (status) throw_error(Fault::data, "'{}' cannot be read: {}", path, status.message());
  const std::uint64_t record = format.label_bytes + kPixels;
  if (bytes % record != 0) {
    throw_error(Fault::data,
                "'{}' has {} bytes, no whole number of {} records of {} bytes: truncated, or another format", path,
                bytes, format.name, record);
  }
  ByteFile file{path};
  const std::vector<std::uint8_t> records = file.read_many(bytes, "records");
  for (std::uint64_t first = 0; first < bytes; first += record) {
    const auto* pixels = records.data() + first + format.label_bytes;
    const std::uint8_t label = pixels[-1];
    if (label >= format.classes) {
      throw_error(Fault::data, "'{}' has label {} in record {}; labels are 0 to {}", path, label, first / record,
                  format.classes - 1);
    }
    dataset.labels.push_back(label);
    dataset.pixels.insert(dataset.pixels.end(), pixels, pixels + kPixels);
  }
}

std::string in_folder(const std::string& folder, const std::string& file) {
  return (std::filesystem::path{folder} / file).string();
}

/// The files in `folder` whose names `chosen` accepts, sorted by name; none when it is no folder.
template <class F>
std::vector<std::string> files_in(const std::string& folder, F chosen) {
  std::vector<std::string> files;
  std::error_code status;
  for (const auto& entry : std::filesystem::directory_iterator{folder, status}) {
    if (chosen(entry)) files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

/// The file itself, or the files of the folder.
std::vector<std::string> text_files(const std::string& path) {
  if (!std::filesystem::is_directory(path)) return {path};
  return files_in(path, [](const std::filesystem::directory_entry& entry) {
    return entry.is_regular_file() && !entry.path().filename().string().starts_with('.');
  });
}

std::string missing(const DatasetDescription& set, const std::string& what, const std::string& folder) {
  return fmt::format("no {} in '{}'; {} or name their folder with --data-dir", what, folder, set.how);
}

constexpr DatasetDescription kDatasets[] = {
    {.name = "fashion-mnist",
     .contents = "60,000 + 10,000 grey images of 28 x 28 pixels, 10 classes; or others in the same IDX files",
     .folder = "/usr/share/datasets/fashion-mnist",
     .how = "install the Debian package dataset-fashion-mnist"},
    {.name = "cifar10",
     .contents = "50,000 + 10,000 colour images of 32 x 32 pixels, 10 classes",
     .folder = "cifar-10-batches-bin",
     .how = "unpack cifar-10-binary.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html"},
    {.name = "cifar100",
     .contents = "50,000 + 10,000 colour images of 32 x 32 pixels, 100 classes",
     .folder = "cifar-100-binary",
     .how = "unpack cifar-100-binary.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html"},
    {.name = "text",
     .contents = "any file, or all files of a folder, as bytes; the last tenth is the test set",
     .folder = "",
     .how = "name a file or folder with --data-dir",
     .is_text = true},
};

}  // namespace

std::span<const DatasetDescription> datasets() {
  return kDatasets;
}

const std::vector<std::string>& dataset_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    all.reserve(std::size(kDatasets));
    for (const auto& set : kDatasets) all.emplace_back(set.name);
    return all;
  }();
  return names;
}

const DatasetDescription& find_dataset(const std::string& name) {
  const auto* const found = std::find_if(std::begin(kDatasets), std::end(kDatasets),
                                         [&](const DatasetDescription& set) { return set.name == name; });
  expects(found != std::end(kDatasets), "a data set was named that dataset_names() does not have");
  return *found;
}

std::string default_data_dir(const std::string& name) {
  return std::string{find_dataset(name).folder};
}

std::vector<std::string> find_cifar10_batches(const std::string& folder) {
  return files_in(folder, [](const std::filesystem::directory_entry& entry) {
    const std::string name = entry.path().filename().string();
    return name.starts_with("data_batch_") && name.ends_with(".bin");
  });
}

Dataset read_cifar(const std::vector<std::string>& files, const CifarFormat& format) {
  Dataset dataset;
  dataset.channels = 3;
  dataset.height = dataset.width = 32;
  dataset.classes = format.classes;
  for (const auto& file : files) append(dataset, file, format);
  if (dataset.size() == 0)
    throw_error(Fault::data, "'{}' holds no {} record", files.empty() ? "" : files.front(), format.name);
  return dataset;
}

std::vector<std::uint8_t> read_text(const std::string& path) {
  if (!std::filesystem::exists(path)) throw_error(Fault::data, "--data-dir '{}' does not exist", path);
  std::vector<std::uint8_t> bytes;
  for (const auto& file : text_files(path)) {
    if (!std::filesystem::is_regular_file(file)) throw_error(Fault::data, "'{}' is no file", file);
    const auto more = ByteFile{file}.read_all();
    bytes.insert(bytes.end(), more.begin(), more.end());
  }
  if (bytes.empty()) throw_error(Fault::data, "'{}' holds no text", path);
  return bytes;
}

Dataset text_dataset(std::vector<std::uint8_t> tokens, std::int64_t sequence_length) {
  expects(sequence_length >= 1, "a sequence of text has at least one token");
  Dataset dataset;
  dataset.sequence_length = sequence_length;
  dataset.classes = 256;
  dataset.tokens = std::move(tokens);
  return dataset;
}

std::vector<std::string> dataset_files(const std::string& name, const std::string& folder) {
  if (name == "text") return folder.empty() ? std::vector<std::string>{} : text_files(folder);
  if (name == "cifar100") return {in_folder(folder, "train.bin"), in_folder(folder, "test.bin")};
  if (name == "cifar10") {
    auto files = find_cifar10_batches(folder);
    files.push_back(in_folder(folder, "test_batch.bin"));
    return files;
  }
  std::vector<std::string> files;
  for (const char* prefix : {"train", "t10k"}) {
    for (const char* part : {"-images-idx3-ubyte", "-labels-idx1-ubyte"}) {
      for (const char* packed : {"", ".gz"}) files.push_back(in_folder(folder, std::string{prefix} + part + packed));
    }
  }
  return files;
}

bool has_training_set(const std::string& name, const std::string& folder) {
  if (name == "text") return !folder.empty() && std::filesystem::exists(folder);
  if (name == "cifar10") return !find_cifar10_batches(folder).empty();
  if (name == "cifar100") return std::filesystem::exists(in_folder(folder, "train.bin"));
  return has_idx_pair(folder, "train");
}

Dataset load_training_set(const std::string& name, const std::string& folder, std::int64_t sequence_length) {
  if (name == "text") {
    auto tokens = read_text(folder);
    const std::size_t bytes = tokens.size();
    tokens.resize(bytes - bytes / 10);
    Dataset dataset = text_dataset(std::move(tokens), sequence_length);
    if (dataset.size() > 0) return dataset;
    throw_error(Fault::data,
                "'{}' has {} bytes, too few for a sequence of {} tokens and the one behind it in its first nine tenths",
                folder, bytes, sequence_length);
  }
  const bool there = has_training_set(name, folder);
  const DatasetDescription& set = find_dataset(name);
  if (name == "cifar10") {
    if (!there) throw Error{Fault::data, missing(set, "data_batch_*.bin", folder)};
    return read_cifar(find_cifar10_batches(folder), kCifar10Format);
  }
  if (name == "cifar100") {
    if (!there) throw Error{Fault::data, missing(set, "train.bin", folder)};
    return read_cifar({in_folder(folder, "train.bin")}, kCifar100Format);
  }
  if (!there) {
    throw Error{Fault::data, missing(set, "train-images-idx3-ubyte and train-labels-idx1-ubyte (or .gz)", folder)};
  }
  return read_idx_pair(folder, "train");
}

std::optional<Dataset> load_test_set(const std::string& name, const std::string& folder, std::int64_t sequence_length) {
  if (name == "text") {
    const auto all = read_text(folder);
    const auto first = all.end() - static_cast<std::ptrdiff_t>(all.size() / 10);
    Dataset dataset = text_dataset({first, all.end()}, sequence_length);
    return dataset.size() > 0 ? std::optional{std::move(dataset)} : std::nullopt;
  }
  if (name == "cifar10" || name == "cifar100") {
    const bool ten = name == "cifar10";
    const auto file = in_folder(folder, ten ? "test_batch.bin" : "test.bin");
    if (!std::filesystem::exists(file)) return std::nullopt;
    return read_cifar({file}, ten ? kCifar10Format : kCifar100Format);
  }
  if (!has_idx_pair(folder, "t10k")) return std::nullopt;
  return read_idx_pair(folder, "t10k");
}

ChannelStatistics channel_statistics(const Dataset& dataset) {
  if (dataset.is_text()) return {};
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
