#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "lib/capture/byte_file.hpp"
#include "lib/capture/dataset.hpp"
#include "lib/core/error.hpp"

namespace gradtool {
namespace {

constexpr std::int64_t kClasses = 10;
constexpr std::uint64_t kPixels = 3 * 32 * 32;
constexpr std::uint64_t kRecord = 1 + kPixels;

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

}  // namespace gradtool
