#pragma once

#include <unistd.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "lib/io/gradient_file.hpp"

namespace gradtool::test {

/// A name in the system's temporary folder, unused so far; the file is removed at the end.
class TempFile {
 public:
  TempFile() {
    static std::atomic<int> count{0};
    path_ = std::filesystem::temp_directory_path() /
            ("gradtool_io_" + std::to_string(::getpid()) + "_" + std::to_string(count++) + ".h5");
    std::filesystem::remove(path_);
  }
  ~TempFile() { std::filesystem::remove(path_); }
  TempFile(const TempFile&) = delete;
  TempFile& operator=(const TempFile&) = delete;
  [[nodiscard]] std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

inline constexpr std::size_t kWorkers = 3;
inline constexpr std::size_t kSteps = 5;

/// A value that differs between any two places; not exact in 16 bits.
inline float sample_value(std::size_t tensor, std::size_t step, std::size_t worker, std::size_t i) {
  return std::sin(static_cast<float>(1 + i + 7919 * (worker + 10 * (step + 10 * tensor)))) * 0.01F;
}

inline WriterOptions sample_options(Dtype dtype) {
  WriterOptions options;
  options.info.workers = kWorkers;
  options.info.model = "sample";
  options.info.dataset = "none";
  options.info.optimizer = "sgd lr=0.1";
  options.info.command = "gradtool capture \u2026";
  options.info.created = "2025-01-02T03:04:05Z";
  options.info.seed = -7;
  options.info.batch_size = 32;
  options.info.micro_batches = 4;
  options.tensors = {{.name = "conv", .shape = {16, 3, 5, 5}, .kind = "conv", .layout = "OIHW", .dtype = dtype},
                     {.name = "scale", .shape = {}, .kind = "norm", .dtype = dtype},
                     {.name = "large", .shape = {70'001}, .kind = "linear", .dtype = dtype}};
  options.tensors[0].has_second_moment = options.tensors[0].has_weight = true;
  return options;
}

inline std::vector<float> sample_values(std::size_t tensor, std::size_t step, std::size_t worker, std::size_t n) {
  std::vector<float> values(n);
  for (std::size_t i = 0; i < n; ++i) values[i] = sample_value(tensor, step, worker, i);
  return values;
}

inline constexpr std::size_t kElements[] = {1200, 1, 70'001};

/// One whole step of the sample; the second moment and the weight of tensor 0 are gradients of "tensors" 8 and 9.
inline void write_sample_step(GradientWriter& writer, std::size_t step) {
  writer.begin_step({.iteration = static_cast<std::int64_t>(100 + step),
                     .epoch = 0.25 * static_cast<double>(step),
                     .learning_rate = 0.1,
                     .loss = std::vector<float>(kWorkers, 2.0F / static_cast<float>(step + 1))});
  for (std::size_t t = 0; t < 3; ++t) {
    // Workers backwards: the order within a step is free.
    for (std::size_t w = kWorkers; w-- > 0;) writer.put_gradient(t, w, sample_values(t, step, w, kElements[t]));
  }
  for (std::size_t w = 0; w < kWorkers; ++w) writer.put_second_moment(0, w, sample_values(8, step, w, kElements[0]));
  writer.put_weight(0, sample_values(9, step, 0, kElements[0]));
  writer.end_step();
}

inline void write_sample(const std::string& path, Dtype dtype) {
  GradientWriter writer{path, sample_options(dtype)};
  for (std::size_t s = 0; s < kSteps; ++s) write_sample_step(writer, s);
  writer.close();
}

}  // namespace gradtool::test
