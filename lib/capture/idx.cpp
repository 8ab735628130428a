#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "lib/capture/byte_file.hpp"
#include "lib/capture/dataset.hpp"
#include "lib/core/error.hpp"

namespace gradtool {
namespace {

constexpr std::int64_t kClasses = 10;
constexpr std::uint32_t kImagesMagic = 0x00000803;  // unsigned bytes, three dimensions
constexpr std::uint32_t kLabelsMagic = 0x00000801;  // unsigned bytes, one dimension
constexpr std::uint32_t kLargestSide = 4096;

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

}  // namespace gradtool
