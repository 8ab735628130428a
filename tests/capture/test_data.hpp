#pragma once

#include <gtest/gtest.h>
#include <zlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "lib/capture/dataset.hpp"
#include "lib/core/error.hpp"

namespace gradtool::test {

/// A folder that goes when the test ends.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    path_ = std::filesystem::temp_directory_path() / (std::string{"gradtool_"} + info->test_suite_name() + "_" +
                                                      info->name() + "_" + std::to_string(::getpid()));
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] std::string file(const std::string& name) const { return (path_ / name).string(); }
  [[nodiscard]] std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

inline void write_file(const std::string& path, const std::vector<std::uint8_t>& bytes) {
  std::ofstream file{path, std::ios::binary};
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

inline void write_gzip(const std::string& path, const std::vector<std::uint8_t>& bytes) {
  const gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
  gzclose(file);
}

/// `count` images, brighter in the row that belongs to the label: something that a network can learn in a few steps.
inline Dataset striped_images(std::size_t count, std::int64_t channels, std::int64_t side, unsigned seed = 1) {
  Dataset dataset;
  dataset.channels = channels;
  dataset.height = dataset.width = side;
  dataset.classes = 10;
  std::mt19937 generator{seed};
  for (std::size_t i = 0; i < count; ++i) {
    const auto label = static_cast<std::uint8_t>(generator() % 10);
    dataset.labels.push_back(label);
    for (std::int64_t c = 0; c < channels; ++c) {
      for (std::int64_t row = 0; row < side; ++row) {
        const unsigned base = row / 2 == label ? 160 : 0;
        for (std::int64_t column = 0; column < side; ++column) {
          dataset.pixels.push_back(static_cast<std::uint8_t>(base + generator() % 96));
        }
      }
    }
  }
  return dataset;
}

/// Bytes that count from 0 to 9 again and again: every token tells the next one.
inline Dataset counting_text(std::size_t bytes, std::int64_t sequence_length) {
  Dataset dataset;
  dataset.sequence_length = sequence_length;
  dataset.classes = 256;
  for (std::size_t i = 0; i < bytes; ++i) dataset.tokens.push_back(static_cast<std::uint8_t>(i % 10));
  return dataset;
}

/// The sentence of the Error that `body` throws; a failure of the test when it throws none of that fault.
template <class F>
std::string sentence_of(Fault fault, F&& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), fault) << error.what();
    const std::string text = error.what();
    EXPECT_EQ(text.find('\n'), std::string::npos) << "one line: " << text;
    return text;
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

}  // namespace gradtool::test
