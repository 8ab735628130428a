#include "lib/capture/dataset.hpp"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lib/core/error.hpp"

namespace gradtool {
namespace {

/// Reads a file from front to back and unpacks it when it is gzip-compressed. Every failure throws Fault::data with the
/// file's name.
class ByteFile {
 public:
  explicit ByteFile(std::string path);

  [[nodiscard]] const std::string& path() const { return path_; }
  /// Fills `out`. `what` names the part of the file, for the message when the file ends too early.
  void read(std::span<std::uint8_t> out, const char* what);
  /// Reads `count` bytes into a vector that grows as they arrive, so that a wrong count costs no more memory than the
  /// file is large.
  [[nodiscard]] std::vector<std::uint8_t> read_many(std::uint64_t count, const char* what);
  /// Throws unless the file ends here.
  void expect_end();

 private:
  std::size_t read_some(std::span<std::uint8_t> out);

  struct Close {
    void operator()(void* file) const noexcept;
  };
  std::string path_;
  std::unique_ptr<void, Close> file_;
};

constexpr std::uint64_t kChunk = std::uint64_t{16} << 20;  ///< bytes that are read at a time
gzFile handle(void* file) {
  return static_cast<gzFile>(file);
}

void ByteFile::Close::operator()(void* file) const noexcept {
  gzclose(handle(file));
}

ByteFile::ByteFile(std::string path) : path_{std::move(path)} {
  if (std::filesystem::is_directory(path_))
    throw Error{Fault::data, fmt::format("'{}' is a folder, not a file", path_)};
  errno = 0;
  file_.reset(gzopen(path_.c_str(), "rb"));
  if (!file_) throw Error{Fault::data, fmt::format("'{}' cannot be read: {}", path_, std::strerror(errno))};
  gzbuffer(handle(file_.get()), 256 * 1024);
}

std::size_t ByteFile::read_some(std::span<std::uint8_t> out) {
  std::size_t got = 0;
  while (got < out.size()) {
    const auto wanted = static_cast<unsigned>(std::min<std::uint64_t>(out.size() - got, kChunk));
    const int count = gzread(handle(file_.get()), out.data() + got, wanted);
    int status = Z_OK;
    const char* message = gzerror(handle(file_.get()), &status);
    // A compressed stream that is cut short returns its last good bytes and then Z_BUF_ERROR.
    if (count < 0 || (status != Z_OK && status != Z_STREAM_END)) {
      throw Error{Fault::data, fmt::format("'{}' cannot be read: {}", path_,
                                           status == Z_BUF_ERROR ? "the compressed data are cut short" : message)};
    }
    if (count == 0) break;
    got += static_cast<std::size_t>(count);
  }
  return got;
}

void ByteFile::read(std::span<std::uint8_t> out, const char* what) {
  const std::size_t got = read_some(out);
  if (got == out.size()) return;
  throw Error{Fault::data,
              fmt::format("'{}' is truncated: {} of the {} bytes of its {}", path_, got, out.size(), what)};
}

std::vector<std::uint8_t> ByteFile::read_many(std::uint64_t count, const char* what) {
  std::vector<std::uint8_t> bytes;
  while (bytes.size() < count) {
    const std::size_t old = bytes.size();
    bytes.resize(old + static_cast<std::size_t>(std::min(kChunk, count - old)));
    const std::size_t got = read_some(std::span{bytes}.subspan(old));
    if (old + got == bytes.size()) continue;
    throw Error{Fault::data,
                fmt::format("'{}' is truncated: {} of the {} bytes of its {}", path_, old + got, count, what)};
  }
  return bytes;
}

void ByteFile::expect_end() {
  std::uint8_t extra = 0;
  if (read_some({&extra, 1}) != 0) {
    throw Error{Fault::data, fmt::format("'{}' is longer than its header says", path_)};
  }
}

/// Both data sets have ten classes.
constexpr std::int64_t kClasses = 10;
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
  throw Error{Fault::data, fmt::format("'{}' is no IDX file of {}: its magic number is 0x{:08x}, not 0x{:08x}",
                                       file.path(), what, found, magic)};
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
    throw Error{Fault::data,
                fmt::format("'{}' claims {} images of {} x {} pixels; at least one image of 1 to {} pixels a "
                            "side was expected",
                            images.path(), count, height, width, kLargestSide)};
  }
  ByteFile labels{part(folder, prefix, "-labels-idx1-ubyte")};
  expect_magic(labels, kLabelsMagic, "labels");
  const std::uint32_t label_count = read_u32(labels);
  if (label_count != count) {
    throw Error{Fault::data, fmt::format("'{}' has {} labels for the {} images of '{}'", labels.path(), label_count,
                                         count, images.path())};
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
    throw Error{Fault::data, fmt::format("'{}' has label {} at position {}; labels are 0 to {}", labels.path(), *bad,
                                         bad - dataset.labels.begin(), kClasses - 1)};
  }
  return dataset;
}

namespace {

constexpr std::uint64_t kPixels = 3 * 32 * 32;
constexpr std::uint64_t kRecord = 1 + kPixels;

/// Appends the CIFAR-10 records of the file to `dataset`.
void append(Dataset& dataset, const std::string& path) {
  std::error_code status;
  const std::uint64_t bytes = std::filesystem::file_size(path, status);
  if (status) throw Error{Fault::data, fmt::format("'{}' cannot be read: {}", path, status.message())};
  if (bytes % kRecord != 0) {
    throw Error{Fault::data,
                fmt::format("'{}' has {} bytes, no whole number of CIFAR-10 records of {} bytes: truncated, or "
                            "another format",
                            path, bytes, kRecord)};
  }
  ByteFile file{path};
  const std::vector<std::uint8_t> records = file.read_many(bytes, "records");
  for (std::uint64_t first = 0; first < bytes; first += kRecord) {
    const std::uint8_t label = records[first];
    if (label >= kClasses) {
      throw Error{Fault::data, fmt::format("'{}' has label {} in record {}; labels are 0 to {}", path, label,
                                           first / kRecord, kClasses - 1)};
    }
    dataset.labels.push_back(label);
    const auto* pixels = records.data() + first + 1;
    dataset.pixels.insert(dataset.pixels.end(), pixels, pixels + kPixels);
  }
}

}  // namespace

std::vector<std::string> find_cifar10_batches(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code status;
  for (const auto& entry : std::filesystem::directory_iterator{folder, status}) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("data_batch_") && name.ends_with(".bin")) files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

Dataset read_cifar10(const std::vector<std::string>& files) {
  Dataset dataset;
  dataset.channels = 3;
  dataset.height = dataset.width = 32;
  dataset.classes = kClasses;
  for (const auto& file : files) append(dataset, file);
  if (dataset.size() == 0) {
    throw Error{Fault::data, fmt::format("'{}' holds no CIFAR-10 record", files.empty() ? "" : files.front())};
  }
  return dataset;
}

const std::vector<std::string>& dataset_names() {
  static const std::vector<std::string> names{"fashion-mnist", "cifar10"};
  return names;
}

std::string default_data_dir(const std::string& name) {
  return name == "cifar10" ? "cifar-10-batches-bin" : "/usr/share/datasets/fashion-mnist";
}

std::vector<std::string> dataset_files(const std::string& name, const std::string& folder) {
  const auto in_folder = [&](const std::string& file) { return (std::filesystem::path{folder} / file).string(); };
  if (name == "cifar10") {
    auto files = find_cifar10_batches(folder);
    files.push_back(in_folder("test_batch.bin"));
    return files;
  }
  std::vector<std::string> files;
  for (const char* prefix : {"train", "t10k"}) {
    for (const char* part : {"-images-idx3-ubyte", "-labels-idx1-ubyte"}) {
      for (const char* packed : {"", ".gz"}) files.push_back(in_folder(std::string{prefix} + part + packed));
    }
  }
  return files;
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
